// FP8 in blocks on a device: the bits of the CPU. Included by a test that has an OnDevice<T>, as block_checks.h is.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "kernels/cuda_fp8_api.h"
#include "ops/fp8.h"

namespace lowbit {
namespace {

ThreadPool& fp8_pool() {
  static ThreadPool pool(1);
  return pool;
}

bool same_float(float a, float b) { return (a != a && b != b) || std::memcmp(&a, &b, sizeof a) == 0; }

float draw_fp8(Rng& rng, bool special) {
  static const float kSpecials[] = {0.0f,      -0.0f,     INFINITY, -INFINITY, NAN,
                                    0x1p-120f, 0x1p-149f, 3e38f,    0x1p-90f,  1e-40f};
  if (special && rng.below(300) == 0) return kSpecials[rng.below(std::size(kSpecials))];
  const float v = float(rng.normal());
  return special && rng.below(4) == 0 ? std::ldexp(v, int(rng.below(200)) - 100) : v;
}

std::vector<uint8_t> random_elements(Rng& rng, int64_t count, Fp8Element element, bool special) {
  std::vector<uint8_t> bytes(size_t(count * fp8_element_bytes(element)) + 16);
  for (int64_t i = 0; i < count; ++i) {
    const float v = draw_fp8(rng, special);
    const uint16_t half = element == Fp8Element::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
    std::memcpy(bytes.data() + i * fp8_element_bytes(element),
                element == Fp8Element::kF32 ? static_cast<const void*>(&v) : &half, size_t(fp8_element_bytes(element)));
  }
  return bytes;
}

enum class Before { kNothing, kNorm, kGate };

struct QuantCase {
  int64_t rows, columns, row_block, column_block;
  Fp8Element element;
  Before before;
  bool by_column, power_of_two, special, even;  // even: rows begin at multiples of 16 bytes
};

void check_quantize(const QuantCase& c, uint64_t seed) {
  Rng rng(seed, 8);
  Fp8Quant q;
  q.element = c.element, q.rows = c.rows, q.columns = c.columns;
  q.ldx = q.ldup = c.even ? (c.columns + 7) / 8 * 8 : c.columns + 1;
  q.ldcodes = c.even ? (c.columns + 7) / 8 * 8 : c.columns + 3;
  q.row_block = c.row_block, q.column_block = c.column_block, q.power_of_two = c.power_of_two;
  q.scales_by_column = c.by_column;
  const int64_t strips = (c.rows + c.row_block - 1) / c.row_block,
                blocks = (c.columns + c.column_block - 1) / c.column_block;
  q.ldscales = c.by_column ? (strips + 3) / 4 * 4 : blocks;
  const auto x = random_elements(rng, c.rows * q.ldx, c.element, c.special),
             up = random_elements(rng, c.rows * q.ldx, c.element, false);
  std::vector<float> weight(size_t(c.columns)),
      scales(size_t(c.by_column ? blocks * q.ldscales : strips * blocks), -1.0f);
  for (float& v : weight) v = float(rng.normal());
  std::vector<uint8_t> codes(size_t(c.rows * q.ldcodes), 0x33);
  const OnDevice<uint8_t> device_x(x), device_up(up);
  const OnDevice<float> device_weight(weight);
  OnDevice<float> device_scales(scales);
  OnDevice<uint8_t> device_codes(codes);
  const auto set = [&](const void* from, const void* other, const float* w, uint8_t* to, float* s) {
    q.x = from, q.codes = to, q.scales = s;
    q.up = c.before == Before::kGate ? other : nullptr;
    q.norm_weight = c.before == Before::kNorm ? w : nullptr;
    q.norm_eps = 1e-5f;
  };
  set(x.data(), up.data(), weight.data(), codes.data(), scales.data());
  ASSERT_TRUE(quantize_fp8(q, best_isa(), fp8_pool()));
  set(device_x.data(), device_up.data(), device_weight.data(), device_codes.data(), device_scales.data());
  ASSERT_TRUE(cuda::quantize_fp8(q, nullptr));
  const auto got_codes = device_codes.back();
  const auto got_scales = device_scales.back();
  for (size_t i = 0; i < codes.size(); ++i)
    ASSERT_EQ(int(codes[i]), int(got_codes[i])) << c.rows << " x " << c.columns << " at " << i << ", case " << seed;
  for (size_t i = 0; i < scales.size(); ++i)
    ASSERT_TRUE(same_float(scales[i], got_scales[i])) << i << ", case " << seed;
}

void check_quantize_all(int rounds, int64_t largest) {
  for (int i = 0; i < rounds; ++i) {
    Rng rng(uint64_t(i), 3);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    QuantCase c{
        1 + below(12), 1 + below(largest), 1, 128, Fp8Element(below(3)), Before(below(3)), below(2) == 0, below(3) == 0,
        below(2) == 0, below(2) == 0};
    if (i % 4 == 3) {
      c.before = Before::kNothing;
      c.row_block = 1 + below(140);
      c.rows = 1 + below(200);
      c.columns = 1 + below(std::min<int64_t>(largest, 300));
    }
    if (i % 5 == 4) c.column_block = 1 + below(200);
    check_quantize(c, uint64_t(i));
    if (testing::Test::HasFatalFailure()) return;
  }
}

/// Of halves that begin at multiples of 16 bytes: parts of few rows, more rows than teams stay, rows of all widths.
void check_quantize_normed(int64_t most_rows) {
  for (const int64_t columns : {8, 128, 520, 1536, 2048, 4000, 7168, 8064, 8200, 16384, 16392}) {
    const int64_t most = std::max<int64_t>(5, std::min<int64_t>(most_rows, (int64_t{9} << 20) / columns));
    for (const int64_t rows : {int64_t{1}, int64_t{3}, most})
      for (const Fp8Element element : {Fp8Element::kF16, Fp8Element::kBf16}) {
        const bool f16 = element == Fp8Element::kF16;
        check_quantize({rows, columns, 1, 128, element, Before::kNorm, f16, f16 == (rows == 3), columns % 3 == 0, true},
                       uint64_t(columns));
        if (testing::Test::HasFatalFailure()) return;
      }
  }
}

void check_dequantize() {
  for (const Fp8Element element : {Fp8Element::kF32, Fp8Element::kF16, Fp8Element::kBf16}) {
    Rng rng(6);
    const int64_t rows = 131, columns = 261;
    std::vector<uint8_t> codes(size_t(rows * columns)), y(size_t(rows * columns * fp8_element_bytes(element)));
    for (uint8_t& c : codes) c = uint8_t(rng.below(256));
    std::vector<float> scales(2 * 3);
    for (float& s : scales) s = float(std::fabs(rng.normal()));
    Fp8Dequant d{codes.data(), rows, columns, columns, 128, 128, scales.data(), 3, y.data(), element, columns};
    ASSERT_TRUE(dequantize_fp8(d, best_isa(), fp8_pool()));
    const OnDevice<uint8_t> device_codes(codes);
    const OnDevice<float> device_scales(scales);
    OnDevice<uint8_t> device_y(std::vector<uint8_t>(y.size()));
    d.codes = device_codes.data(), d.scales = device_scales.data(), d.y = device_y.data();
    ASSERT_TRUE(cuda::dequantize_fp8(d, nullptr));
    const auto got = device_y.back();
    const int64_t bytes = fp8_element_bytes(element);
    for (int64_t i = 0; i < rows * columns; ++i) {
      if ((codes[size_t(i)] & 0x7f) == 0x7f) continue;  // which NaN is not said
      ASSERT_EQ(std::memcmp(y.data() + i * bytes, got.data() + i * bytes, size_t(bytes)), 0) << i;
    }
  }
}

struct GemmCase {
  int64_t m, n, k, b_rows;
  Fp8Element element;
  bool by_column, special;
  bool odd_rows = false;  // a row does not begin at a multiple of 16 bytes
};

/// Codes of normally distributed numbers; of a table, since many are drawn.
std::vector<uint8_t> random_codes(Rng& rng, size_t count, bool special) {
  std::vector<uint8_t> table(4096), codes(count);
  for (uint8_t& c : table) c = f32_to_e4m3(float(rng.normal()) * 100);
  for (uint8_t& c : codes) c = special && rng.below(3000) == 0 ? uint8_t{0x7f} : table[rng.below(table.size())];
  return codes;
}

/// Exact: the CPU's bits. Else f32 sums of tensor cores, which keep about 14 bits: within `tolerance` of the sum of the
/// terms' magnitudes.
void check_gemm(
    const GemmCase& c, uint64_t seed, bool exact, double tolerance,
    const std::function<Status(const Fp8Gemm&)>& product = [](const Fp8Gemm& g) {
      return cuda::gemm_fp8(g, nullptr);
    }) {
  Rng rng(seed, 9);
  const int64_t lda = (c.k + 15) / 16 * 16 + (c.odd_rows ? 1 : 0), blocks = (c.k + 127) / 128,
                ldas = c.by_column ? (c.m + 3) / 4 * 4 : blocks;
  const auto a = random_codes(rng, size_t(c.m * lda) + 16, c.special),
             b = random_codes(rng, size_t(c.n * lda) + 16, c.special);
  std::vector<float> as(size_t(c.by_column ? blocks * ldas : c.m * blocks)),
      bs(size_t((c.n + c.b_rows - 1) / c.b_rows * blocks));
  for (auto* scales : {&as, &bs})
    for (float& s : *scales) s = float(0.5 + rng.uniform()) * 0.01f;
  std::vector<uint8_t> y(size_t(c.m * c.n * fp8_element_bytes(c.element)));
  std::vector<float> want(size_t(c.m * c.n));
  Fp8Gemm g{c.m, c.n,       c.k,    a.data(), lda,         as.data(),        ldas, c.by_column, b.data(),
            lda, bs.data(), blocks, c.b_rows, want.data(), Fp8Element::kF32, c.n};
  ASSERT_TRUE(gemm_fp8(g, best_isa(), fp8_pool()));
  const OnDevice<uint8_t> device_a(a), device_b(b);
  const OnDevice<float> device_as(as), device_bs(bs);
  OnDevice<uint8_t> device_y(std::vector<uint8_t>(y.size()));
  g.a = device_a.data(), g.b = device_b.data(), g.a_scales = device_as.data(), g.b_scales = device_bs.data();
  g.c = device_y.data(), g.element = c.element;
  ASSERT_TRUE(product(g));
  const auto bytes = device_y.back();
  double error = 0, norm = 0;
  for (int64_t i = 0; i < c.m * c.n; ++i) {
    float got = 0;
    uint16_t half = 0;
    if (c.element == Fp8Element::kF32) {
      std::memcpy(&got, bytes.data() + 4 * i, 4);
    } else {
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      got = c.element == Fp8Element::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    const float w = want[size_t(i)];
    const float rounded = c.element == Fp8Element::kF32   ? w
                          : c.element == Fp8Element::kF16 ? f16_to_f32(f32_to_f16(w))
                                                          : bf16_to_f32(f32_to_bf16(w));
    ASSERT_EQ(std::isnan(got), std::isnan(w)) << c.m << " x " << c.n << " x " << c.k << " at " << i;
    if (exact) {
      ASSERT_TRUE(same_float(rounded, got))
          << c.m << " x " << c.n << " x " << c.k << " at " << i << ": " << rounded << " " << got;
    }
    if (std::isnan(w)) continue;
    error += std::pow(double(got) - rounded, 2);
    norm += double(w) * w;
  }
  if (exact || c.m * c.n < 100 || norm == 0) return;  // 0: all are NaN
  ASSERT_LE(std::sqrt(error / norm), c.element == Fp8Element::kF32 ? tolerance : 3e-3)
      << c.m << " x " << c.n << " x " << c.k;
}

}  // namespace
}  // namespace lowbit
