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
#include "base/float.h"
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
    ref.squared_relu_mul(x.data(), w.data(), n, want.data());
    ops.squared_relu_mul(x.data(), w.data(), n, got.data());
    expect_same(want, got, "squared_relu_mul");
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
}

/// Pages of a span with what SpanArgs points to.
struct Span {
  int64_t d, queries, ldq, ldo;
  std::vector<uint16_t> pages[2];  // keys, values
  std::vector<float> q;
  std::vector<int32_t> begin, end;

  struct Outcome {
    std::vector<float> m, l, o;
  };
  Outcome run(const VectorOps& ops) const {
    Outcome r{std::vector<float>(size_t(queries), 5), std::vector<float>(size_t(queries), 6),
              std::vector<float>(size_t(queries * ldo), 7)};
    std::vector<float> scratch(size_t(queries * kAttentionSpan + kKvPage * ldo), std::nanf(""));
    SpanArgs a;
    for (int64_t p = 0; p < kSpanPages; ++p) {
      a.keys[p] = pages[0].data() + p * kKvPage * d;
      a.values[p] = pages[1].data() + p * kKvPage * d;
    }
    a.d = d, a.scale = 0.125f, a.queries = queries, a.q = q.data(), a.ldq = ldq;
    a.begin = begin.data(), a.end = end.data(), a.m = r.m.data(), a.l = r.l.data(), a.o = r.o.data(), a.ldo = ldo;
    a.scratch = scratch.data();
    ops.attend_span(a);
    for (int64_t j = 0; j < queries; ++j)  // behind d anything may stand
      for (int64_t i = d; i < ldo; ++i) r.o[size_t(j * ldo + i)] = 0;
    return r;
  }
};

Span random_span(Rng& rng, int64_t d, int64_t queries, Fill fill) {
  Span s{d, queries, d + 1, (d + 15) / 16 * 16, {}, random_floats(rng, queries * (d + 1), fill), {}, {}};
  for (auto& page : s.pages) {
    const auto rows = random_floats(rng, kAttentionSpan * d, fill);
    page.resize(rows.size());
    kRefVectorOps.f32_to_f16(rows.data(), int64_t(rows.size()), page.data());
  }
  return s;
}

void expect_same_span(const Span& s, const VectorOps& ref, const VectorOps& ops, const char* what) {
  const auto want = s.run(ref), got = s.run(ops);
  for (size_t j = 0; j < want.m.size(); ++j)
    ASSERT_EQ(want.m[j], got.m[j]) << what << " " << s.begin[j] << ".." << s.end[j];  // either zero will do
  expect_same(want.l, got.l, what);
  expect_same(want.o, got.o, what);
}

TEST_P(VectorOpsConformance, AttentionSpans) {
  for (Fill fill : {Fill::kNormal, Fill::kSpecial})
    for (int64_t queries : {0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25, 50})
      for (int64_t d : {1, 8, 15, 16, 24, 64, 80, 112, 128, 131}) {
        Span s = random_span(rng, d, queries, fill);
        const auto below = [&](int64_t n) { return int32_t(rng.below(uint32_t(n))); };
        const int32_t seen = 1 + below(kAttentionSpan), first = below(seen), window = 1 + below(100);
        for (int64_t j = 0; j < queries; ++j) {  // a decoding step: every head sees the same
          s.begin.push_back(first);
          s.end.push_back(seen);
        }
        expect_same_span(s, ref, ops, "the same positions");
        const int32_t heads = 1 + below(4), row = below(int32_t(kAttentionSpan)) - 20;
        for (int64_t j = 0; j < queries; ++j) {  // rows of a prompt, the first perhaps before this span
          const int32_t end = row + int32_t(j) / heads;
          s.end[size_t(j)] = std::clamp<int32_t>(end, 0, kAttentionSpan);
          s.begin[size_t(j)] = 0;
        }
        expect_same_span(s, ref, ops, "causal rows");
        for (int64_t j = 0; j < queries; ++j)
          s.begin[size_t(j)] = std::max<int32_t>(0, row + int32_t(j) / heads - window);
        expect_same_span(s, ref, ops, "windows");
        for (int64_t j = 0; j < queries; ++j) {
          s.begin[size_t(j)] = below(kAttentionSpan);
          s.end[size_t(j)] = s.begin[size_t(j)] + below(kAttentionSpan + 1 - s.begin[size_t(j)]);
        }
        expect_same_span(s, ref, ops, "any ranges");
        if (HasFatalFailure()) return;
      }
}

TEST_P(VectorOpsConformance, AttentionSpansAtTheirEdges) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  for (int64_t queries : {1, 6, 20}) {
    Span s = random_span(rng, 16, queries, Fill::kNormal);
    s.begin.assign(size_t(queries), 3);
    s.end.assign(size_t(queries), 200);
    const auto set_q = [&](float v) { s.q.assign(s.q.size(), v); };
    const auto set_key = [&](int64_t t, float v) {
      for (int64_t i = 0; i < 16; ++i) s.pages[0][size_t((t / 64 * 16 + i) * 64 + t % 64)] = f32_to_f16(v);
    };
    const auto set_value = [&](int64_t t, float v) {
      for (int64_t i = 0; i < 16; ++i) s.pages[1][size_t(t * 16 + i)] = f32_to_f16(v);
    };
    // Scores that are hidden may be anything.
    for (int64_t t : {0, 2, 200, 255}) {
      set_key(t, nan);
      set_value(t, t == 0 ? kInf : nan);
    }
    const auto seen = s.run(ops);
    for (float v : seen.o) ASSERT_TRUE(std::isfinite(v));
    expect_same_span(s, ref, ops, "hidden NaN");
    // Scores of -inf alone: no weight, no NaN.
    set_q(1.0f);
    for (int64_t t = 3; t < 200; ++t) set_key(t, -kInf);
    const auto none = s.run(ops);
    for (int64_t j = 0; j < queries; ++j) {
      EXPECT_EQ(none.m[size_t(j)], -kInf);
      EXPECT_EQ(none.l[size_t(j)], 0.0f);
      EXPECT_EQ(none.o[size_t(j * 16)], 0.0f);
    }
    expect_same_span(s, ref, ops, "-inf");
    // One finite score among them takes all.
    set_key(77, 0.5f);
    const auto one = s.run(ops);
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(one.o[size_t(i)], f16_to_f32(s.pages[1][size_t(77 * 16 + i)]));
    EXPECT_EQ(one.l[0], 1.0f);
    // NaN goes through, and +inf becomes it.
    for (float v : {nan, kInf}) {
      set_key(100, v);
      EXPECT_TRUE(std::isnan(s.run(ops).l[0])) << v;
      EXPECT_TRUE(std::isnan(s.run(ops).o[0])) << v;
      expect_same_span(s, ref, ops, "NaN");
    }
  }
}

TEST_P(VectorOpsConformance, AttentionReadsEveryHalf) {
  for (int64_t d : {1, 16}) {  // converted beforehand, and as they are
    Span s = random_span(rng, d, 1, Fill::kNormal);
    s.begin.assign(1, 5);
    s.end.assign(1, 6);
    for (uint32_t code = 0; code < 65536; ++code) {
      for (int64_t i = 0; i < d; ++i) s.pages[1][size_t(5 * d + i)] = uint16_t(code);
      const auto got = s.run(ops);
      ASSERT_TRUE(same(got.o[0], f16_to_f32(uint16_t(code))) || (got.o[0] == 0 && (code & 0x7fff) == 0)) << code;
    }
  }
}

TEST_P(VectorOpsConformance, SpansMerge) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (Fill fill : {Fill::kNormal, Fill::kSpecial})
    for (int64_t d : {1, 8, 15, 16, 24, 64, 80, 128, 131})
      for (float m : {0.0f, -3.0f, 7.5f, 200.0f, -kInf, kInf})
        for (float before : {0.0f, 1.0f, -200.0f, -kInf, kInf}) {
          const auto o = random_floats(rng, d, fill), y = random_floats(rng, d, fill);
          std::vector<float> want = y, got = y, w{before, 3.0f}, g = w;
          ref.merge_span(m, 2.0f, o.data(), d, w.data(), want.data());
          ops.merge_span(m, 2.0f, o.data(), d, g.data(), got.data());
          expect_same(want, got, "merge_span");
          expect_same(w, g, "running");
          ASSERT_FALSE(HasFatalFailure());
        }
  // A span without weight leaves the rest as it is, and the other way round.
  float running[2] = {2.0f, 3.0f}, o = 0, y = 5;
  ops.merge_span(-kInf, 0, &o, 1, running, &y);
  EXPECT_TRUE(running[0] == 2 && running[1] == 3 && y == 5);
  running[0] = -kInf, running[1] = 0, y = 0, o = 4;
  ops.merge_span(2.0f, 3.0f, &o, 1, running, &y);
  EXPECT_TRUE(running[0] == 2 && running[1] == 3 && y == 4);
  running[0] = -kInf, running[1] = 0, y = 0, o = 0;
  ops.merge_span(-kInf, 0, &o, 1, running, &y);
  EXPECT_TRUE(running[0] == -kInf && running[1] == 0 && y == 0);
}

struct Quantized {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

Quantized quantize(const VectorOps& ops, const std::vector<float>& x, const float* weight, float factor, int64_t group,
                   bool exact_scales = false) {
  const int64_t n = int64_t(x.size()), padded = (n + 63) / 64 * 64;
  const size_t groups = size_t((n + group - 1) / group);
  Quantized q{std::vector<int8_t>(size_t(padded) + 1, 99), std::vector<float>(groups, -1),
              std::vector<int32_t>(groups)};
  ops.quantize_groups_int8(x.data(), weight, factor, n, group, padded, exact_scales, q.codes.data(), q.scales.data(),
                           q.sums.data());
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

TEST_P(VectorOpsConformance, QuantizeGroupsWithExactScales) {
  for_sizes([&](int64_t n, Fill fill) {
    if (n == 0) return;
    const auto x = random_floats(rng, n, fill), weight = random_floats(rng, n, Fill::kNormal);
    for (int64_t group : {int64_t{32}, int64_t{128}, n})
      for (const float* w : {static_cast<const float*>(nullptr), weight.data()}) {
        const Quantized want = quantize(ref, x, w, 1.5f, group, true), got = quantize(ops, x, w, 1.5f, group, true);
        expect_same(want.scales, got.scales, "scales");
        EXPECT_EQ(want.codes, got.codes) << n << " group " << group;
        EXPECT_EQ(want.sums, got.sums) << n << " group " << group;
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
}

TEST(VectorOpsReference, SquaresOfANormAreAddedAsNeighbours) {
  Rng rng{3};
  for (const int n : {1, 64, 127, 128, 129, 300, 1000}) {
    const auto x = random_floats(rng, n, Fill::kNormal);
    const auto squares = [&](const auto& self, int first, int count) -> float {
      if (count > 1) return self(self, first, count / 2) + self(self, first + count / 2, count / 2);
      float sum = 0;
      for (int i = first; i < n; i += 128) sum = std::fma(x[size_t(i)], x[size_t(i)], sum);
      return sum;
    };
    EXPECT_EQ(kRefVectorOps.rms_factor(x.data(), n, 1e-5f),
              1.0f / std::sqrt(squares(squares, 0, 128) / float(n) + 1e-5f));
  }
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
