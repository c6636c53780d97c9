// VectorOps of every ISA against the reference loops: equal bit for bit, for any length, with NaN,
// infinities and denormals. And the reference's exp against libm.

#include <gtest/gtest.h>

#include <algorithm>
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
    for (int64_t block = 2; n > 0 && block <= (n & -n); block *= 2) {
      want = got = x;
      ref.hadamard(want.data(), n, block);
      ops.hadamard(got.data(), n, block);
      expect_same(want, got, "hadamard");
    }
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
    for (int64_t queries : {0, 1, 2, 3, 4, 5, 7, 8, 13})
      for (int64_t d : {1, 8, 15, 16, 24, 40, 64, 80, 96, 128, 131})
        for (int64_t count : {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64}) {
          const int64_t stride = d + 3, ldq = d + 1, ldp = count + 2;
          const auto q = random_floats(rng, queries * ldq, fill), p = random_floats(rng, queries * ldp, fill);
          const auto rows = random_floats(rng, stride * count, fill);
          std::vector<uint16_t> half(rows.size());
          std::vector<float> rounded(rows.size());
          ref.f32_to_f16(rows.data(), int64_t(rows.size()), half.data());
          ref.f16_to_f32(half.data(), int64_t(rows.size()), rounded.data());
          std::vector<float> want = p, got = p, want32 = p, got32 = p;  // what lies between the rows stays as it is
          ref.dot_f16_rows(q.data(), ldq, queries, half.data(), stride, count, d, 0.125f, want.data(), ldp);
          ops.dot_f16_rows(q.data(), ldq, queries, half.data(), stride, count, d, 0.125f, got.data(), ldp);
          ref.dot_f32_rows(q.data(), ldq, queries, rounded.data(), stride, count, d, 0.125f, want32.data(), ldp);
          ops.dot_f32_rows(q.data(), ldq, queries, rounded.data(), stride, count, d, 0.125f, got32.data(), ldp);
          expect_same(want, got, "dot_f16_rows");
          expect_same(want, want32, "ref dot_f32_rows");
          expect_same(want, got32, "dot_f32_rows");
          std::vector<float> y = q, z = q, y32 = q, z32 = q;
          ref.axpy_f16_rows(p.data(), ldp, queries, half.data(), stride, count, d, y.data(), ldq);
          ops.axpy_f16_rows(p.data(), ldp, queries, half.data(), stride, count, d, z.data(), ldq);
          ref.axpy_f32_rows(p.data(), ldp, queries, rounded.data(), stride, count, d, y32.data(), ldq);
          ops.axpy_f32_rows(p.data(), ldp, queries, rounded.data(), stride, count, d, z32.data(), ldq);
          expect_same(y, z, "axpy_f16_rows");
          expect_same(y, y32, "ref axpy_f32_rows");
          expect_same(y, z32, "axpy_f32_rows");
          if (HasFatalFailure()) return;
        }
}

struct Quantized {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

Quantized quantize(const VectorOps& ops, const std::vector<float>& x, const float* weight, float factor,
                   int64_t group) {
  const int64_t n = int64_t(x.size()), padded = (n + 63) / 64 * 64;
  const size_t groups = size_t((n + group - 1) / group);
  Quantized q{std::vector<int8_t>(size_t(padded) + 1, 99), std::vector<float>(groups, -1),
              std::vector<int32_t>(groups)};
  ops.quantize_groups_int8(x.data(), weight, factor, n, group, padded, q.codes.data(), q.scales.data(), q.sums.data());
  return q;
}

TEST_P(VectorOpsConformance, QuantizeGroups) {
  for_sizes([&](int64_t n, Fill fill) {
    if (n == 0) return;
    auto x = random_floats(rng, n, fill);
    if (fill == Fill::kSpecial && rng.below(2) == 0)
      for (float& v : x)
        if (!(std::fabs(v) < 1e30f)) v = 1.5f;  // also rows without NaN and infinity
    const auto weight = random_floats(rng, n, Fill::kNormal);
    for (int64_t group : {n, int64_t{32}, int64_t{64}, int64_t{20}, int64_t{7}})
      for (const float* w : {static_cast<const float*>(nullptr), weight.data()}) {
        const float factor = ref.rms_factor(x.data(), n, 1e-6f);
        EXPECT_TRUE(same(factor, ops.rms_factor(x.data(), n, 1e-6f))) << n;
        const Quantized want = quantize(ref, x, w, factor, group), got = quantize(ops, x, w, factor, group);
        expect_same(want.scales, got.scales, "scales");
        EXPECT_EQ(want.codes, got.codes) << n << " group " << group;
        EXPECT_EQ(want.sums, got.sums) << n << " group " << group;
        if (w == nullptr) continue;
        // Norm and quantization in one pass are the two after each other.
        std::vector<float> normed(x.size());
        ref.rms_norm(x.data(), w, n, 1e-6f, normed.data());
        const Quantized apart = quantize(ref, normed, nullptr, 1.0f, group);
        expect_same(apart.scales, want.scales, "scales of normed rows");
        EXPECT_EQ(apart.codes, want.codes);
      }
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

TEST(VectorOpsReference, QuantizeEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto quantize_row = [](const std::vector<float>& row) {
    return quantize(kRefVectorOps, row, nullptr, 1.0f, int64_t(row.size()));
  };
  const Quantized ties = quantize_row({127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -0.5f});
  EXPECT_EQ(ties.scales[0], 1.0f);
  const std::vector<int8_t> want = {127, -127, 0, 2, 2, 0, 0};  // ties to even, then padding
  EXPECT_TRUE(std::equal(want.begin(), want.end(), ties.codes.begin()));
  EXPECT_EQ(ties.sums[0], 4);
  EXPECT_EQ(quantize_row({0, -0.0f, 0}).scales[0], 0.0f);
  EXPECT_TRUE(std::isnan(quantize_row({1, nan}).scales[0]));
  const Quantized with_inf = quantize_row({1, -inf});
  EXPECT_EQ(with_inf.scales[0], inf);
  EXPECT_EQ(with_inf.codes[0], 0);
  const Quantized groups = quantize(kRefVectorOps, {1, nan, 2, 4, 8}, nullptr, 1.0f, 2);
  EXPECT_TRUE(std::isnan(groups.scales[0]));  // and no other
  EXPECT_EQ(groups.scales[2], 8.0f / 127.0f);
  EXPECT_EQ(groups.sums[1], 64 + 127);
}

}  // namespace
}  // namespace lowbit
