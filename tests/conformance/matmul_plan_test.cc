// Layouts that kernels derive against the formats that they come from, and what a plan refuses and says.
#include <gtest/gtest.h>

#include "kernels/registry.h"
#include "ops/matmul.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;

ThreadPool& pool() {
  static ThreadPool one(1);
  return one;
}

TEST(MatmulConformance, DerivedLayoutsEqualTheirCanonicalFormat) {
  const std::pair<FormatId, FormatId> kPairs[] = {{FormatId::kInt2Transposed, FormatId::kInt2},
                                                  {FormatId::kInt2Planes, FormatId::kInt2},
                                                  {FormatId::kInt3Planes, FormatId::kInt3},
                                                  {FormatId::kInt4Planes, FormatId::kInt4},
                                                  {FormatId::kTernaryPlanes, FormatId::kTernary}};
  Rng rng(7);
  const int64_t k = 96;
  PanelShape shape{k, 32, 3, false, false, false};
  std::vector<int8_t> xq(128);
  for (int64_t i = 0; i < k; ++i) xq[size_t(i)] = int8_t(int(rng.below(255)) - 127);
  const float scales[3] = {0.5f, 0.25f, 0.125f}, x_scale = 1.0f;
  for (const auto& [derived, canonical] : kPairs) {
    std::vector<int> values(static_cast<size_t>(k));
    const FormatInfo& info = format_info(canonical);
    for (int& v : values) v = info.min_value + int(rng.below(uint64_t(info.max_value - info.min_value + 1)));
    float y[2] = {};
    int i = 0;
    for (FormatId id : {derived, canonical}) {
      std::vector<uint8_t> codes(static_cast<size_t>(k)), row(size_t(row_bytes(id, k)));
      for (size_t e = 0; e < codes.size(); ++e) codes[e] = code_of(id, values[e]);
      format_ops(id).pack(codes.data(), k, row.data());
      const KernelTable& table = ref_table();
      for (int t = 0; t < table.matmul_count; ++t) {
        const MatmulKernel& kernel = table.matmul[t];
        if (kernel.format != id || kernel.activation != Activation::kInt8) continue;
        std::vector<uint8_t> panel(size_t(kernel.panel_bytes(shape))), scratch(size_t(kernel.scratch_bytes(1, shape)));
        kernel.relayout({row.data(), 0, scales, nullptr, 1}, shape, panel.data(), scratch.data());
        MatmulArgs a;
        a.w = panel.data();
        a.shape = shape;
        a.n = a.n1 = a.m = a.ldy = 1;
        a.xq = xq.data();
        a.ldxq = 128;
        a.x_scale = &x_scale;
        a.y = &y[i];
        a.scratch = scratch.data();
        kernel.run(a);
      }
      ++i;
    }
    EXPECT_EQ(y[0], y[1]) << format_info(derived).name;
    EXPECT_NE(y[0], 0.0f);
  }
}

TEST(MatmulPlan, ReportsWhatDoesNotFit) {
  Case c;
  const QTensor w = conformance::random_weights(c);
  auto plan = MatmulPlan::make(w, {Activation::kInt8, Isa::kScalar, false, 0}, pool());
  ASSERT_TRUE(plan.has_value());
  const std::vector<float> x(128, 1.0f);
  std::vector<float> y(16);
  ActivationRows rows;
  ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), 1, 65, 65, Isa::kScalar, pool()));
  const Status other_k = plan->run(rows, nullptr, y.data(), 16, pool());
  ASSERT_FALSE(other_k.has_value());
  EXPECT_EQ(other_k.error().code, ErrorCode::kShapeMismatch);
  ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), 1, 64, 64, Isa::kScalar, pool()));
  EXPECT_FALSE(plan->run(rows, nullptr, y.data(), 16, pool()).has_value());
}

TEST(MatmulPlan, DenseWeightsTakeF32ActivationsAndSaySo) {
  Case c;
  c.format = FormatId::kF16;
  auto plan = MatmulPlan::make(conformance::random_weights(c), {Activation::kInt8, Isa::kScalar, false, 0}, pool());
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->activation(), Activation::kF32);
  EXPECT_NE(plan->reason().find("dense"), std::string::npos);
}

TEST(MatmulPlan, NamesFollowTheGrammar) {
  Case c;
  c.scaling.k_block = 32;
  auto plan = MatmulPlan::make(conformance::random_weights(c), {Activation::kInt8, Isa::kScalar, true, 0}, pool());
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->kernel_name(), "matmul_int4_a8_g32__ref");
  c.scaling.k_block = Scaling::kAll;
  c.k = c.ldx = 576;
  plan = MatmulPlan::make(conformance::random_weights(c), {Activation::kInt8, Isa::kScalar, true, 64}, pool());
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->kernel_name(), "matmul_int4_a8g64_row__ref");
}

}  // namespace
}  // namespace lowbit
