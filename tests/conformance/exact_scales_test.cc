// Scales of x that sums keep exact (docs/adr/0225-scales-of-x-that-sums-keep-exact.md): what they are, and products of
// every instruction set with them, whose bits are those of one sum and of four.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/float.h"
#include "kernels/registry.h"
#include "ops/matmul.h"
#include "tests/conformance/exact_codes.h"
#include "tests/conformance/matmul_cases.h"
#if defined(LOWBIT_HAS_EMULATED_AMX)
#include "tests/conformance/amx_emulated/table.h"
#endif

namespace lowbit {
namespace {

using conformance::Case;
using conformance::Fill;

struct Coded {
  std::vector<int8_t> codes;
  float scale = -1;
};
Coded code(const std::vector<float>& x, bool exact_scales) {
  const auto n = int64_t(x.size());
  Coded c{std::vector<int8_t>(x.size())};
  int32_t sum = 0;
  kRefVectorOps.quantize_groups_int8(x.data(), nullptr, 1.0f, n, n, n, exact_scales, c.codes.data(), &c.scale, &sum);
  return c;
}

/// The next number of six bits, codes that stay within 127 and half a step, and sums of 128 products by values up to 16
/// that come to the same in any order: docs/numerics.md#activations.
TEST(ExactScales, KeepSumsOf128Columns) {
  Rng rng{11};
  for (int round = 0; round < 4000; ++round) {
    const float size = std::ldexp(1.0f, int(rng.below(200)) - 110);
    std::vector<float> x(128);
    for (float& v : x) v = float(rng.normal()) * size;
    if (round % 3 == 0) x[size_t(rng.below(128))] *= 100;
    const Coded plain = code(x, false), exact = code(x, true);
    int e = 0;
    const float mantissa = std::frexp(exact.scale, &e) * 64;
    EXPECT_EQ(mantissa, std::floor(mantissa)) << exact.scale;
    EXPECT_GE(exact.scale, plain.scale);
    EXPECT_LE(exact.scale, plain.scale * (1 + 1.0f / 32));
    const bool largest = round % 2 == 0;
    float by_32 = 0;
    int whole = 0;
    for (int j = 0; j < 4; ++j) {
      int sum = 0;
      for (int i = 32 * j; i < 32 * j + 32; ++i) {
        const int q = exact.codes[size_t(i)];
        EXPECT_LE(std::abs(q), 127);
        EXPECT_LE(std::fabs(double(x[size_t(i)]) - double(q) * double(exact.scale)), 0.5000001 * double(exact.scale));
        sum += largest ? 16 * (j % 2 == 0 ? 127 : -127) : q * (int(rng.below(33)) - 16);
      }
      by_32 = std::fma(float(sum), exact.scale, by_32);
      whole += sum;
    }
    EXPECT_EQ(by_32, float(whole) * exact.scale);
  }
}

TEST(ExactScales, OfNoNumbersAndOfZerosAreThoseOfOthers) {
  for (const float special : {0.0f, 1e-40f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::vector<float> x(128, special);
    const Coded plain = code(x, false), exact = code(x, true);
    EXPECT_TRUE(plain.scale == exact.scale || (std::isnan(plain.scale) && std::isnan(exact.scale))) << special;
    EXPECT_EQ(plain.codes, exact.codes);
  }
}

ThreadPool& pool() {
  static ThreadPool two(2);
  return two;
}

std::vector<float> bias_of(const Case& c) {
  Rng rng(c.seed, 4);
  std::vector<float> bias(size_t(c.n));
  for (float& b : bias) b = float(rng.normal());
  return bias;
}

std::vector<float> product(const Case& c, const QTensor& w, const std::vector<float>& x, Isa isa, bool reference,
                           const KernelTable* table = nullptr) {
  MatmulOptions options{Activation::kInt8, isa, reference, kExactScaleColumns, table};
  options.exact_scales = true;
  const auto plan = MatmulPlan::make(w, options, pool());
  EXPECT_TRUE(plan.has_value()) << c.name();
  if (!plan) return {};
  EXPECT_TRUE(plan->code_layout().exact_scales);
  EXPECT_NE(plan->kernel_name().find("_a8g128_"), std::string::npos) << plan->kernel_name();
  ActivationRows rows;
  EXPECT_TRUE(rows.prepare(Activation::kInt8, x.data(), c.m, c.k, c.k, isa, pool()));
  std::vector<float> y(size_t(c.m * c.n));
  EXPECT_TRUE(plan->run(rows, c.bias ? bias_of(c).data() : nullptr, y.data(), c.n, pool()));
  return y;
}

/// docs/numerics.md#matmul with a scale of x per 32 columns, each of which is a copy of that of 128.
std::vector<float> by_groups_of_32(const Case& c, const QTensor& w, const std::vector<float>& x) {
  const ValueTensor values = *unpack(w);
  const float* const value_of = format_ops(w.format).values;
  const std::vector<float> bias = bias_of(c);
  const int64_t groups = ceil_div(c.k, int64_t{32});
  std::vector<int8_t> xq(static_cast<size_t>(c.k));
  std::vector<float> xs(static_cast<size_t>(groups)), y;
  for (int64_t m = 0; m < c.m; ++m) {
    conformance::exact_codes(x.data() + m * c.k, c.k, c.k, xq.data(), xs.data());
    for (int64_t n = 0; n < c.n; ++n) {
      float acc = 0, t = 0, t_x = 0;
      for (int64_t j = 0; j < groups; ++j) {
        int sum = 0, sum_x = 0;
        for (int64_t k = 32 * j; k < std::min(c.k, 32 * j + 32); ++k) {
          sum += int(value_of[values.codes[size_t(n * c.k + k)]]) * xq[size_t(k)];
          sum_x += xq[size_t(k)];
        }
        t = std::fma(float(sum), xs[size_t(j)], t);
        t_x = std::fma(float(sum_x), xs[size_t(j)], t_x);
        if (j % 4 != 3 && j + 1 != groups) continue;
        acc = std::fma(t, w.scale(n, j / 4), acc);
        if (c.scaling.zero != ZeroKind::kNone) acc = std::fma(t_x, w.offset(n, j / 4), acc);
        t = t_x = 0;
      }
      y.push_back(acc + (c.bias ? bias[size_t(n)] : 0.0f));
    }
  }
  return y;
}

void expect_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_TRUE(f32_to_bits(got[i]) == f32_to_bits(want[i]) || (std::isnan(got[i]) && std::isnan(want[i])))
        << what << ": y[" << i << "] is " << got[i] << ", not " << want[i];
}

Case exact_case(uint64_t seed) {
  Rng rng(seed, 9);
  Case c;
  c.seed = seed;
  c.format = conformance::pick(
      rng, {FormatId::kInt4, FormatId::kInt4, FormatId::kUint4, FormatId::kInt3, FormatId::kInt3Odd, FormatId::kInt2,
            FormatId::kInt2Odd, FormatId::kTernary, FormatId::kTernaryPacked, FormatId::kBinary});
  c.m = conformance::pick<int64_t>(rng, {1, 1, 2, 3, 5, 8, 33, 40});
  c.n = c.ldy = 1 + int64_t(rng.below(70));
  c.k = conformance::pick<int64_t>(rng, {256, 384, 1152, 129 + int64_t(rng.below(500))});
  c.ldx = c.k;
  c.bias = rng.below(2) == 0;
  c.weights = conformance::pick(rng, {Fill::kNormal, Fill::kExtreme});
  c.activations = conformance::pick(rng, {Fill::kNormal, Fill::kNormal, Fill::kExtreme, Fill::kDenormal});
  c.scaling.k_block = 128;
  c.scaling.n_block = conformance::pick<int64_t>(rng, {1, 1, 1, 3, Scaling::kAll});
  c.scaling.scale = conformance::pick(rng, {ScaleKind::kF16, ScaleKind::kF32, ScaleKind::kBf16});
  c.scaling.zero = conformance::pick(
      rng, {ZeroKind::kNone, ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8, ZeroKind::kPointF16});
  return c;
}

TEST(ExactScales, ProductsOfEveryInstructionSetAreThoseOfGroupsOf32) {
  for (uint64_t seed = 0; seed < 400 && !HasFatalFailure(); ++seed) {
    const Case c = exact_case(seed);
    const QTensor w = conformance::random_weights(c);
    ASSERT_TRUE(takes_exact_scales(w)) << c.name();
    std::vector<float> x = conformance::random_activations(c);
    x.resize(size_t(c.m * c.k));
    if (seed % 5 == 0) {  // but none so large that a sum of 32 columns becomes infinite
      Rng rng(seed, 10);
      const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -0.0f,
                                1e-45f,
                                0x1p-120f,
                                0x1p112f};
      for (const float special : specials) x[size_t(rng.below(x.size()))] = special;
    }
    const std::vector<float> want = product(c, w, x, Isa::kScalar, true);
    expect_bits(by_groups_of_32(c, w, x), want, "groups of 32, " + c.name());
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
      if (isa_available(isa))
        expect_bits(product(c, w, x, isa, false), want, isa_name(isa) + std::string(", ") + c.name());
#if defined(LOWBIT_HAS_EMULATED_AMX)
    if (isa_available(Isa::kAvx512) && c.m * c.n * c.k <= 600000)
      expect_bits(product(c, w, x, Isa::kAvx512, false, &kAmxEmulatedTable), want, "amx emulated, " + c.name());
#endif
  }
}

/// Why the scale has six bits: one that divides by 127 gives sums that depend on their order.
TEST(ExactScales, OthersWouldNotDo) {
  Rng rng{12};
  int different = 0;
  for (int round = 0; round < 100; ++round) {
    const float scale = float(0.5 + rng.uniform()) / 127;
    float by_32 = 0;
    int whole = 0;
    for (int j = 0; j < 4; ++j) {
      const int sum = int(rng.below(100000)) - 50000;
      by_32 = std::fma(float(sum), scale, by_32);
      whole += sum;
    }
    different += by_32 != float(whole) * scale;
  }
  EXPECT_GT(different, 10);
}

}  // namespace
}  // namespace lowbit
