// What a calibration's kernels must give: the bits of the CPU. Included by a test that has an OnDevice<T>: a copy of a vector where
// the kernels of lowbit::cuda find it, with data() and back(). No include guard: each such test has its own.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_block_api.h"
#include "kernels/registry.h"
#include "kernels/vector_math.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/weight_parts.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

std::vector<float> random_floats(Rng& rng, int64_t count, double deviation = 1.5) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(deviation * rng.normal());
  return values;
}

/// Bits, but for the sign of a zero and what a NaN carries.
void expect_same(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool same = std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0 || (got[i] == 0 && wanted[i] == 0) ||
                      (std::isnan(got[i]) && std::isnan(wanted[i]));
    ASSERT_TRUE(same) << what << ": element " << i << " is " << got[i] << ", not " << wanted[i];
  }
}

void check_matmul(const Case& c) {
  const QTensor w = conformance::random_weights(c);
  const auto parts = split_weight(w, one_thread());
  ASSERT_TRUE(parts.has_value());
  Rng rng(c.seed, 5);
  const std::vector<float> x = random_floats(rng, c.m * c.k), bias = random_floats(rng, c.n);
  const float* const wanted_bias = c.bias ? bias.data() : nullptr;
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.reference = true;
  const auto plan = MatmulPlan::make(w, options, one_thread());
  ASSERT_TRUE(plan.has_value());
  ActivationRows rows;
  std::vector<float> wanted(static_cast<size_t>(c.m * c.n));
  ASSERT_TRUE(rows.prepare(Activation::kF32, x.data(), c.m, c.k, c.k, Isa::kScalar, one_thread()));
  ASSERT_TRUE(plan->run(rows, wanted_bias, wanted.data(), c.n, one_thread()));

  const OnDevice<float> values(parts->values), scales(parts->scales), offsets(parts->offsets), b(bias), on_device(x);
  OnDevice<float> y(std::vector<float>(wanted.size(), -7.0f));
  cuda::F32Matmul call;
  call.values = values.data();
  call.scales = parts->scales.empty() ? nullptr : scales.data();
  call.offsets = parts->offsets.empty() ? nullptr : offsets.data();
  call.bias = c.bias ? b.data() : nullptr;
  call.n = c.n;
  call.k = c.k;
  call.group = parts->group;
  call.x = on_device.data();
  call.y = y.data();
  call.m = c.m;
  const auto status = cuda::f32_matmul(call);
  ASSERT_TRUE(status.has_value()) << status.error().message();
  expect_same(y.back(), wanted, c.name());
}

/// Random formats, scalings and shapes, then whole tiles of a model's shapes.
void check_matmuls(uint64_t cases, int64_t rows) {
  for (uint64_t seed = 0; seed < cases && !testing::Test::HasFatalFailure(); ++seed) {
    Case c = conformance::random_case(seed);
    if (c.m > 0 && c.n > 0) check_matmul(c);
  }
  for (const FormatId format :
       {FormatId::kF32, FormatId::kBf16, FormatId::kInt4, FormatId::kInt2Odd, FormatId::kInt3}) {
    Case c;
    c.format = format;
    c.scaling.k_block = 64;
    c.m = rows;
    c.n = 192;
    c.k = 576;
    if (!testing::Test::HasFatalFailure()) check_matmul(c);
  }
}

/// A plain double loop. `crossed`: of y and x, else of x alone.
void check_moments(int64_t rows, int64_t k, int64_t chunk, bool crossed) {
  Rng rng(static_cast<uint64_t>(rows * 1000 + k));
  const std::vector<float> x = random_floats(rng, rows * k), y = crossed ? random_floats(rng, rows * k) : x;
  std::vector<double> sum(static_cast<size_t>(k * k), 0.25);
  std::vector<float> wanted(sum.size());
  const double scale = 1.0 / static_cast<double>(rows);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; ++j) {
      double total = 0.25;
      for (int64_t first = 0; first < rows; first += chunk) {
        float s = 0;
        for (int64_t r = first; r < std::min(rows, first + chunk); ++r)
          s = std::fma(y[static_cast<size_t>(r * k + i)], x[static_cast<size_t>(r * k + j)], s);
        total += static_cast<double>(s);
      }
      wanted[static_cast<size_t>(i * k + j)] = static_cast<float>(total * scale);
    }
  const OnDevice<float> on_device(x), others(y);
  const auto workspace_bytes = cuda::moments_workspace_bytes(rows, k, chunk);
  OnDevice<float> workspace(std::vector<float>(static_cast<size_t>(workspace_bytes) / sizeof(float))), h(wanted);
  OnDevice<double> sums(sum);
  ASSERT_TRUE(cuda::add_moments(
      {on_device.data(), rows, k, chunk, sums.data(), workspace.data(), nullptr, crossed ? others.data() : nullptr}));
  ASSERT_TRUE(cuda::finish_moments(sums.data(), k, scale, !crossed, h.data(), nullptr));
  expect_same(h.back(), wanted, std::to_string(rows) + " rows of " + std::to_string(k));
}

void check_rows() {
  const VectorOps& ops = *ref_table().vector;
  Rng rng(7);
  constexpr int64_t kRows = 13, kHeads = 3, kHalf = 20, kPositions = 5, kWidth = 2 * kHeads * kHalf;
  const std::vector<float> x = random_floats(rng, kRows * kWidth), weight = random_floats(rng, kWidth);
  const std::vector<float> cos = random_floats(rng, kPositions * kHalf), sin = random_floats(rng, kPositions * kHalf);
  const OnDevice<float> wd(weight), cd(cos), sd(sin), source(x);
  OnDevice<float> xd(x);

  std::vector<float> wanted(x.size());
  for (int64_t r = 0; r < kRows; ++r)
    ops.rms_norm(&x[size_t(r * kWidth)], weight.data(), kWidth, 1e-5f, &wanted[size_t(r * kWidth)]);
  ASSERT_TRUE(cuda::norm_rows(source.data(), wd.data(), kRows, kWidth, 1e-5f, xd.data(), nullptr));
  expect_same(xd.back(), wanted, "norm");

  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t h = 0; h < kHeads; ++h)
      ops.rope(&wanted[size_t(r * kWidth + h * 2 * kHalf)], &cos[size_t(r % kPositions * kHalf)],
               &sin[size_t(r % kPositions * kHalf)], kHalf);
  ASSERT_TRUE(cuda::rotate_rows({xd.data(), cd.data(), sd.data(), kRows, kHeads, kHalf, kPositions, nullptr}));
  expect_same(xd.back(), wanted, "rotation");

  ops.add(x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::add_rows(source.data(), kRows * kWidth, xd.data(), nullptr));
  expect_same(xd.back(), wanted, "residual");

  for (const auto& [n, block] : {std::pair<int64_t, int64_t>{1536, 512}, {96, 32}, {48, 2}, {4096, 4096}}) {
    std::vector<float> rows = random_floats(rng, 3 * n);
    OnDevice<float> rows_d(rows);
    ops.hadamard(rows.data(), 3 * n, block);
    ASSERT_TRUE(cuda::hadamard_rows(rows_d.data(), 3, n, block, hadamard_scale(block), nullptr));
    expect_same(rows_d.back(), rows, "Hadamard transform");
  }

  wanted[0] = -120.0f, wanted[1] = 95.0f, wanted[2] = 1e-20f, wanted[3] = -87.3f;
  OnDevice<float> gate(wanted);
  ops.silu_mul(wanted.data(), x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::gate_rows(gate.data(), source.data(), kRows * kWidth, nullptr));
  expect_same(gate.back(), wanted, "gate");

  wanted[0] = 7e4f, wanted[1] = 1e-6f, wanted[2] = 3e-8f, wanted[3] = 2049.0f;
  OnDevice<float> halves(wanted);
  for (float& v : wanted) v = f16_to_f32(f32_to_f16(v));
  ASSERT_TRUE(cuda::round_to_f16(halves.data(), kRows * kWidth, nullptr));
  expect_same(halves.back(), wanted, "f16");

  OnDevice<uint64_t> first(std::vector<uint64_t>{~uint64_t{0}});
  ASSERT_TRUE(cuda::find_non_finite(source.data(), kRows * kWidth, 100, first.data(), nullptr));
  EXPECT_EQ(first.back()[0], ~uint64_t{0});
  std::vector<float> bad = x;
  bad[500] = NAN;
  bad[700] = INFINITY;
  const OnDevice<float> bad_rows(bad);
  ASSERT_TRUE(cuda::find_non_finite(bad_rows.data(), kRows * kWidth, 100, first.data(), nullptr));
  EXPECT_EQ(first.back()[0], 600u);
}

void check_attention(int64_t windows, int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  Rng rng(static_cast<uint64_t>(positions));
  const int64_t width = heads * head_dim, kv = kv_heads * head_dim;
  std::vector<float> q = random_floats(rng, windows * positions * width);
  std::vector<float> k = random_floats(rng, windows * positions * kv), v = random_floats(rng, windows * positions * kv);
  v[size_t((positions - 1) * kv)] = INFINITY;  // seen by one row alone
  if (positions > kAttentionSpan) {            // the first span's scores are all -inf for the first kv head
    for (size_t i = 0; i < q.size(); i += size_t(head_dim)) q[i] = std::fabs(q[i]);
    for (int64_t t = 0; t < kAttentionSpan; ++t) k[size_t(t * kv)] = -INFINITY;
  }
  for (auto* x : {&k, &v})
    for (float& e : *x) e = f16_to_f32(f32_to_f16(e));
  const VectorOps& ops = *ref_table().vector;
  const AttentionShape shape{heads, kv_heads, head_dim, static_cast<float>(1 / std::sqrt(double(head_dim)))};
  std::vector<float> wanted(q.size());
  for (int64_t w = 0; w < windows; ++w) {
    auto cache = KvCache::make(uniform_kv_groups(1, kv_heads, head_dim), positions);
    auto attention = Attention::make(ops, shape, one_thread());
    ASSERT_TRUE(cache && attention && cache->reserve(positions) && attention->reserve(positions));
    cache->store(ops, 0, 0, positions, &k[size_t(w * positions * kv)], &v[size_t(w * positions * kv)], kv,
                 one_thread());
    attention->run({0, 0, positions, &q[size_t(w * positions * width)], &wanted[size_t(w * positions * width)]},
                   *cache);
  }
  const OnDevice<float> qd(q), kd(k), vd(v);
  const auto bytes = cuda::attend_workspace_bytes(windows, positions, heads);
  OnDevice<float> scores(std::vector<float>(static_cast<size_t>(bytes) / sizeof(float), NAN)), out(q);
  ASSERT_TRUE(cuda::attend_windows({qd.data(), kd.data(), vd.data(), out.data(), scores.data(), windows, positions,
                                    heads, kv_heads, head_dim, shape.scale, nullptr}));
  expect_same(out.back(), wanted, std::to_string(positions) + " positions of " + std::to_string(head_dim));
}

}  // namespace
}  // namespace lowbit
