// Rows of x that the cache does not hold are multiplied in several passes, and products of the same rows share one
// scratch.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "ops/matmul.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

std::vector<float> normals(int64_t count) {
  Rng rng(3);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

Result<MatmulPlan> plan_of(FormatId format, int64_t n, int64_t k, Activation activation, ThreadPool& pool,
                           bool offsets = false) {
  TimedMatmul spec;
  spec.format = format;
  spec.group = 64;
  spec.n = n;
  spec.k = k;
  auto w = random_weight(spec, pool);
  if (!w) return tl::unexpected(w.error());
  if (offsets) {
    w->scaling.zero = ZeroKind::kOffset;
    w->zeros = *Buffer::allocate(w->scales.size(), "test");
    std::memcpy(w->zeros.data(), w->scales.data(), size_t(w->scales.size()));
  }
  return MatmulPlan::make(*w, {activation, best_isa(), false, activation == Activation::kInt8 ? 32 : 0}, pool);
}

/// All rows together have the bits of each row alone.
TEST(MatmulPasses, LongRowsTakeSeveral) {
  constexpr int64_t kM = 100, kN = 20, kK = 17000;
  ThreadPool pool(2);
  const std::vector<float> x = normals(kM * kK);
  for (const auto& [activation, offsets] : {std::pair{Activation::kInt8, false}, std::pair{Activation::kInt8, true},
                                            std::pair{Activation::kF32, false}, std::pair{Activation::kF32, true}}) {
    const auto plan = plan_of(FormatId::kInt4, kN, kK, activation, pool, offsets);
    ASSERT_TRUE(plan) << plan.error().message();
    std::vector<float> together(kM * kN, -1.0f), alone(kN);
    ActivationRows rows;
    ASSERT_TRUE(rows.prepare(activation, x.data(), kM, kK, kK, best_isa(), pool));
    ASSERT_TRUE(plan->run(rows, nullptr, together.data(), kN, pool));
    for (int64_t m = 0; m < kM; ++m) {
      ASSERT_TRUE(rows.prepare(activation, x.data() + m * kK, 1, kK, kK, best_isa(), pool));
      ASSERT_TRUE(plan->run(rows, nullptr, alone.data(), kN, pool));
      for (int64_t n = 0; n < kN; ++n)
        ASSERT_EQ(together[static_cast<size_t>(m * kN + n)], alone[static_cast<size_t>(n)])
            << activation_name(activation) << (offsets ? ", offsets" : "") << ", row " << m << ", output " << n;
    }
  }
}

/// Formats whose kernels need scratch of different sizes, in both orders.
TEST(MatmulPasses, ProductsOfTheSameRowsDoNotDisturbEachOther) {
  constexpr int64_t kM = 150, kN = 70, kK = 640;
  ThreadPool pool(2);
  const std::vector<float> x = normals(kM * kK);
  const auto few = plan_of(FormatId::kTernaryPacked, kN, kK, Activation::kInt8, pool),
             many = plan_of(FormatId::kInt8, kN, kK, Activation::kInt8, pool);
  ASSERT_TRUE(few && many);
  ActivationRows rows;
  ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), kM, kK, kK, best_isa(), pool));
  std::vector<float> want_few(kM * kN), want_many(kM * kN);
  ASSERT_TRUE(few->run(rows, nullptr, want_few.data(), kN, pool));
  ASSERT_TRUE(many->run(rows, nullptr, want_many.data(), kN, pool));
  for (const bool swapped : {false, true}) {
    std::vector<float> got_few(kM * kN), got_many(kM * kN);
    std::array<MatmulCall, 2> calls = {{{&*few, nullptr, got_few.data(), kN}, {&*many, nullptr, got_many.data(), kN}}};
    if (swapped) std::swap(calls[0], calls[1]);
    ASSERT_TRUE(run_matmuls(calls, rows, pool));
    EXPECT_EQ(got_few, want_few) << swapped;
    EXPECT_EQ(got_many, want_many) << swapped;
  }
}

}  // namespace
}  // namespace lowbit
