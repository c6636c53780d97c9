// Operations that do several things in one pass give the bits of those things one after the other.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/registry.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/rope_append.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

std::vector<float> random_floats(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = float(rng.normal());
  return x;
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx})
    if (isa_available(isa)) all.push_back(isa);
  return all;
}

MatmulPlan plan_of(FormatId format, int64_t n, int64_t k, const MatmulOptions& options, ThreadPool& pool,
                   int64_t group = 64) {
  TimedMatmul spec;
  spec.format = format;
  spec.group = group;
  spec.n = n;
  spec.k = k;
  auto plan = MatmulPlan::make(*random_weight(spec, pool), options, pool);
  EXPECT_TRUE(plan.has_value());
  return std::move(*plan);
}

TEST(Fused, NormAndQuantization) {
  Rng rng(1);
  for (const Isa isa : isas())
    for (const int64_t m : {1, 3, 40})
      for (const int64_t k : {1, 33, 576, 1000}) {
        ThreadPool pool(3);
        const auto x = random_floats(rng, m * k), weight = random_floats(rng, k);
        std::vector<float> normed(x.size()), want(size_t(m * 48)), got(want.size());
        for (const int64_t group : {0, 32}) {
          const MatmulPlan plan = plan_of(FormatId::kInt4, 48, k, {Activation::kInt8, isa, false, group}, pool);
          ActivationRows apart, fused;
          if (group == 0)  // codes of x * weight, whose scale takes the norm's factor
            for (size_t i = 0; i < x.size(); ++i) normed[i] = x[i] * weight[i % size_t(k)];
          else
            rms_norm_rows(vector_ops(isa), x.data(), k, weight.data(), m, k, 1e-5f, normed.data(), k, pool);
          ASSERT_TRUE(apart.prepare(Activation::kInt8, normed.data(), m, k, k, isa, pool));
          ASSERT_TRUE(plan.run(apart, nullptr, want.data(), 48, pool));
          ASSERT_TRUE(fused.prepare_normed(x.data(), weight.data(), 1e-5f, m, k, k, isa, pool));
          ASSERT_TRUE(fused.prepare_for(plan, pool));
          ASSERT_TRUE(plan.run(fused, nullptr, got.data(), 48, pool));
          for (int64_t r = 0; group == 0 && r < m; ++r) {
            const float factor = vector_ops(isa).rms_factor(x.data() + r * k, k, 1e-5f);
            for (size_t i = size_t(48 * r); i < size_t(48 * r + 48); ++i) {
              EXPECT_NEAR(got[i], want[i] * factor, 4e-7 * std::fabs(want[i] * factor)) << isa_name(isa) << " " << k;
              want[i] = got[i];
            }
          }
          ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * 4), 0) << isa_name(isa) << " " << m << " " << k;
        }
      }
}

TEST(Fused, SeveralProductsAtOnce) {
  Rng rng(2);
  const int64_t k = 320;
  const std::array<int64_t, 3> n = {200, 33, 1};
  for (const Isa isa : isas())
    for (const int64_t m : {0, 1, 2, 70})
      for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        const auto x = random_floats(rng, m * k), bias = random_floats(rng, 200);
        std::vector<MatmulPlan> plans;
        for (size_t i = 0; i < n.size(); ++i)
          plans.push_back(
              plan_of(i == 1 ? FormatId::kInt2 : FormatId::kInt4, n[i], k, {Activation::kInt8, isa, false, 32}, pool));
        ActivationRows rows;
        ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), m, k, k, isa, pool));
        std::array<std::vector<float>, 3> want, got;
        std::array<MatmulCall, 3> calls;
        for (size_t i = 0; i < n.size(); ++i) {
          want[i].resize(size_t(m * n[i]));
          got[i].resize(want[i].size());
          ASSERT_TRUE(plans[i].run(rows, i == 0 ? bias.data() : nullptr, want[i].data(), n[i], pool));
          calls[i] = {&plans[i], i == 0 ? bias.data() : nullptr, got[i].data(), n[i]};
        }
        ASSERT_TRUE(run_matmuls(calls, rows, pool));
        EXPECT_EQ(want, got) << isa_name(isa) << " " << m;
      }
}

TEST(Fused, GatedProductsAndTheCodesBehind) {
  Rng rng(3);
  const int64_t k = 192;
  for (const Isa isa : isas())
    for (const int64_t width : {64, 150, 1536})
      for (const int64_t m : {1, 5, 60})
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          const VectorOps& ops = vector_ops(isa);
          const MatmulOptions options{Activation::kInt8, isa, false, 32};
          const MatmulPlan gate = plan_of(FormatId::kInt4, width, k, options, pool);
          const MatmulPlan up = plan_of(FormatId::kInt2, width, k, options, pool);
          const MatmulPlan down = plan_of(FormatId::kTernary, 40, width, options, pool);
          const auto x = random_floats(rng, m * k);
          std::vector<float> g(size_t(m * width)), u(g.size()), y(size_t(m * 40)), g2 = g, u2 = u, y2 = y, y3 = y;
          ActivationRows rows, behind, expected;
          ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), m, k, k, isa, pool));
          ASSERT_TRUE(gate.run(rows, nullptr, g.data(), width, pool));
          ASSERT_TRUE(up.run(rows, nullptr, u.data(), width, pool));
          const GluFunction glu = m == 5 ? ops.squared_relu_mul : ops.silu_mul;
          glu(g.data(), u.data(), m * width, g.data());
          ASSERT_TRUE(behind.prepare(Activation::kInt8, g.data(), m, width, width, isa, pool));
          ASSERT_TRUE(down.run(behind, nullptr, y.data(), 40, pool));
          ASSERT_TRUE(expected.expect_codes(m, width, {.group = 32}, isa));
          ASSERT_TRUE(run_gated({&gate, nullptr, g2.data(), width}, {&up, nullptr, u2.data(), width}, glu, rows,
                                &expected, pool));
          EXPECT_EQ(g, g2) << isa_name(isa);
          ASSERT_TRUE(down.run(expected, nullptr, y2.data(), 40, pool));
          EXPECT_EQ(y, y2) << isa_name(isa) << " " << m << " " << width;
          // Codes of another layout are not there, and nothing to make them from.
          const MatmulPlan other = plan_of(FormatId::kInt4, 40, width, {Activation::kInt8, isa, false, 0}, pool);
          const Status status = other.run(expected, nullptr, y3.data(), 40, pool);
          ASSERT_FALSE(status.has_value());
          EXPECT_EQ(status.error().code, ErrorCode::kShapeMismatch);
        }
}

/// Codes of 128 columns with exact scales, more than the panels' chunks have.
TEST(Fused, CodesWithExactScalesBehindGatedProducts) {
  Rng rng(5);
  const int64_t k = 192;
  for (const Isa isa : isas())
    for (const int64_t width : {150, 256, 1600})
      for (const int64_t m : {1, 5, 60})
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          MatmulOptions options{Activation::kInt8, isa, false, kExactScaleColumns};
          options.exact_scales = true;
          const MatmulPlan gate = plan_of(FormatId::kInt4, width, k, {Activation::kInt8, isa, false, 32}, pool);
          const MatmulPlan up = plan_of(FormatId::kInt2, width, k, {Activation::kInt8, isa, false, 32}, pool);
          const MatmulPlan down = plan_of(FormatId::kInt4, 40, width, options, pool, kExactScaleColumns);
          const auto x = random_floats(rng, m * k);
          std::vector<float> g(size_t(m * width)), u(g.size()), y(size_t(m * 40)), y2 = y, y3 = y;
          ActivationRows rows, behind, expected;
          ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), m, k, k, isa, pool));
          EXPECT_EQ(down.code_layout(), (CodeLayout{.group = kExactScaleColumns, .exact_scales = true}));
          ASSERT_TRUE(expected.expect_codes(m, width, down.code_layout(), isa));
          EXPECT_EQ(expected.expected_group(), kExactScaleColumns);
          ASSERT_TRUE(run_gated({&gate, nullptr, g.data(), width}, {&up, nullptr, u.data(), width},
                                vector_ops(isa).silu_mul, rows, &expected, pool));
          ASSERT_TRUE(down.run(expected, nullptr, y.data(), 40, pool));
          ASSERT_TRUE(behind.prepare(Activation::kInt8, g.data(), m, width, width, isa, pool));
          ASSERT_TRUE(down.run(behind, nullptr, y2.data(), 40, pool));
          EXPECT_EQ(y, y2) << isa_name(isa) << " " << m << " " << width;
          // Codes with other scales are not there.
          options.exact_scales = false;
          const MatmulPlan other = plan_of(FormatId::kInt4, 40, width, options, pool, kExactScaleColumns);
          const Status status = other.run(expected, nullptr, y3.data(), 40, pool);
          ASSERT_FALSE(status.has_value());
          EXPECT_EQ(status.error().code, ErrorCode::kShapeMismatch);
        }
}

TEST(Fused, RotationAndNewRows) {
  Rng rng(4);
  const int64_t m = 70, heads = 4, kv_heads = 2, d = 24, half = d / 2;
  const auto cos = random_floats(rng, m * half), sin = random_floats(rng, m * half);
  const auto q = random_floats(rng, m * heads * d), k = random_floats(rng, m * kv_heads * d),
             v = random_floats(rng, m * kv_heads * d);
  for (const Isa isa : isas()) {
    ThreadPool pool(3);
    const VectorOps& ops = vector_ops(isa);
    auto apart = KvCache::make(uniform_kv_groups(2, kv_heads, d), m),
         fused = KvCache::make(uniform_kv_groups(2, kv_heads, d), m);
    ASSERT_TRUE(apart && fused && apart->reserve(m) && fused->reserve(m));
    std::vector<float> q1 = q, k1 = k, q2 = q, k2 = k, v2 = v;
    rope_rows(ops, q1.data(), heads * d, m, heads, half, cos.data(), sin.data(), pool);
    rope_rows(ops, k1.data(), kv_heads * d, m, kv_heads, half, cos.data(), sin.data(), pool);
    apart->store(ops, 1, 0, m, k1.data(), v.data(), kv_heads * d, pool);
    const SequenceRows sequence{&*fused, 0, 0, m};
    rotate_and_store(ops, {1, heads, q2.data(), k2.data(), v2.data(), cos.data(), sin.data()}, {&sequence, 1}, pool);
    EXPECT_EQ(q1, q2);
    EXPECT_EQ(v, v2);
    for (int64_t h = 0; h < kv_heads; ++h)
      for (int64_t page = 0; page < 2; ++page) {
        const auto bytes = size_t(2 * d * kKvPage);
        EXPECT_EQ(std::memcmp(apart->keys_f16(1, h, page), fused->keys_f16(1, h, page), bytes), 0);
        EXPECT_EQ(std::memcmp(apart->values_f16(1, h, page), fused->values_f16(1, h, page), bytes), 0);
        EXPECT_NE(fused->keys_f16(1, h, page)[0], 0);
        EXPECT_EQ(fused->keys_f16(0, h, page)[0], 0);  // no other layer's
      }
  }
}

TEST(Fused, RotationAndNewRowsOfAPackedGroup) {
  // Heads of 48: Hadamard transforms of 16 elements.
  Rng rng(5);
  const int64_t m = 70, heads = 4, kv_heads = 2, d = 48, half = d / 2;
  const auto cos = random_floats(rng, m * half), sin = random_floats(rng, m * half);
  const auto q = random_floats(rng, m * heads * d), k = random_floats(rng, m * kv_heads * d),
             v = random_floats(rng, m * kv_heads * d);
  auto groups = uniform_kv_groups(2, kv_heads, d);
  groups[0].format = *parse_kv_format("k4v2", 0);
  ASSERT_EQ(transform_block(groups[0]), 16);
  const VectorOps& ref = vector_ops(Isa::kScalar);
  for (const Isa isa : isas()) {
    ThreadPool pool(3);
    const VectorOps& ops = vector_ops(isa);
    auto apart = KvCache::make(groups, m), fused = KvCache::make(groups, m);
    ASSERT_TRUE(apart && fused && apart->reserve(m) && fused->reserve(m));
    std::vector<float> q1 = q, k1 = k, v1 = v, q2 = q, k2 = k, v2 = v;
    rope_rows(ref, q1.data(), heads * d, m, heads, half, cos.data(), sin.data(), pool);
    rope_rows(ref, k1.data(), kv_heads * d, m, kv_heads, half, cos.data(), sin.data(), pool);
    for (std::vector<float>* const x : {&q1, &k1, &v1}) ref.hadamard(x->data(), int64_t(x->size()), 16);
    apart->store(ref, 1, 0, m, k1.data(), v1.data(), kv_heads * d, pool);
    const SequenceRows sequence{&*fused, 0, 0, m};
    rotate_and_store(ops, {1, heads, q2.data(), k2.data(), v2.data(), cos.data(), sin.data()}, {&sequence, 1}, pool);
    EXPECT_EQ(q1, q2);
    EXPECT_NE(v, v2);
    for (int64_t h = 0; h < kv_heads; ++h)
      for (int64_t page = 0; page < 2; ++page) {
        const auto bytes = size_t(2 * d * kKvPage);
        EXPECT_EQ(std::memcmp(apart->keys_f16(1, h, page), fused->keys_f16(1, h, page), bytes), 0);
        EXPECT_EQ(std::memcmp(apart->values_f16(1, h, page), fused->values_f16(1, h, page), bytes), 0);
      }
    // Once more gives the values back, but for rounding.
    transform_back(ops, groups[0], m, kv_heads * d, v2.data(), pool);
    for (size_t i = 0; i < v.size(); ++i) ASSERT_NEAR(v2[i], v[i], 1e-5f);
  }
}

TEST(Fused, GroupsThatAreNoMultipleOfFour) {
  for (const Isa isa : isas()) {
    if (isa == Isa::kScalar) continue;
    ThreadPool pool(2);
    TimedMatmul spec;
    spec.format = FormatId::kTernaryPacked;
    spec.n = 40;
    spec.k = 275;
    spec.group = 30;
    const auto plan = MatmulPlan::make(*random_weight(spec, pool), {Activation::kInt8, isa, false, 0}, pool);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->kernel_name().find("__ref"), std::string::npos) << plan->kernel_name();
    EXPECT_NE(plan->reason().find("padded to 32 columns"), std::string::npos) << plan->reason();
  }
}

}  // namespace
}  // namespace lowbit
