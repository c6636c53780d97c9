// The toy kernel of docs/adding-a-kernel.md against the reference, bit for bit, on the conformance list's random cases.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "ops/matmul.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;

struct Outcome {
  std::string kernel;
  std::vector<float> y;
};

Outcome run(const Case& c, bool reference, int threads) {
  Outcome out;
  ThreadPool pool(threads);
  const QTensor w = conformance::random_weights(c);
  const std::vector<float> x = conformance::random_activations(c);
  const auto plan = MatmulPlan::make(w, {Activation::kInt8, Isa::kScalar, reference}, pool);
  EXPECT_TRUE(plan.has_value()) << c.name();
  if (!plan) return out;
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(plan->activation(), x.data(), c.m, c.k, c.ldx, Isa::kScalar, pool));
  const std::vector<float> bias(size_t(c.n), 0.5f);
  out.kernel = plan->kernel_name();
  out.y.assign(size_t(c.m * c.ldy + 1), -1.0f);
  EXPECT_TRUE(plan->run(rows, c.bias ? bias.data() : nullptr, out.y.data(), c.ldy, pool));
  return out;
}

TEST(RecipeKernel, EqualsTheReferenceAndReallyRan) {
  int ran = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Case c = conformance::random_case(seed);
    c.format = FormatId::kInt2;
    const Outcome want = run(c, true, 1), got = run(c, false, 1 + int(seed % 3));
    EXPECT_NE(want.kernel.find("__ref"), std::string::npos) << want.kernel;
    ran += got.kernel.find("__scalar_1x1") != std::string::npos;
    ASSERT_EQ(want.y.size(), got.y.size());
    for (size_t i = 0; i < want.y.size(); ++i) {
      const bool both_nan = want.y[i] != want.y[i] && got.y[i] != got.y[i];
      ASSERT_TRUE(both_nan || std::memcmp(&want.y[i], &got.y[i], 4) == 0)
          << got.kernel << " y[" << i << "] = " << got.y[i] << ", wanted " << want.y[i] << "\n"
          << c.name();
    }
  }
  EXPECT_EQ(ran, 400);
}

TEST(RecipeKernel, IsListedOnceWithItsPage) {
  int listed = 0;
  for (const MatmulKernel* kernel : all_matmul_kernels())
    if (std::string(kernel->name) == "matmul_int2_a8__scalar_1x1") {
      ++listed;
      EXPECT_EQ(std::string(kernel->doc).substr(0, 15), "docs/kernels.md");
    }
  EXPECT_EQ(listed, 1);
}

}  // namespace
}  // namespace lowbit
