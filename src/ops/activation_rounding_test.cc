#include "ops/activation_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/registry.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

std::vector<float> random_floats(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = float(rng.normal());
  return x;
}

struct Rounded {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

Rounded room(int64_t k, int64_t group) {
  const auto groups = size_t((k + group - 1) / group);
  return {std::vector<int8_t>(size_t(k + 64), 99), std::vector<float>(groups), std::vector<int32_t>(groups)};
}

Rounded round(const std::vector<float>& v, int64_t group, int largest) {
  Rounded r = room(int64_t(v.size()), group);
  round_groups(v.data(), int64_t(v.size()), group, int64_t(r.codes.size()), largest, r.codes.data(), r.scales.data(),
               r.sums.data());
  return r;
}

TEST(ActivationRounding, With127LevelsIsTheDefault) {
  Rng rng(1);
  for (const int64_t k : {1, 31, 64, 577})
    for (const int64_t group : {32, 577}) {
      auto v = random_floats(rng, k);
      if (k > 40) v[3] = 0, v[40] = std::numeric_limits<float>::quiet_NaN();
      if (k == 577) {
        v[200] = std::numeric_limits<float>::infinity();
        std::fill(v.begin() + 320, v.begin() + 352, 0.0f);
        std::fill(v.begin() + 352, v.begin() + 384, 1e-37f);  // a group below the floor, and one above
        std::fill(v.begin() + 384, v.begin() + 416, -1e-30f);
      }
      Rounded want = room(k, group);
      ref_table().vector->quantize_groups_int8(v.data(), nullptr, 1.0f, k, group, int64_t(want.codes.size()), false,
                                               want.codes.data(), want.scales.data(), want.sums.data());
      const Rounded got = round(v, group, 127);
      EXPECT_EQ(got.codes, want.codes);
      EXPECT_EQ(got.sums, want.sums);
      EXPECT_EQ(std::memcmp(got.scales.data(), want.scales.data(), 4 * got.scales.size()), 0);
    }
}

TEST(ActivationRounding, FourBits) {
  const Rounded r = round({7, -3.5f, 2.5f, -7, 0.4f, 0, 0, 0, 14, 1}, 8, 7);
  EXPECT_EQ(std::vector<int8_t>(r.codes.begin(), r.codes.begin() + 11),
            (std::vector<int8_t>{7, -4, 2, -7, 0, 0, 0, 0, 7, 0, 0}));
  EXPECT_EQ(r.scales, (std::vector<float>{1, 2}));
  EXPECT_EQ(r.sums, (std::vector<int32_t>{-2, 7}));
  const Rounded tiny = round({1e-37f, -1e-37f, 0, 0}, 4, 7);  // counts as all zero
  EXPECT_EQ(tiny.codes[0], 0);
  EXPECT_EQ(tiny.codes[1], 0);
  EXPECT_EQ(tiny.scales[0], 0);
}

TEST(ActivationRounding, ClipsTheLargest) {
  std::vector<float> v(1000, 1.0f);
  v[7] = -50, v[100] = 3, v[200] = -2;
  auto one = v;
  clip_row(one.data(), 1000, 0.001);
  EXPECT_EQ(one[7], -3);
  EXPECT_EQ(one[100], 3);
  auto two = v;
  clip_row(two.data(), 1000, 0.002);
  EXPECT_EQ(two[7], -2);
  EXPECT_EQ(two[100], 2);
  auto few = std::vector<float>{5, 1, -9};  // at least one column
  clip_row(few.data(), 3, 0.001);
  EXPECT_EQ(few, (std::vector<float>{5, 1, -5}));
  auto none = v;
  clip_row(none.data(), 1000, 0);
  EXPECT_EQ(none, v);
  v[0] = std::numeric_limits<float>::quiet_NaN();
  clip_row(v.data(), 1000, 0.5);
  EXPECT_EQ(v[7], -50);
}

/// Rows as the linear layers see them: normed on the way or before, all at once or column by column, on every
/// instruction set.
TEST(ActivationRounding, SameBitsOnEveryPath) {
  Rng rng(2);
  const int64_t k = 576, m = 5, n = 48;
  ThreadPool pool(3);
  const auto x = random_floats(rng, m * k), weight = random_floats(rng, k);
  TimedMatmul spec;
  spec.format = FormatId::kInt3;
  spec.group = 64;
  spec.n = n;
  spec.k = k;
  for (const ActivationRounding rounding : {ActivationRounding{7, 0}, ActivationRounding{127, 0.001}}) {
    std::vector<float> want;
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      const int64_t group = rounding.clipped > 0 ? 0 : 32;
      const auto w = random_weight(spec, pool);
      const auto plan = MatmulPlan::make(*w, {Activation::kInt8, isa, false, group}, pool);
      ASSERT_TRUE(plan);
      std::vector<float> normed(x.size()), y(size_t(m * n)), fused(y.size());
      rms_norm_rows(vector_ops(isa), x.data(), k, weight.data(), m, k, 1e-5f, normed.data(), k, pool);
      ActivationRows rows, together;
      rows.set_rounding(rounding);
      together.set_rounding(rounding);
      ASSERT_TRUE(rows.prepare(Activation::kInt8, normed.data(), m, k, k, isa, pool));
      ASSERT_TRUE(plan->run(rows, nullptr, y.data(), n, pool));
      ASSERT_TRUE(together.prepare_normed(x.data(), weight.data(), 1e-5f, m, k, k, isa, pool));
      ASSERT_TRUE(together.prepare_for(*plan, pool));
      ASSERT_TRUE(plan->run(together, nullptr, fused.data(), n, pool));
      EXPECT_EQ(y, fused);
      if (want.empty()) want = y;
      EXPECT_EQ(y, want) << isa_name(isa);
      if (group > 0) {
        ASSERT_TRUE(rows.expect_codes(m, k, {.group = group}, isa));
        for (int64_t r = 0; r < m; ++r)
          for (int64_t c = 0; c < k; c += 64) rows.write_codes(r, c, 64, normed.data() + r * k + c);
        ASSERT_TRUE(rows.prepare_for(*plan, pool));
        ASSERT_TRUE(plan->run(rows, nullptr, fused.data(), n, pool));
        EXPECT_EQ(fused, want) << isa_name(isa);
      }
      rows.set_rounding({});
      ASSERT_TRUE(rows.prepare(Activation::kInt8, normed.data(), m, k, k, isa, pool));
      ASSERT_TRUE(plan->run(rows, nullptr, fused.data(), n, pool));
      EXPECT_NE(fused, want);
    }
  }
}

TEST(ActivationRounding, HalvesAreTheNearestOnes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {
      1,    1.0F + 0x1p-11F, 1.0F + 3 * 0x1p-11F, 65519, 65520, -65520, 0x1p-25F, 3 * 0x1p-26F,
      kInf, 0x1.01p0F,       0x1.03p0F,           -0.0F};
  std::vector<float> f16(x.size()), bf16(x.size());
  round_to_halves(x.data(), int64_t(x.size()), Halves::kF16, f16.data());
  EXPECT_EQ(f16, (std::vector<float>{1, 1, 1.0F + 0x1p-9F, 65504, kInf, -kInf, 0, 0x1p-24F, kInf, 0x1.01p0F, 0x1.03p0F,
                                     -0.0F}));
  round_to_halves(x.data(), int64_t(x.size()), Halves::kBf16, bf16.data());
  EXPECT_EQ(bf16,
            (std::vector<float>{1, 1, 1, 65536, 65536, -65536, 0x1p-25F, 3 * 0x1p-26F, kInf, 1, 0x1.04p0F, -0.0F}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Halves to : {Halves::kF16, Halves::kBf16}) {
    float y = 0;
    round_to_halves(&nan, 1, to, &y);
    EXPECT_TRUE(std::isnan(y));
  }
}

/// x in 16 bits, then the exact path: on every instruction set the reference's bits for x that was rounded before, and
/// x itself stays as it is.
TEST(ActivationRounding, HalvesGoTheExactPath) {
  Rng rng(3);
  const int64_t k = 203, m = 5, n = 48, ldx = 210;
  ThreadPool pool(3);
  const auto x = random_floats(rng, m * ldx);
  TimedMatmul spec;
  spec.group = 64;
  spec.n = n;
  spec.k = k;
  for (const FormatId format : {FormatId::kInt4, FormatId::kTernaryPacked, FormatId::kFp8, FormatId::kCodebook4})
    for (const Halves to : {Halves::kF16, Halves::kBf16}) {
      spec.format = format;
      const auto w = random_weight(spec, pool);
      std::vector<float> rounded(x.size()), want(size_t(m * n)), plain(want.size());
      round_to_halves(x.data(), int64_t(x.size()), to, rounded.data());
      const auto reference = MatmulPlan::make(*w, {Activation::kF32, Isa::kScalar, true}, pool);
      ActivationRows rows;
      ASSERT_TRUE(rows.prepare(Activation::kF32, rounded.data(), m, k, ldx, Isa::kScalar, pool));
      ASSERT_TRUE(reference->run(rows, nullptr, want.data(), n, pool));
      ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), m, k, ldx, Isa::kScalar, pool));
      ASSERT_TRUE(reference->run(rows, nullptr, plain.data(), n, pool));
      EXPECT_NE(plain, want);
      for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
        if (!isa_available(isa)) continue;
        const auto plan = MatmulPlan::make(*w, {Activation::kF32, isa}, pool);
        std::vector<float> y(want.size());
        rows.set_rounding({.halves = to});
        ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), m, k, ldx, isa, pool));
        ASSERT_TRUE(plan->run(rows, nullptr, y.data(), n, pool));
        EXPECT_EQ(y, want) << isa_name(isa) << ", " << format_info(format).name << " by " << halves_name(to);
        rows.set_rounding({});
      }
    }
}

}  // namespace
}  // namespace lowbit
