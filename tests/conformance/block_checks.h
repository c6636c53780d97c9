// Checks that kernels of steps and of Gram matrices give the bits of the CPU. Included by a test that has an
// OnDevice<T>: a copy of a vector where the kernels of lowbit::cuda find it, with data() and back(). No include guard:
// each such test has its own.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/weight_parts.h"
#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_block_api.h"
#include "kernels/cuda_matmul_api.h"
#include "kernels/cuda_step_api.h"
#include "kernels/registry.h"
#include "kernels/vector_math.h"
#include "ops/activation_rounding.h"
#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tests/conformance/exact_codes.h"
#include "tests/conformance/float_checks.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
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

  const OnDevice<uint8_t> values(parts->values);
  const OnDevice<float> scales(parts->scales), offsets(parts->offsets), b(bias), on_device(x);
  OnDevice<float> y(std::vector<float>(wanted.size(), -7.0f));
  cuda::F32Matmul call;
  call.values = values.data();
  call.type = parts->type;
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
  for (const FormatId format : {FormatId::kF32, FormatId::kF16, FormatId::kBf16, FormatId::kFp8, FormatId::kInt3})
    for (const auto& [m, k, group] : {std::array<int64_t, 3>{7, 12000, 64},  // no room for x in a thread block
                                      {9, 300, 32},
                                      {16, 1100, 128},
                                      {17, 577, 64},
                                      {33, 320, Scaling::kAll},
                                      {64, 96, 32}}) {
      Case c;
      c.format = format;
      c.scaling.k_block = group;
      c.m = m;
      c.n = 100;
      c.k = k;
      c.bias = m % 2 == 0;
      c.seed = uint64_t(m);
      if (!testing::Test::HasFatalFailure()) check_matmul(c);
    }
}

/// A plain double loop. `n`: of y, of so many columns, and x; 0: of x alone.
void check_gram(int64_t rows, int64_t n, int64_t k, int64_t chunk) {
  Rng rng(static_cast<uint64_t>(rows * 1000 + k));
  const int64_t width = n > 0 ? n : k;
  const std::vector<float> x = random_floats(rng, rows * k), y = n > 0 ? random_floats(rng, rows * n) : x;
  std::vector<double> sum(static_cast<size_t>(width * k), 0.25);
  std::vector<float> wanted(sum.size());
  const double scale = 1.0 / static_cast<double>(rows);
  for (int64_t i = 0; i < width; ++i)
    for (int64_t j = 0; j < k; ++j) {
      double total = 0.25;
      for (int64_t first = 0; first < rows; first += chunk) {
        float s = 0;
        for (int64_t r = first; r < std::min(rows, first + chunk); ++r)
          s = std::fma(y[static_cast<size_t>(r * width + i)], x[static_cast<size_t>(r * k + j)], s);
        total += static_cast<double>(s);
      }
      wanted[static_cast<size_t>(i * k + j)] = static_cast<float>(total * scale);
    }
  const OnDevice<float> on_device(x), others(y);
  const auto workspace_bytes = cuda::gram_workspace_bytes(rows, k, n, chunk);
  OnDevice<float> workspace(std::vector<float>(static_cast<size_t>(workspace_bytes) / sizeof(float))), h(wanted);
  OnDevice<double> sums(sum);
  ASSERT_TRUE(cuda::add_gram(
      {on_device.data(), rows, k, chunk, sums.data(), workspace.data(), nullptr, n > 0 ? others.data() : nullptr, n}));
  ASSERT_TRUE(cuda::finish_gram(sums.data(), n, k, scale, h.data(), nullptr));
  expect_same(h.back(), wanted, std::to_string(rows) + " rows of " + std::to_string(n) + " and " + std::to_string(k));
}

void check_rows() {
  const VectorOps& ops = *ref_table().vector;
  Rng rng(7);
  constexpr int64_t kRows = 13, kWidth = 120;
  const std::vector<float> x = random_floats(rng, kRows * kWidth), weight = random_floats(rng, kWidth);
  const OnDevice<float> wd(weight), source(x);
  OnDevice<float> xd(x);

  std::vector<float> wanted(x.size());
  for (int64_t r = 0; r < kRows; ++r)
    ops.rms_norm(&x[size_t(r * kWidth)], weight.data(), kWidth, 1e-5f, &wanted[size_t(r * kWidth)]);
  ASSERT_TRUE(cuda::norm_rows(source.data(), wd.data(), kRows, kWidth, 1e-5f, xd.data(), nullptr));
  expect_same(xd.back(), wanted, "norm");
  for (const int64_t width : {511, 512, 577, 4096, 14336, 70001}) {  // in place, a block per row but for the ends
    constexpr int64_t kWide = 3;
    std::vector<float> wide = random_floats(rng, kWide * width);
    const std::vector<float> by = random_floats(rng, width);
    const OnDevice<float> by_d(by);
    OnDevice<float> wide_d(wide);
    for (int64_t r = 0; r < kWide; ++r)
      ops.rms_norm(&wide[size_t(r * width)], by.data(), width, 1e-5f, &wide[size_t(r * width)]);
    ASSERT_TRUE(cuda::norm_rows(wide_d.data(), by_d.data(), kWide, width, 1e-5f, wide_d.data(), nullptr));
    expect_same(wide_d.back(), wide, "norm of wide rows");
  }

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

  wanted[0] = -3.0f, wanted[1] = NAN, wanted[2] = -0.0f, wanted[3] = 1e25f;
  OnDevice<float> relu(wanted);
  ops.squared_relu_mul(wanted.data(), x.data(), kRows * kWidth, wanted.data());
  ASSERT_TRUE(cuda::squared_relu_rows(relu.data(), source.data(), kRows * kWidth, nullptr));
  expect_same(relu.back(), wanted, "gate by squared ReLU");

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

/// Codes of random rows with all kinds of groups and largest codes; clipped rows.
void check_codes() {
  Rng rng(5);
  for (const int largest : {127, 7})
    for (const auto& [k, group] :
         {std::pair<int64_t, int64_t>{64, 32}, {70, 32}, {300, 40}, {33, 0}, {600, 0}, {1, 0}}) {
      constexpr int64_t kRows = 5;
      const int64_t ld = (k + 63) / 64 * 64, width = group > 0 ? group : k, groups = (k + width - 1) / width;
      std::vector<float> x = random_floats(rng, kRows * k);
      x[size_t(k)] = NAN;
      for (int64_t i = 0; i < k; ++i) x[size_t(2 * k + i)] = 1e-38f;
      x[size_t(4 * k - 1)] = INFINITY;
      std::vector<int8_t> wanted(size_t(kRows * ld), 3);
      std::vector<float> scales(size_t(kRows * groups));
      std::vector<int32_t> sums(scales.size());
      for (int64_t r = 0; r < kRows; ++r)
        round_groups(&x[size_t(r * k)], k, width, ld, largest, &wanted[size_t(r * ld)], &scales[size_t(r * groups)],
                     &sums[size_t(r * groups)]);
      const OnDevice<float> xd(x);
      OnDevice<int8_t> codes(std::vector<int8_t>(wanted.size(), 5));
      OnDevice<float> factors(std::vector<float>(scales.size()));
      ASSERT_TRUE(cuda::round_rows({xd.data(), kRows, k, group, largest, codes.data(), ld, factors.data(), nullptr}));
      EXPECT_EQ(codes.back(), wanted) << k << " by " << group;
      expect_same(factors.back(), scales, "scales of x");
      const auto out = std::clamp<int64_t>(int64_t(std::ceil(0.01 * double(k))), 1, std::max<int64_t>(k - 1, 1));
      if (k < 2) continue;
      OnDevice<float> clipped(x);
      ASSERT_TRUE(cuda::clip_rows(xd.data(), kRows, k, out, clipped.data(), nullptr));
      for (int64_t r = 0; r < kRows; ++r) clip_row(&x[size_t(r * k)], k, 0.01);
      expect_same(clipped.back(), x, "clipped rows");
    }
}

/// Each row of x times `by`: what codes with one scale of a normed row are made of.
std::vector<float> times_rows(std::vector<float> x, const std::vector<float>& by) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= by[i % by.size()];
  return x;
}
/// The norm's factor of each row of x [rows, k], into its scale.
void scale_by_norm(const std::vector<float>& x, int64_t k, std::vector<float>& scales) {
  for (size_t r = 0; r < scales.size(); ++r) scales[r] *= kRefVectorOps.rms_factor(&x[r * size_t(k)], k, 1e-5f);
}

/// Norm and codes in one launch against one after the other.
void check_norm_codes(int64_t k, int64_t group, bool exact_scales) {
  constexpr int64_t kRows = 5;
  Rng rng(uint64_t(8 * k + group));
  const int64_t ld = (k + 63) / 64 * 64, width = group > 0 ? group : k, groups = (k + width - 1) / width;
  std::vector<float> x = random_floats(rng, kRows * k);
  x[size_t(k)] = NAN;
  for (int64_t i = 0; i < k; ++i) x[size_t(2 * k + i)] = 0;
  x[size_t(4 * k - 1)] = INFINITY;
  const OnDevice<float> xd(x), by(random_floats(rng, k));
  OnDevice<float> normed(std::vector<float>(x.size()));
  ASSERT_TRUE(cuda::norm_rows(xd.data(), by.data(), kRows, k, 1e-5f, normed.data(), nullptr));
  const std::vector<float> rows = group == 0 ? times_rows(x, by.back()) : normed.back();
  std::vector<int8_t> wanted(size_t(kRows * ld), 3);
  std::vector<float> scales(size_t(kRows * groups));
  std::vector<int32_t> sums(scales.size());
  for (int64_t r = 0; r < kRows; ++r) {
    const float* const row = &rows[size_t(r * k)];
    int8_t* const to = &wanted[size_t(r * ld)];
    if (exact_scales)
      conformance::exact_codes(row, k, ld, to, &scales[size_t(r * groups)]);
    else
      round_groups(row, k, width, ld, 127, to, &scales[size_t(r * groups)], &sums[size_t(r * groups)]);
  }
  if (group == 0) scale_by_norm(x, k, scales);
  OnDevice<int8_t> codes(std::vector<int8_t>(wanted.size(), 5));
  OnDevice<float> factors(std::vector<float>(scales.size()));
  ASSERT_TRUE(cuda::norm_codes(
      {xd.data(), by.data(), 1e-5f, kRows, k, group, codes.data(), ld, factors.data(), nullptr, exact_scales}));
  EXPECT_EQ(codes.back(), wanted) << k << " by " << group << (exact_scales ? ", exact scales" : "");
  expect_same(factors.back(), scales, "scales of normed x");
}

void check_norm_codes() {
  for (const auto& [k, group] :
       {std::pair<int64_t, int64_t>{64, 32}, {70, 32}, {300, 40}, {33, 0}, {600, 0}, {1, 0}, {1700, 64}})
    check_norm_codes(k, group, false);
  for (const int64_t k : {1, 30, 33, 64, 70, 128, 130, 255, 300, 512, 1699, 1700, 4096}) check_norm_codes(k, 32, true);
}

void check_gather() {
  Rng rng(6);
  const std::vector<float> table = random_floats(rng, 40 * 33);
  const std::vector<int32_t> index = {39, 0, 7, 7, 12};
  std::vector<float> wanted;
  for (const int32_t i : index) wanted.insert(wanted.end(), table.begin() + i * 33, table.begin() + (i + 1) * 33);
  const OnDevice<float> from(table);
  const OnDevice<int32_t> at(index);
  OnDevice<float> to(std::vector<float>(wanted.size()));
  ASSERT_TRUE(cuda::gather_rows(from.data(), at.data(), int64_t(index.size()), 33, to.data(), nullptr));
  expect_same(to.back(), wanted, "rows of a table");
}

}  // namespace
}  // namespace lowbit
