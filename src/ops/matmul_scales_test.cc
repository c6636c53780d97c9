// Scales and offsets lie as f16 in a plan's panels only where all of them are exact in it.

#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

constexpr int64_t kRows = 100, kColumns = 128, kGroup = 64, kGroups = kColumns / kGroup;

ValueTensor weights(ScaleKind scale, ZeroKind zero, int64_t n_block) {
  Rng rng(1);
  ValueTensor v;
  v.format = FormatId::kInt4;
  v.n = kRows;
  v.k = kColumns;
  v.scaling = {n_block, kGroup, scale, zero};
  for (int64_t i = 0; i < kRows * kColumns; ++i) v.codes.push_back(static_cast<uint8_t>(1 + rng.below(7)));
  const auto rows = static_cast<size_t>((kRows + n_block - 1) / n_block);
  v.scales.assign(rows * kGroups, 0.25f);  // exact in every kind
  if (zero != ZeroKind::kNone) v.zeros.assign(rows * kGroups, -0.5f);
  return v;
}

/// Against the stored floats, with a token that has a single 1 in each group.
void check(const ValueTensor& v, const std::string& what) {
  const auto w = pack(v);
  ASSERT_TRUE(w) << w.error().message();
  std::vector<float> real(static_cast<size_t>(kRows * kColumns));
  dequantize_rows(*w, 0, kRows, real.data());
  std::vector<float> x(kColumns, 0.0f), y(kRows);
  x[5] = x[kGroup + 9] = 1;
  ThreadPool pool(1);
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    const auto plan = MatmulPlan::make(*w, {Activation::kF32, isa}, pool);
    ASSERT_TRUE(plan) << plan.error().message();
    ActivationRows rows;
    ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), 1, kColumns, kColumns, isa, pool));
    ASSERT_TRUE(plan->run(rows, nullptr, y.data(), kRows, pool));
    for (int64_t r = 0; r < kRows; ++r) {
      const float want =
          real[static_cast<size_t>(r * kColumns + 5)] + real[static_cast<size_t>(r * kColumns + kGroup + 9)];
      ASSERT_NEAR(y[static_cast<size_t>(r)], want, 1e-6f) << what << ", row " << r << ", " << plan->kernel_name();
    }
  }
}

TEST(MatmulScales, OneThatF16CannotHoldAnywhere) {
  const float inexact = 0.1f;
  for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kOffset})
    for (const int64_t n_block : {int64_t{1}, int64_t{7}}) {
      const ValueTensor exact = weights(ScaleKind::kF32, zero, n_block);
      check(exact, "all exact");
      for (const size_t at : {size_t{0}, size_t{1}, exact.scales.size() - 1}) {
        ValueTensor v = exact;
        v.scales[at] = inexact;
        check(v, "scale " + std::to_string(at));
        if (zero == ZeroKind::kNone) continue;
        v = exact;
        v.zeros[at] = inexact;
        check(v, "offset " + std::to_string(at));
        v.scales[exact.scales.size() / 2] = inexact;
        check(v, "both");
      }
    }
}

}  // namespace
}  // namespace lowbit
