// Products of few bits whose operands nobody has prepared, on a GPU, against the CPU: the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "base/threads.h"
#include "kernels/cuda_operators_api.h"
#include "ops/bitlinear.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

using conformance::on_device;
using cuda::Element;

std::vector<uint8_t> random_bytes(Rng& rng, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) b = uint8_t(rng.below(256));
  return bytes;
}
std::vector<float> random_floats(Rng& rng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = float(rng.normal());
  return values;
}
template <class T>
Buffer copy_of(const std::vector<T>& values) {
  return on_device(values.data(), sizeof(T) * values.size());
}
/// Device memory of `bytes`, none of them what a kernel would write.
Buffer poisoned(int64_t bytes) { return copy_of(std::vector<uint8_t>(static_cast<size_t>(bytes), 0xa5)); }
std::vector<uint8_t> bytes_of(const Buffer& b) {
  std::vector<uint8_t> bytes(static_cast<size_t>(b.size()));
  EXPECT_TRUE(cuda::synchronize(nullptr));
  EXPECT_TRUE(cuda::download(bytes.data(), b, b.size()));
  return bytes;
}

struct Sizes {
  int64_t m, n, k;
};
int64_t extra(Rng& rng) { return int64_t(rng.below(3)) * int64_t(rng.below(40)); }

/// Few and many rows, tails, rows that begin anywhere.
Sizes random_sizes(Rng& rng, uint64_t i) {
  const int64_t rows[] = {1, 2, 3, 5, 8, 9, 33, 70, 200};
  const int64_t m = rows[rng.below(9)];
  const int64_t k = i % 10 == 0 ? 1 + int64_t(rng.below(40000)) : 1 + int64_t(rng.below(900));
  return {m, 1 + int64_t(rng.below(i % 25 == 0 ? 3000 : 300)), k};
}

void check_int2(Sizes size, bool tiles, uint64_t seed) {
  SCOPED_TRACE("m " + std::to_string(size.m) + " n " + std::to_string(size.n) + " k " + std::to_string(size.k) +
               (tiles ? " tiles" : " rows") + " seed " + std::to_string(seed));
  Rng rng(seed, 3);
  auto [m, n, k] = size;
  if (tiles) n = (n + 15) / 16 * 16, k = (k + 31) / 32 * 32;
  const int64_t ldx = k + extra(rng), stride = int2_row_bytes(k) + extra(rng), ldy = n + extra(rng);
  const auto x = random_bytes(rng, m * ldx), weight = random_bytes(rng, tiles ? n * k / 4 : n * stride);
  const auto s = random_floats(rng, m);
  std::vector<int32_t> ends;
  if (n > 3 && rng.below(2) == 0) ends = {int32_t(n / 3), int32_t(n - 1), int32_t(n)};
  const auto ws = random_floats(rng, ends.empty() ? 1 : int64_t(ends.size()));
  std::vector<float> wanted(static_cast<size_t>(m * ldy));
  Buffer y = poisoned(4 * m * ldy);
  std::memcpy(wanted.data(), bytes_of(y).data(), 4 * wanted.size());
  Bitlinear call;
  call.m = m, call.n = n, call.k = k;
  call.x = reinterpret_cast<const int8_t*>(x.data());
  call.ldx = ldx;
  call.s = s.data();
  call.weight = weight.data();
  call.weight_stride = stride;
  call.order = tiles ? Int2Order::kTiles : Int2Order::kRows;
  call.ws = ws;
  call.row_ends = ends;
  call.multiplies = rng.below(2) == 0;
  call.y = wanted.data();
  call.ldy = ldy;
  ThreadPool pool(1);
  ASSERT_TRUE(bitlinear_int8xint2(call, pool));
  const Buffer dx = copy_of(x), dw = copy_of(weight), ds = copy_of(s), dws = copy_of(ws), de = copy_of(ends);
  ASSERT_TRUE(cuda::int2_product({.m = m,
                                  .n = n,
                                  .k = k,
                                  .x = dx.as<int8_t>(),
                                  .ldx = ldx,
                                  .s = ds.data(),
                                  .weight = dw.as<uint8_t>(),
                                  .weight_stride = stride,
                                  .tiles = tiles,
                                  .ws = dws.data(),
                                  .row_ends = ends.empty() ? nullptr : de.as<int32_t>(),
                                  .ranges = std::max<int64_t>(1, int64_t(ends.size())),
                                  .multiplies = call.multiplies,
                                  .y = y.data(),
                                  .ldy = ldy},
                                 nullptr));
  const auto got = bytes_of(y);
  ASSERT_EQ(std::memcmp(got.data(), wanted.data(), got.size()), 0);
}

TEST(DeviceOperators, Int2Products) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 400; ++i) {
    Rng rng(i, 1);
    check_int2(random_sizes(rng, i), i % 3 == 0, i);
    if (HasFatalFailure()) return;
  }
  check_int2({2048, 2560, 2560}, false, 1);  // more tiles than multiprocessors: larger ones
  check_int2({2048, 2560, 2560}, true, 2);
  check_int2({1, 3840, 2560}, true, 3);
}

void check_bits(Sizes size, uint64_t seed) {
  SCOPED_TRACE("m " + std::to_string(size.m) + " n " + std::to_string(size.n) + " k " + std::to_string(size.k) +
               " seed " + std::to_string(seed));
  Rng rng(seed, 4);
  const auto [m, n, k] = size;
  const int64_t row = (k + 7) / 8, x_stride = row + extra(rng), w_stride = row + extra(rng), ldy = n + extra(rng);
  const auto x = random_bytes(rng, m * x_stride), weight = random_bytes(rng, n * w_stride);
  const auto x_scales = random_floats(rng, m), w_scales = random_floats(rng, n), bias = random_floats(rng, n);
  std::vector<float> wanted(static_cast<size_t>(m * ldy));
  Buffer y = poisoned(4 * m * ldy);
  std::memcpy(wanted.data(), bytes_of(y).data(), 4 * wanted.size());
  const bool plain = rng.below(3) == 0;
  BinaryProduct call;
  call.m = m, call.n = n, call.k = k;
  call.x = x.data();
  call.x_stride = x_stride;
  call.weight = weight.data();
  call.weight_stride = w_stride;
  if (!plain) call.x_scales = x_scales.data(), call.w_scales = w_scales.data(), call.bias = bias.data();
  call.y = wanted.data();
  call.ldy = ldy;
  ThreadPool pool(1);
  binary_matmul(call, pool);
  const Buffer dx = copy_of(x), dw = copy_of(weight), dxs = copy_of(x_scales), dws = copy_of(w_scales),
               db = copy_of(bias);
  ASSERT_TRUE(cuda::bit_product({.m = m,
                                 .n = n,
                                 .k = k,
                                 .x = dx.as<uint8_t>(),
                                 .weight = dw.as<uint8_t>(),
                                 .x_stride = x_stride,
                                 .weight_stride = w_stride,
                                 .x_scales = plain ? nullptr : dxs.as<float>(),
                                 .weight_scales = plain ? nullptr : dws.as<float>(),
                                 .bias = plain ? nullptr : db.as<float>(),
                                 .y = y.data(),
                                 .ldy = ldy},
                                nullptr));
  const auto got = bytes_of(y);
  ASSERT_EQ(std::memcmp(got.data(), wanted.data(), got.size()), 0);
}

TEST(DeviceOperators, BitProducts) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 400; ++i) {
    Rng rng(i, 2);
    check_bits(random_sizes(rng, i), i);
    if (HasFatalFailure()) return;
  }
  check_bits({2048, 2560, 4096}, 1);
}

/// Rows with NaN, infinities, zeros of both signs and numbers below what a scale is made for.
std::vector<float> odd_rows(Rng& rng, int64_t m, int64_t k) {
  auto x = random_floats(rng, m * k);
  const float odd[] = {NAN, INFINITY, 0.0f, -0.0f, 1e-7f, 1e30f};
  for (int64_t i = 0; i < m; ++i) {
    if (rng.below(2) == 0) x[size_t(i * k + int64_t(rng.below(uint64_t(k))))] = odd[rng.below(6)];
    if (rng.below(8) == 0) std::fill_n(x.begin() + i * k, k, odd[2 + rng.below(3)]);
  }
  return x;
}

TEST(DeviceOperators, Rows) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    Rng rng(i, 5);
    const int64_t m = 1 + int64_t(rng.below(40)), k = 1 + int64_t(rng.below(i % 10 == 0 ? 9000 : 300));
    const auto x = odd_rows(rng, m, k);
    const bool bf16 = rng.below(2) == 0;
    std::vector<int8_t> codes(size_t(m * k));
    std::vector<float> s(static_cast<size_t>(m)), scales(static_cast<size_t>(m));
    quantize_activations_int8(x.data(), m, k, k, codes.data(), k, s.data(),
                              bf16 ? +[](float v) { return bf16_to_f32(f32_to_bf16(v)); } : nullptr);
    const Buffer dx = copy_of(x);
    Buffer dc = poisoned(m * k), ds = poisoned(4 * m), db = poisoned(m * ((k + 7) / 8)), dm = poisoned(4 * m);
    ASSERT_TRUE(cuda::int8_rows({.x = dx.data(),
                                 .m = m,
                                 .k = k,
                                 .ldx = k,
                                 .codes = dc.as<int8_t>(),
                                 .ldcodes = k,
                                 .scales = ds.data(),
                                 .scale_element = bf16 ? Element::kBf16 : Element::kF32},
                                nullptr));
    ASSERT_EQ(std::memcmp(bytes_of(dc).data(), codes.data(), codes.size()), 0);
    const auto got = bytes_of(ds);
    for (int64_t r = 0; r < m; ++r) {
      uint32_t bits = 0;
      std::memcpy(&bits, got.data() + r * (bf16 ? 2 : 4), bf16 ? 2 : 4);
      const float v = bf16 ? bf16_to_f32(uint16_t(bits)) : bits_to_f32(bits);
      if (std::isnan(s[size_t(r)]))
        ASSERT_TRUE(std::isnan(v));
      else
        ASSERT_EQ(v, s[size_t(r)]);
    }
    std::vector<uint8_t> rows(size_t(m * ((k + 7) / 8)));
    binarize_activations(x.data(), m, k, k, rows.data(), (k + 7) / 8, scales.data());
    ASSERT_TRUE(cuda::bit_rows({.x = dx.data(),
                                .m = m,
                                .k = k,
                                .ldx = k,
                                .bits = db.as<uint8_t>(),
                                .bits_stride = (k + 7) / 8,
                                .scales = dm.as<float>()},
                               nullptr));
    ASSERT_EQ(bytes_of(db), rows);
    const auto means = bytes_of(dm);
    for (int64_t r = 0; r < m; ++r) {
      float v = 0;
      std::memcpy(&v, means.data() + 4 * r, 4);
      if (std::isnan(scales[size_t(r)]))
        ASSERT_TRUE(std::isnan(v));
      else
        ASSERT_EQ(v, scales[size_t(r)]);
    }
  }
}

}  // namespace
}  // namespace lowbit
