// 1-bit weights times 1-bit activations on the GPU against plain loops.

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>

#include "kernels/cuda_api.h"
#include "tests/conformance/cuda/on_device.h"
#include "tests/conformance/matmul_cases.h"

namespace lowbit {
namespace {

using conformance::Case;
using conformance::on_device;
using cuda::Element;

std::vector<float> random_bias(const Case& c) {
  std::vector<float> bias(size_t(c.n));
  Rng rng(c.seed, 4);
  for (float& b : bias) b = float(rng.normal());
  return bias;
}

/// Bits times bits against plain loops: zeros of both signs are +1, the scale is the mean magnitude in the stated
/// order.
TEST(BinaryMatmul, EqualsPlainLoops) {
  LOWBIT_NEEDS_GPU();
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 70, 203},
                                {1, 4096, 4096},
                                {5, 33, 1024},
                                {16, 300, 5000},
                                {70, 130, 2000},
                                {257, 520, 700},
                                {1, 1, 1}}) {
    Case c;
    c.format = FormatId::kBinary;
    c.m = m;
    c.n = c.ldy = n;
    c.k = c.ldx = k;
    const QTensor w = conformance::random_weights(c);
    std::vector<float> x = conformance::random_activations(c);
    for (size_t i = 0; i < x.size(); i += 17) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
    const auto bias = random_bias(c);
    std::vector<float> scales(size_t(cuda::factor_rows(n)));
    for (int64_t r = 0; r < n; ++r) scales[size_t(r)] = w.scale(r, 0);
    const Buffer codes = on_device(w.codes.data(), size_t(w.codes.size())), xs = on_device(x.data(), 4 * x.size()),
                 ws = on_device(scales.data(), 4 * scales.size()), b = on_device(bias.data(), 4 * bias.size());
    auto tiles = cuda::allocate(cuda::binary_tile_bytes(n, k), "test"),
         ones = cuda::allocate(4 * cuda::factor_rows(n), "test"),
         bits = cuda::allocate(m * cuda::binary_row_bytes(k), "test"), x_scales = cuda::allocate(4 * m, "test"),
         x_ones = cuda::allocate(4 * m, "test"), y = cuda::allocate(4 * m * n, "test");
    ASSERT_TRUE(tiles && ones && bits && x_scales && x_ones && y);
    ASSERT_TRUE(cuda::binary_relayout(codes.as<uint8_t>(), row_bytes(c.format, k), n, k, tiles->as<uint8_t>(),
                                      ones->as<int32_t>(), nullptr));
    ASSERT_TRUE(cuda::binarize_activations(xs.data(), Element::kF32, m, k, k, bits->as<uint8_t>(),
                                           x_scales->as<float>(), x_ones->as<int32_t>(), nullptr));
    cuda::BinaryMatmul call;
    call.tiles = tiles->as<uint8_t>();
    call.ones = ones->as<int32_t>();
    call.scales = ws.as<float>();
    call.bias = b.as<float>();
    call.x = bits->as<uint8_t>();
    call.x_scales = x_scales->as<float>();
    call.x_ones = x_ones->as<int32_t>();
    call.m = m;
    call.n = call.ldy = n;
    call.k = k;
    call.y = y->data();
    ASSERT_TRUE(cuda::binary_matmul(call));
    ASSERT_TRUE(cuda::synchronize(nullptr));
    std::vector<float> got(size_t(m * n));
    ASSERT_TRUE(cuda::download(got.data(), *y, 4 * m * n));
    std::vector<uint8_t> row(static_cast<size_t>(k));
    int bad = 0;
    for (int64_t r = 0; r < n; ++r) {
      format_ops(c.format).unpack(w.row(r), 0, k, row.data());
      for (int64_t i = 0; i < m; ++i) {
        float sums[32] = {};
        int dot = 0;
        for (int64_t j = 0; j < k; ++j) {
          const float v = x[size_t(i * k + j)];
          sums[j % 32] += std::fabs(v);
          dot += (v < 0 ? -1 : 1) * int(format_ops(c.format).values[row[size_t(j)]]);
        }
        for (int half = 16; half > 0; half /= 2)
          for (int s = 0; s < half; ++s) sums[s] += sums[s + half];
        const float acc = std::fma(float(dot), scales[size_t(r)], 0.0f);
        const float want = std::fma(acc, sums[0] / float(k), bias[size_t(r)]);
        bad += std::bit_cast<uint32_t>(got[size_t(i * n + r)]) != std::bit_cast<uint32_t>(want);
      }
    }
    EXPECT_EQ(bad, 0) << m << " " << n << " " << k;
  }
}

}  // namespace
}  // namespace lowbit
