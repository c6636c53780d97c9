// Sums of products of columns: every instruction set gives the reference's bits, for any part of two panels.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// [rows, kGramColumns]; of `odd` elements one in 40 is large, tiny, infinite or NaN.
std::vector<float> random_panel(Rng& rng, int64_t rows, bool odd) {
  constexpr float kOdd[] = {3e38f, -1e-45f, 1e-30f, kInfinity, -kInfinity, kNan, -0.0f};
  std::vector<float> panel(size_t(rows * kGramColumns));
  for (float& v : panel) v = odd && rng.below(40) == 0 ? kOdd[rng.below(std::size(kOdd))] : rng.normal();
  return panel;
}

/// Bits of [kGramColumns, ld] sums, those of any NaN alike.
std::vector<uint64_t> sums_of(GramKernel add, GramArgs a, int64_t ld) {
  std::vector<double> sum(size_t(kGramColumns * ld), 0.25);  // what is there stays in the sum, and beside it
  a.sum = sum.data();
  a.ld = ld;
  add(a);
  std::vector<uint64_t> bits;
  for (const double v : sum) bits.push_back(std::bit_cast<uint64_t>(std::isnan(v) ? double(kNan) : v));
  return bits;
}

TEST(Gram, EveryInstructionSetGivesTheReferencesBits) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    const auto rows = int64_t(rng.below(300));  // none, and more than stay in the first-level cache
    const std::vector<float> left = random_panel(rng, rows, round % 2 != 0),
                             right = random_panel(rng, rows, round % 2 != 0);
    GramArgs a{left.data(), right.data(), rows, nullptr, 0, 0, 0};
    a.m = 1 + int64_t(rng.below(kGramColumns)), a.n = 1 + int64_t(rng.below(kGramColumns));
    const int64_t ld = kGramColumns + int64_t(rng.below(9));
    const std::vector<uint64_t> want = sums_of(kRefGram, a, ld);
    for (int i = 0; i <= int(best_isa()); ++i) {
      if (!isa_available(Isa(i))) continue;
      EXPECT_EQ(sums_of(gram_kernel(Isa(i)), a, ld), want)
          << isa_name(Isa(i)) << ", " << rows << " rows, " << a.m << " by " << a.n;
    }
  }
}

TEST(Gram, AddsAChainOfProductsOfItsColumns) {
  std::vector<float> left(2 * kGramColumns), right(2 * kGramColumns);
  left[3] = 2, left[kGramColumns + 3] = 5, right[1] = 7, right[kGramColumns + 1] = -1;
  std::vector<double> sum(4 * 2, 1.0);
  kRefGram({left.data(), right.data(), 2, sum.data(), 2, 4, 2});
  EXPECT_EQ(sum, (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 10}));
}

}  // namespace
}  // namespace lowbit
