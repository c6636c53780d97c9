#include "ops/bitlinear.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/float.h"
#include "base/rng.h"

namespace lowbit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
float to_bf16(float v) { return bf16_to_f32(f32_to_bf16(v)); }

std::vector<uint8_t> random_bytes(Rng& rng, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) b = uint8_t(rng.next());
  return bytes;
}

int value2(const std::vector<uint8_t>& w, int64_t stride, int64_t r, int64_t c) {
  return (w[size_t(r * stride + c / 4)] >> (2 * (c % 4)) & 3) - 2;
}

TEST(Bitlinear, AgreesWithThePlainLoop) {
  Rng rng(7);
  ThreadPool pool(2);
  for (int round = 0; round < 60; ++round) {
    const auto m = int64_t(rng.below(4)), n = int64_t(1 + rng.below(50)), k = int64_t(rng.below(200));
    const int64_t ldx = k + int64_t(rng.below(3)), stride = int2_row_bytes(k) + int64_t(rng.below(3)), ldy = n + 1;
    const auto x = random_bytes(rng, m * ldx + 1), w = random_bytes(rng, n * stride + 1);
    std::vector<float> s(size_t(m) + 1, 3.7f), ws;
    for (float& each : s) each = float(rng.uniform() + 0.1);
    std::vector<int32_t> ends;
    for (int64_t at = 0; round % 3 != 0 && at < n; ends.push_back(int32_t(at)))
      at += 1 + int64_t(rng.below(uint64_t(n - at)));
    for (size_t i = 0; i < std::max<size_t>(ends.size(), 1); ++i) ws.push_back(float(rng.normal()));
    std::vector<float> y(size_t(m * ldy) + 1, -7);
    Bitlinear call{.m = m,
                   .n = n,
                   .k = k,
                   .x = reinterpret_cast<const int8_t*>(x.data()),
                   .ldx = ldx,
                   .s = s.data(),
                   .weight = w.data(),
                   .weight_stride = stride,
                   .ws = ws,
                   .row_ends = ends,
                   .multiplies = round % 2 == 1,
                   .y = y.data(),
                   .ldy = ldy};
    ASSERT_TRUE(bitlinear_int8xint2(call, pool));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        int64_t sum = 0;
        for (int64_t c = 0; c < k; ++c) sum += int8_t(x[size_t(i * ldx + c)]) * value2(w, stride, j, c);
        size_t range = 0;
        while (!ends.empty() && j >= ends[range]) ++range;
        const float scaled = call.multiplies ? float(sum) * s[size_t(i)] : float(sum) / s[size_t(i)];
        EXPECT_EQ(y[size_t(i * ldy + j)], scaled * ws[range]);
      }
      EXPECT_EQ(y[size_t(i * ldy + n)], -7) << "wrote behind a row";
    }
  }
}

TEST(Bitlinear, TilesAreSeed002s) {
  Rng rng(8);
  ThreadPool pool(1);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 32}, {48, 96}, {32, 160}}) {
    const auto w = random_bytes(rng, n * k / 4), x = random_bytes(rng, 2 * k);
    std::vector<uint8_t> tiles(w.size()), back(w.size());
    ASSERT_TRUE(int2_to_tiles(w.data(), k / 4, n, k, tiles.data()));
    ASSERT_TRUE(int2_from_tiles(tiles.data(), n, k, back.data(), k / 4));
    EXPECT_EQ(back, w);
    // Addresses as in the seed's kernel: where thread (tx, ty) of block bx reads its word in step k_0, and what it
    // multiplies it with.
    for (int64_t row = 0; row < n; ++row)
      for (int64_t step = 0; step < k / 16; ++step) {
        const int64_t bx = row / 16, ty = row % 16, k_0 = step / 8, tx = step % 8;
        const int64_t at = bx * 16 * k / 4 + k_0 * 8 * 16 * 16 / 4 + (tx >> 1) * 32 * 16 / 4 +
                           (ty >> 3) * (32 * 16 / 2) / 4 + (tx & 1) * (32 * 16 / 4) / 4 + (ty & 7) * (32 / 2) / 4;
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i) word |= uint32_t(tiles[size_t(at + i)]) << (8 * i);
        for (int c = 0; c < 16; ++c)
          EXPECT_EQ(int(word >> (2 * (c / 4)) >> (8 * (c % 4)) & 3) - 2, value2(w, k / 4, row, step * 16 + c));
      }
    const std::vector<float> s = {2, 3}, ws = {0.5f};
    std::vector<float> one(size_t(2 * n)), two(size_t(2 * n));
    Bitlinear call{.m = 2,
                   .n = n,
                   .k = k,
                   .x = reinterpret_cast<const int8_t*>(x.data()),
                   .ldx = k,
                   .s = s.data(),
                   .weight = w.data(),
                   .weight_stride = k / 4,
                   .ws = ws,
                   .y = one.data(),
                   .ldy = n};
    ASSERT_TRUE(bitlinear_int8xint2(call, pool));
    call.weight = tiles.data();
    call.order = Int2Order::kTiles;
    call.y = two.data();
    ASSERT_TRUE(bitlinear_int8xint2(call, pool));
    EXPECT_EQ(one, two);
  }
  std::vector<uint8_t> bytes(1024);
  EXPECT_FALSE(int2_to_tiles(bytes.data(), 8, 24, 32, bytes.data()));
  EXPECT_FALSE(int2_from_tiles(bytes.data(), 16, 48, bytes.data(), 12));
}

TEST(Bitlinear, LargestSumsAreExact) {
  ThreadPool pool(1);
  const int64_t k = int64_t{1} << 22;
  const std::vector<int8_t> x(size_t(k), -128);
  const std::vector<uint8_t> w(size_t(k / 4), 0);  // all -2
  const std::vector<float> s = {1}, ws = {1};
  float y = 0;
  Bitlinear call{.m = 1,
                 .n = 1,
                 .k = k,
                 .x = x.data(),
                 .ldx = k,
                 .s = s.data(),
                 .weight = w.data(),
                 .weight_stride = k / 4,
                 .ws = ws,
                 .y = &y,
                 .ldy = 1};
  ASSERT_TRUE(bitlinear_int8xint2(call, pool));
  EXPECT_EQ(y, 0x1p30f);
  call.k += 1;
  EXPECT_FALSE(bitlinear_int8xint2(call, pool));
}

TEST(Bitlinear, Errors) {
  ThreadPool pool(1);
  const std::array<float, 2> ws = {1, 2};
  const auto refused = [&](std::vector<int32_t> ends, size_t scales) {
    const Bitlinear call{.m = 0, .n = 6, .k = 4, .ws = std::span(ws).first(scales), .row_ends = ends};
    return !bitlinear_int8xint2(call, pool).has_value();
  };
  EXPECT_FALSE(refused({4, 6}, 2));
  EXPECT_FALSE(refused({}, 1));
  EXPECT_TRUE(refused({}, 2));
  EXPECT_TRUE(refused({6}, 2));
  EXPECT_TRUE(refused({4, 5}, 2));
  EXPECT_TRUE(refused({4, 7}, 2));
  EXPECT_TRUE(refused({4, 4}, 2));
}

TEST(QuantizeActivationsInt8, FollowsTheSeedsFormula) {
  const std::vector<float> x = {0.5f, -1, 0.25f, 1.5f / 127, 0, 0, 0, 0,   1e-6f, -2e-6f,
                                0,    0,  kInf,  1,          2, 3, 1, NAN, 2,     3};
  std::vector<int8_t> codes(20, 99);
  std::vector<float> s(5);
  quantize_activations_int8(x.data(), 5, 4, 4, codes.data(), 4, s.data());
  EXPECT_EQ(s[0], 127.0f);
  EXPECT_EQ(codes[0], 64);  // 63.5, half to even
  EXPECT_EQ(codes[1], -127);
  EXPECT_EQ(codes[3], 2);  // 1.5
  EXPECT_EQ(s[1], 127 / 1e-5f);
  EXPECT_EQ(codes[4], 0);
  EXPECT_EQ(codes[8], 13);  // 12.7: 1e-5 is the least of the largest
  EXPECT_EQ(codes[9], -25);
  for (int row = 3; row < 5; ++row) {
    EXPECT_TRUE(std::isnan(s[size_t(row)]));
    for (int c = 0; c < 4; ++c) EXPECT_EQ(codes[size_t(4 * row + c)], 0);
  }
  Rng rng(9);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> row(37);
    for (float& v : row) v = float(rng.normal() * std::exp(4 * rng.normal()));
    float largest = 1e-5f, bf = 0, f = 0;
    for (const float v : row) largest = std::max(largest, std::abs(v));
    std::vector<int8_t> got(37), rounded(37);
    quantize_activations_int8(row.data(), 1, 37, 37, got.data(), 37, &f);
    quantize_activations_int8(row.data(), 1, 37, 37, rounded.data(), 37, &bf, to_bf16);
    EXPECT_EQ(f, 127 / largest);
    EXPECT_EQ(bf, to_bf16(127 / largest));
    for (size_t c = 0; c < 37; ++c) {
      EXPECT_EQ(got[c], int(std::nearbyint(row[c] * f)));
      EXPECT_EQ(rounded[c], std::clamp(int(std::nearbyint(row[c] * bf)), -128, 127));  // up to 127.5 by bf16's rounding
    }
  }
}

TEST(BinaryMatmul, AgreesWithThePlainLoop) {
  Rng rng(10);
  ThreadPool pool(2);
  for (int round = 0; round < 60; ++round) {
    const auto m = int64_t(1 + rng.below(4)), n = int64_t(1 + rng.below(40)), k = int64_t(1 + rng.below(300));
    const int64_t bytes = (k + 7) / 8, stride = bytes + 2;
    std::vector<float> x(size_t(m * k)), scales(static_cast<size_t>(m)), ws(static_cast<size_t>(n)),
        bias(static_cast<size_t>(n));
    for (auto* all : {&x, &ws, &bias})
      for (float& v : *all) v = float(rng.normal());
    x[0] = -0.0f;
    std::vector<uint8_t> bits(size_t(m * bytes));
    binarize_activations(x.data(), m, k, k, bits.data(), bytes, scales.data());
    const auto w = random_bytes(rng, n * stride);  // bits behind the rows are set, too
    std::vector<float> y(size_t(m * n));
    const bool plain = round % 2 == 0;
    binary_matmul({.m = m,
                   .n = n,
                   .k = k,
                   .x = bits.data(),
                   .x_stride = bytes,
                   .x_scales = plain ? nullptr : scales.data(),
                   .weight = w.data(),
                   .weight_stride = stride,
                   .w_scales = plain ? nullptr : ws.data(),
                   .bias = plain ? nullptr : bias.data(),
                   .y = y.data(),
                   .ldy = n},
                  pool);
    for (int64_t i = 0; i < m; ++i) {
      double mean = 0;
      for (int64_t c = 0; c < k; ++c) mean += std::abs(x[size_t(i * k + c)]) / double(k);
      EXPECT_NEAR(scales[size_t(i)], mean, 1e-5 * mean);
      for (int64_t j = 0; j < n; ++j) {
        int sum = 0;
        for (int64_t c = 0; c < k; ++c)
          sum += (x[size_t(i * k + c)] >= 0 ? 1 : -1) * (w[size_t(j * stride + c / 8)] >> (c % 8) & 1 ? 1 : -1);
        const float wanted =
            plain ? float(sum) : std::fma(float(sum) * ws[size_t(j)], scales[size_t(i)], bias[size_t(j)]);
        EXPECT_EQ(y[size_t(i * n + j)], wanted);
      }
    }
  }
}

}  // namespace
}  // namespace lowbit
