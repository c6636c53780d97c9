// VectorOps of every ISA against the reference loops: equal bit for bit, for any length, with NaN,
// infinities and denormals. And the reference's exp against libm.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/registry.h"
#include "kernels/tables.h"
#include "kernels/vector_math.h"

namespace lowbit {
namespace {

struct Subject {
  const char* name;
  Isa isa;
  const VectorOps* ops;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (Isa isa : {Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    if (all.empty() ? &vector_ops(isa) != &kRefVectorOps : &vector_ops(isa) != all.back().ops)
      all.push_back({isa_name(isa), isa, &vector_ops(isa)});
  return all;
}

enum class Fill { kNormal, kWide, kSpecial };

std::vector<float> random_floats(Rng& rng, int64_t n, Fill fill) {
  static const float kSpecials[] = {0.0f,
                                    -0.0f,
                                    std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN(),
                                    std::numeric_limits<float>::denorm_min(),
                                    -1e-40f,
                                    std::numeric_limits<float>::max(),
                                    65519.0f,
                                    65520.0f,
                                    1e-8f,
                                    -87.0f,
                                    -104.5f,
                                    88.8f};
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) {
    v = float(rng.normal());
    if (fill == Fill::kWide) v = std::ldexp(v, int(rng.below(280)) - 140);
    if (fill == Fill::kSpecial && rng.below(8) == 0) v = kSpecials[rng.below(std::size(kSpecials))];
  }
  return x;
}

/// Any NaN equals any NaN; everything else bit for bit.
bool same(float a, float b) { return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same(const std::vector<float>& want, const std::vector<float>& got, const char* what) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(same(want[i], got[i])) << what << " element " << i << " of " << want.size() << ": " << want[i] << " vs "
                                       << got[i];
}

class VectorOpsConformance : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam().isa)) GTEST_SKIP() << "this machine lacks " << GetParam().name;
  }
  /// Calls check(n, fill) for many lengths, all tails among them.
  template <class F>
  void for_sizes(F check) {
    for (Fill fill : {Fill::kNormal, Fill::kWide, Fill::kSpecial}) {
      for (int64_t n = 0; n < 70; ++n) check(n, fill);
      for (int64_t n : {127, 128, 576, 1000, 1536, 1543}) check(n, fill);
    }
  }
  const VectorOps& ref = kRefVectorOps;
  const VectorOps& ops = *GetParam().ops;
  Rng rng{7};
};

TEST_P(VectorOpsConformance, Elementwise) {
  for_sizes([&](int64_t n, Fill fill) {
    const auto x = random_floats(rng, n, fill), w = random_floats(rng, n, fill);
    std::vector<float> want(x.size()), got(x.size());
    ref.silu_mul(x.data(), w.data(), n, want.data());
    ops.silu_mul(x.data(), w.data(), n, got.data());
    expect_same(want, got, "silu_mul");
    if (n > 0) {
      ref.rms_norm(x.data(), w.data(), n, 1e-5f, want.data());
      ops.rms_norm(x.data(), w.data(), n, 1e-5f, got.data());
      expect_same(want, got, "rms_norm");
    }
    want = got = w;
    ref.add(x.data(), n, want.data());
    ops.add(x.data(), n, got.data());
    expect_same(want, got, "add");
    want = got = x;
    ref.scale(want.data(), 0.3f, n);
    ops.scale(got.data(), 0.3f, n);
    expect_same(want, got, "scale");
    std::vector<float> sin(static_cast<size_t>(n / 2)), cos(sin.size());
    for (size_t i = 0; i < sin.size(); ++i) {
      sin[i] = std::sin(float(i));
      cos[i] = std::cos(float(i));
    }
    want = got = x;
    ref.rope(want.data(), cos.data(), sin.data(), n / 2);
    ops.rope(got.data(), cos.data(), sin.data(), n / 2);
    expect_same(want, got, "rope");
  });
}

TEST_P(VectorOpsConformance, Reductions) {
  for_sizes([&](int64_t n, Fill fill) {
    const auto x = random_floats(rng, n, fill), w = random_floats(rng, n, fill);
    EXPECT_TRUE(same(ref.dot_f32(x.data(), w.data(), n), ops.dot_f32(x.data(), w.data(), n))) << n;
    EXPECT_TRUE(same(ref.max(x.data(), n), ops.max(x.data(), n))) << n;
    for (float shift : {0.0f, 3.0f, -80.0f}) {
      std::vector<float> want = x, got = x;
      const float a = ref.exp_sum(want.data(), shift, n), b = ops.exp_sum(got.data(), shift, n);
      EXPECT_TRUE(same(a, b)) << n << ": " << a << " vs " << b;
      expect_same(want, got, "exp_sum");
    }
  });
}

TEST_P(VectorOpsConformance, HalfConversions) {
  for_sizes([&](int64_t n, Fill fill) {
    auto x = random_floats(rng, n, fill);
    std::vector<uint16_t> want(x.size()), got(x.size());
    ref.f32_to_f16(x.data(), n, want.data());
    ops.f32_to_f16(x.data(), n, got.data());
    EXPECT_EQ(want, got);
  });
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> want(all.size()), got(all.size());
  ref.f16_to_f32(all.data(), 65536, want.data());
  ops.f16_to_f32(all.data(), 65536, got.data());
  expect_same(want, got, "f16_to_f32");
}

TEST_P(VectorOpsConformance, AttentionRows) {
  for (Fill fill : {Fill::kNormal, Fill::kSpecial})
    for (int64_t d : {1, 8, 15, 16, 24, 40, 64, 80, 96, 128, 131})
      for (int64_t count : {0, 1, 2, 3, 4, 5, 7, 8, 31, 64}) {
        const int64_t stride = d + 3;
        const auto q = random_floats(rng, d, fill), p = random_floats(rng, count, fill);
        const auto rows = random_floats(rng, stride * count, fill);
        std::vector<uint16_t> half(rows.size());
        std::vector<float> rounded(rows.size());
        ref.f32_to_f16(rows.data(), int64_t(rows.size()), half.data());
        ref.f16_to_f32(half.data(), int64_t(rows.size()), rounded.data());
        std::vector<float> want(p.size()), got(p.size()), got32(p.size()), want32(p.size());
        ref.dot_f16_rows(q.data(), half.data(), stride, count, d, 0.125f, want.data());
        ops.dot_f16_rows(q.data(), half.data(), stride, count, d, 0.125f, got.data());
        ref.dot_f32_rows(q.data(), rounded.data(), stride, count, d, 0.125f, want32.data());
        ops.dot_f32_rows(q.data(), rounded.data(), stride, count, d, 0.125f, got32.data());
        expect_same(want, got, "dot_f16_rows");
        expect_same(want, want32, "ref dot_f32_rows");
        expect_same(want, got32, "dot_f32_rows");
        std::vector<float> y = q, z = q, y32 = q, z32 = q;
        ref.axpy_f16_rows(p.data(), half.data(), stride, count, d, y.data());
        ops.axpy_f16_rows(p.data(), half.data(), stride, count, d, z.data());
        ref.axpy_f32_rows(p.data(), rounded.data(), stride, count, d, y32.data());
        ops.axpy_f32_rows(p.data(), rounded.data(), stride, count, d, z32.data());
        expect_same(y, z, "axpy_f16_rows");
        expect_same(y, y32, "ref axpy_f32_rows");
        expect_same(y, z32, "axpy_f32_rows");
      }
}

TEST_P(VectorOpsConformance, QuantizeRow) {
  for_sizes([&](int64_t n, Fill fill) {
    auto x = random_floats(rng, n, fill);
    if (fill == Fill::kSpecial && rng.below(2) == 0)
      for (float& v : x)
        if (!(std::fabs(v) < 1e30f)) v = 1.5f;  // also rows without NaN and infinity
    const int64_t padded = (n + 63) / 64 * 64;
    std::vector<int8_t> want(static_cast<size_t>(padded), 99), got(want.size(), 98);
    float a = 0, b = 0;
    ref.quantize_row_int8(x.data(), n, padded, want.data(), &a);
    ops.quantize_row_int8(x.data(), n, padded, got.data(), &b);
    EXPECT_TRUE(same(a, b)) << n;
    EXPECT_EQ(want, got) << n;
  });
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, VectorOpsConformance, testing::ValuesIn(subjects()),
                         [](const auto& subject) { return std::string(subject.param.name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VectorOpsConformance);

TEST(VectorOpsReference, ExpIsWithinTwoUlp) {
  double worst = 0;
  for (int64_t i = 0; i <= 87 * 20000; ++i) {
    const float x = -float(i) / 20000.0f;
    const double want = std::exp(double(x));
    const float nearest = float(want);
    const double ulp = double(std::nextafter(nearest, 2.0f)) - double(nearest);
    worst = std::max(worst, std::fabs(double(exp_f32(x)) - want) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.4);  // no better than rounding: the measure itself works
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp_f32(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_NEAR(exp_f32(88.0f) / std::exp(88.0), 1.0, 1e-6);
  EXPECT_GT(exp_f32(-103.0f), 0.0f);  // denormal results exist
}

TEST(VectorOpsReference, ReductionsAndNorms) {
  const std::vector<float> x = {3, -4}, one = {1, 2};
  std::vector<float> y(2);
  kRefVectorOps.rms_norm(x.data(), one.data(), 2, 0.0f, y.data());
  EXPECT_NEAR(y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(y[1], -8 / std::sqrt(12.5), 1e-6);
  EXPECT_EQ(kRefVectorOps.max(x.data(), 0), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(kRefVectorOps.max(x.data(), 2), 3.0f);
}

TEST(VectorOpsReference, QuantizeRowEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  int8_t codes[64];
  float scale = 5;
  const std::vector<float> row = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -0.5f};
  kRefVectorOps.quantize_row_int8(row.data(), 6, 64, codes, &scale);
  EXPECT_EQ(scale, 1.0f);
  const int8_t want[7] = {127, -127, 0, 2, 2, 0, 0};  // ties to even, then padding
  EXPECT_EQ(std::memcmp(codes, want, 7), 0);
  const float zeros[3] = {0, -0.0f, 0};
  kRefVectorOps.quantize_row_int8(zeros, 3, 64, codes, &scale);
  EXPECT_EQ(scale, 0.0f);
  const float with_nan[2] = {1, nan};
  kRefVectorOps.quantize_row_int8(with_nan, 2, 64, codes, &scale);
  EXPECT_TRUE(std::isnan(scale));
  const float with_inf[2] = {1, -inf};
  kRefVectorOps.quantize_row_int8(with_inf, 2, 64, codes, &scale);
  EXPECT_EQ(scale, inf);
  EXPECT_EQ(codes[0], 0);
}

}  // namespace
}  // namespace lowbit
