// Products of fp8 activations and fp8 weights as models run them: every instruction set against the reference, and the
// reference against the product of kernels/fp8_api.h where both are defined.

#include <gtest/gtest.h>

#include <bit>

#include "kernels/registry.h"
#include "ops/fp8.h"
#include "ops/matmul.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;
using conformance::Fill;

bool same_float(float a, float b) {
  return (a != a && b != b) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

int differences(const std::vector<float>& want, const std::vector<float>& got, const std::string& what) {
  int count = 0;
  for (size_t i = 0; i < want.size(); ++i)
    if (!same_float(want[i], got[i]) && count++ == 0)
      ADD_FAILURE() << what << ": y[" << i << "] = " << got[i] << ", wanted " << want[i];
  return count;
}

Case fp8_case(uint64_t seed) {
  Case c = conformance::random_case(seed);
  Rng rng(seed, 5);
  c.format = FormatId::kFp8;
  c.scaling.zero = ZeroKind::kNone;
  c.scaling.k_block =
      conformance::pick<int64_t>(rng, {Scaling::kAll, 128, 128, 128, 256, 64, 40, 4, 1 + int64_t(rng.below(300))});
  c.activation_group = conformance::pick<int64_t>(rng, {0, 128, 128, 128, 64, 32});
  return c;
}

struct Made {
  std::vector<float> y;
  std::string kernel;
};

Made run(const Case& c, const QTensor& w, const std::vector<float>& x, Isa isa, bool reference, int threads,
         const KernelTable* first_table = nullptr) {
  ThreadPool pool(threads);
  Made made;
  const auto plan = MatmulPlan::make(w, {Activation::kFp8, isa, reference, c.activation_group, first_table}, pool);
  EXPECT_TRUE(plan.has_value()) << c.name();
  if (!plan) return made;
  made.kernel = plan->kernel_name();
  EXPECT_EQ(plan->activation(), Activation::kFp8);
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(Activation::kFp8, x.data() + c.shift, c.m, c.k, c.ldx, isa, pool));
  std::vector<float> bias(size_t(c.n + 1));
  Rng rng(c.seed, 4);
  for (float& b : bias) b = float(rng.normal());
  made.y.assign(size_t(c.m * c.ldy + 1), 12345.5f);
  EXPECT_TRUE(plan->run(rows, c.bias ? bias.data() : nullptr, made.y.data(), c.ldy, pool)) << c.name();
  return made;
}

/// AVX-512's kernels as CPUs without pairs of bf16 take them.
struct WithoutPairs {
  std::vector<MatmulKernel> kernels;
  KernelTable table;
  WithoutPairs() : table(*kernel_tables(Isa::kAvx512).front()) {
    for (int i = 0; i < table.matmul_count; ++i)
      if (!table.matmul[i].pairs) kernels.push_back(table.matmul[i]);
    table.matmul = kernels.data();
    table.matmul_count = int(kernels.size());
  }
};

TEST(Fp8Matmul, EveryInstructionSetGivesTheReferencesBits) {
  int bad = 0, in_pairs = 0;
  const WithoutPairs without_pairs;
  for (uint64_t seed = 0; seed < 1500 && bad < 5; ++seed) {
    const Case c = fp8_case(seed);
    const QTensor w = conformance::random_weights(c);
    const std::vector<float> x = conformance::random_activations(c);
    const Made want = run(c, w, x, Isa::kScalar, true, 1);
    EXPECT_NE(want.kernel.find("matmul_fp8_afp8g"), std::string::npos) << want.kernel;
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      const Made got = run(c, w, x, isa, false, 1 + int(seed % 3));
      EXPECT_EQ(got.kernel.find("__ref"), std::string::npos) << got.kernel;
      bad += differences(want.y, got.y, c.name() + " " + got.kernel);
      if (got.kernel.find("bf16") == std::string::npos) continue;
      ++in_pairs;
      const Made floats = run(c, w, x, isa, false, 1 + int(seed % 3), &without_pairs.table);
      EXPECT_NE(floats.kernel.find("__avx512_32x12"), std::string::npos) << floats.kernel;
      bad += differences(want.y, floats.y, c.name() + " " + floats.kernel);
    }
  }
  EXPECT_TRUE(in_pairs > 500 || !isa_available(Isa::kAvx512) || !has_bf16_pairs()) << in_pairs;
}

/// The product by quantize_fp8() and gemm_fp8() of ops/fp8.h, without bias.
std::vector<float> by_operators(const Case& c, const QTensor& w, const std::vector<float>& x) {
  ThreadPool pool(1);
  const int64_t blocks = ceil_div(c.k, kFp8Block);
  std::vector<uint8_t> codes(size_t(c.m * c.k));
  std::vector<float> scales(size_t(c.m * blocks)), y(size_t(c.m * c.ldy + 1), 12345.5f);
  Fp8Quant q;
  q.x = x.data() + c.shift, q.rows = c.m, q.columns = c.k, q.ldx = c.ldx;
  q.codes = codes.data(), q.ldcodes = c.k, q.scales = scales.data(), q.ldscales = blocks;
  EXPECT_TRUE(quantize_fp8(q, Isa::kScalar, pool));
  Fp8Gemm g;
  g.m = c.m, g.n = c.n, g.k = c.k;
  g.a = codes.data(), g.lda = c.k, g.a_scales = scales.data(), g.lda_scales = blocks;
  g.b = w.codes.as<uint8_t>(), g.ldb = c.k;
  g.b_scales = w.scales.as<float>(), g.ldb_scales = blocks, g.b_rows = c.scaling.n_block;
  g.c = y.data(), g.ldc = c.ldy;
  EXPECT_TRUE(gemm_fp8(g, Isa::kScalar, pool));
  return y;
}

TEST(Fp8Matmul, GivesTheBitsOfTheOperators) {
  int bad = 0;
  for (uint64_t seed = 0; seed < 600 && bad < 5; ++seed) {
    Case c = fp8_case(seed);
    Rng rng(seed, 6);
    c.scaling = {conformance::pick<int64_t>(rng, {1, 128, 16}), 128, ScaleKind::kF32, ZeroKind::kNone};
    c.activation_group = 128;
    c.bias = false;
    c.n = std::max<int64_t>(1, c.n);
    c.ldy = c.n + 1;
    const QTensor w = conformance::random_weights(c);
    const std::vector<float> x = conformance::random_activations(c);
    bad += differences(by_operators(c, w, x), run(c, w, x, Isa::kScalar, true, 1).y, c.name());
  }
}

TEST(Fp8Matmul, OtherWeightsAreRefusedByName) {
  ThreadPool pool(1);
  Case c;
  c.format = FormatId::kInt4;
  const auto int4 = MatmulPlan::make(conformance::random_weights(c), {Activation::kFp8}, pool);
  ASSERT_FALSE(int4.has_value());
  EXPECT_NE(int4.error().message().find("int4 x fp8"), std::string::npos) << int4.error().message();
  c.format = FormatId::kFp8;
  c.scaling.zero = ZeroKind::kOffset;
  const auto zeros = MatmulPlan::make(conformance::random_weights(c), {Activation::kFp8}, pool);
  ASSERT_FALSE(zeros.has_value());
  EXPECT_EQ(zeros.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(zeros.error().message().find("zero points"), std::string::npos) << zeros.error().message();
}

}  // namespace
}  // namespace lowbit
