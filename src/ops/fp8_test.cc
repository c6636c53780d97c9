// FP8 in blocks against definitions of their own: E4M3 by search, scales by the document's formula, products in
// float64.

#include "ops/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Of non-negative codes: sign, 4 bits of exponent with bias 7, 3 of mantissa; 0x7f is NaN.
double value_of(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

/// The nearest code, the even one of two that are as near; 448 for all that is larger.
class NearestCode {
 public:
  NearestCode() {
    for (int c = 0; c < 0x7e; ++c) middle_[size_t(c)] = (value_of(c) + value_of(c + 1)) / 2;  // exact
  }
  uint8_t operator()(float v) const {
    const double magnitude = std::fabs(double(v));
    const auto at = std::lower_bound(middle_.begin(), middle_.end(), magnitude);
    auto code = int(at - middle_.begin());
    if (at != middle_.end() && *at == magnitude && code % 2 == 1) ++code;
    return uint8_t(code | (std::signbit(v) ? 0x80 : 0));
  }

 private:
  std::array<double, 0x7e> middle_{};
};

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

class Fp8 : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    isa = *parse_isa(GetParam());
    if (!isa_available(isa)) GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  Quantized quantize(const void* x, Fp8Element element, int64_t rows, int64_t columns, Fp8Quant q = {}) {
    Quantized out{std::vector<uint8_t>(size_t(rows * columns), 0x11), {}};
    const int64_t r = (rows + q.row_block - 1) / q.row_block, c = (columns + q.column_block - 1) / q.column_block;
    q.ldscales = q.scales_by_column ? (r + 3) / 4 * 4 : c;
    out.scales.assign(size_t(q.scales_by_column ? c * q.ldscales : r * c), -1.0f);
    q.x = x, q.element = element, q.rows = rows, q.columns = columns, q.ldx = q.ldup = columns;
    q.codes = out.codes.data(), q.ldcodes = columns, q.scales = out.scales.data();
    const Status status = quantize_fp8(q, isa, pool);
    EXPECT_TRUE(status) << status.error().message();
    return out;
  }
  std::vector<float> random(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = float(rng.normal());
    return x;
  }
  Isa isa = Isa::kScalar;
  ThreadPool pool{2};
  Rng rng{4};
  const NearestCode nearest;
};

TEST_P(Fp8, EveryBf16HasTheNearestCode) {
  // A block with 448 in it has the scale 1, and 127 others of any size up to it.
  std::vector<uint16_t> all;
  for (uint32_t bits = 0; bits < 65536; ++bits)
    if (std::fabs(bf16_to_f32(uint16_t(bits))) <= 448.0f) all.push_back(uint16_t(bits));
  std::vector<uint16_t> x;
  for (size_t i = 0; i < all.size(); i += 127) {
    x.push_back(f32_to_bf16(448.0f));
    for (size_t j = i; j < i + 127; ++j) x.push_back(j < all.size() ? all[j] : uint16_t{0});
  }
  const auto columns = int64_t(x.size());
  const Quantized got = quantize(x.data(), Fp8Element::kBf16, 1, columns);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(int(got.codes[i]), int(nearest(bf16_to_f32(x[i])))) << bf16_to_f32(x[i]);
  for (const float s : got.scales) ASSERT_EQ(s, 1.0f);
}

TEST_P(Fp8, TenMillionFloatsHaveTheNearestCode) {
  constexpr int64_t kColumns = 1 << 14;
  std::vector<float> x(kColumns);
  for (int64_t done = 0; done < 10'000'000; done += kColumns) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = i % 128 == 0 ? 448.0f : bits_to_f32(uint32_t(rng.below(0x43e00001u)) | uint32_t(rng.below(2)) << 31);
      if (i % 4 == 1) x[i] = float((rng.uniform() - 0.5) * 896);
      if (i % 64 == 2) x[i] = float(value_of(int(rng.below(0x7e))) * (1 + 0x1p-4));  // a tie, or near one
    }
    for (float& v : x) v = std::clamp(v, -448.0f, 448.0f);
    const Quantized got = quantize(x.data(), Fp8Element::kF32, 1, kColumns);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(int(got.codes[i]), int(nearest(x[i]))) << x[i];
  }
}

/// The codes that torch 2.15's x.to(torch.float8_e4m3fn) gives for all 65,536 numbers of bf16, one byte each, NaN and
/// infinities included.
TEST(E4m3, EveryBf16AsTorchHasIt) {
  std::vector<std::byte> codes(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) codes[bits] = std::byte{f32_to_e4m3(bf16_to_f32(uint16_t(bits)))};
  Sha256 hash;
  hash.update(codes);
  EXPECT_EQ(hash.finish(), "556222ae80c3498b4da64795f283e77962f1045e2525faaededd4e0a5b1ae212");
}

TEST(E4m3, AboveTheLargestCodeEverythingIsIt) {
  const NearestCode nearest;
  Rng rng(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const float v = bits_to_f32(0x43d00000u + uint32_t(rng.below(0x00800000u)));
    ASSERT_EQ(int(f32_to_e4m3(v)), int(nearest(v))) << v;
  }
  for (const float v : {464.0f, 465.0f, 1e30f, kInf}) EXPECT_EQ(f32_to_e4m3(v), 0x7e);
}

TEST_P(Fp8, ScalesAreTheDocumentsFormula) {
  for (int round = 0; round < 200; ++round) {
    const int64_t rows = 1 + int64_t(rng.below(5)), columns = 1 + int64_t(rng.below(500));
    auto x = random(rows * columns);
    for (float& v : x) v = std::ldexp(v, round - 100);
    Fp8Quant q;
    q.scales_by_column = round % 2 == 1;
    q.power_of_two = round % 3 == 2;
    const Quantized got = quantize(x.data(), Fp8Element::kF32, rows, columns, q);
    const int64_t blocks = (columns + 127) / 128, padded = (rows + 3) / 4 * 4;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < blocks; ++b) {
        const auto row = x.begin() + r * columns;
        float largest = 0;
        std::for_each(row + b * 128, row + std::min(columns, b * 128 + 128),
                      [&](float v) { largest = std::max(largest, std::fabs(v)); });
        const float scale = got.scales[size_t(q.scales_by_column ? b * padded + r : r * blocks + b)];
        if (!q.power_of_two) {
          ASSERT_EQ(scale, largest / 448.0f);
        } else {
          int exponent = 0;
          ASSERT_EQ(std::frexp(scale, &exponent), 0.5f);
          ASSERT_LE(largest / 448.0f, scale);
          ASSERT_GT(largest / 448.0f, scale / 2);
        }
        for (int64_t i = b * 128; i < std::min(columns, b * 128 + 128); ++i)
          ASSERT_EQ(int(got.codes[size_t(r * columns + i)]), int(nearest(row[i] / scale)));
      }
    for (int64_t b = 0; q.scales_by_column && b < blocks; ++b)
      for (int64_t r = rows; r < padded; ++r) ASSERT_EQ(got.scales[size_t(b * padded + r)], 0.0f);
  }
}

TEST_P(Fp8, BlocksWithoutANumber) {
  const float nan = std::nanf("");
  std::vector<float> x(6 * 128, 1.0f);
  std::fill_n(x.begin(), 128, -0.0f);
  std::fill_n(x.begin() + 128, 128, 0x1.fffffep-121f);
  x[2 * 128 + 5] = -kInf;
  x[3 * 128 + 127] = nan;
  std::fill_n(x.begin() + 4 * 128, 128, 0x1p-120f);
  for (const bool power_of_two : {false, true}) {
    Fp8Quant q;
    q.power_of_two = power_of_two;
    const Quantized got = quantize(x.data(), Fp8Element::kF32, 1, 6 * 128, q);
    EXPECT_EQ(got.scales[0], 0.0f);
    EXPECT_EQ(got.scales[1], 0.0f);
    EXPECT_EQ(got.scales[2], kInf);
    EXPECT_TRUE(std::isnan(got.scales[3]));
    EXPECT_GT(got.scales[4], 0.0f);
    EXPECT_EQ(got.scales[5], power_of_two ? 0x1p-8f : 1.0f / 448.0f);
    for (size_t i = 0; i < 4 * 128; ++i) ASSERT_EQ(got.codes[i], 0) << i;
    EXPECT_EQ(int(got.codes[4 * 128]), power_of_two ? int(nearest(64.0f)) : 0x7e);
    EXPECT_EQ(int(got.codes[5 * 128]), power_of_two ? int(nearest(256.0f)) : 0x7e);
  }
}

TEST_P(Fp8, WeightsInBlocksComeBack) {
  for (const auto& [rows, columns, row_block] :
       {std::array<int64_t, 3>{300, 200, 128}, {5, 129, 128}, {128, 128, 128}, {7, 300, 1}}) {
    const auto x = random(rows * columns);
    Fp8Quant q;
    q.row_block = row_block;
    const Quantized got = quantize(x.data(), Fp8Element::kF32, rows, columns, q);
    std::vector<float> y(x.size());
    const int64_t blocks = (columns + 127) / 128;
    const Fp8Dequant d{got.codes.data(),  rows,   columns,  columns,          row_block, 128,
                       got.scales.data(), blocks, y.data(), Fp8Element::kF32, columns};
    ASSERT_TRUE(dequantize_fp8(d, isa, pool));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < columns; ++i) {
        const float scale = got.scales[size_t(r / row_block * blocks + i / 128)], v = x[size_t(r * columns + i)];
        const auto at = size_t(r * columns + i);
        ASSERT_EQ(y[at], float(e4m3_to_f32(got.codes[at]) * scale));
        // Half a step: 2^-4 of the number, or of the smallest normal code.
        ASSERT_LE(std::fabs(y[at] - v), std::max(std::fabs(v) * 0x1p-4f, scale * 0x1p-10f) * 1.00001f);
      }
  }
}

TEST_P(Fp8, NormAndGateAreTheSingleSteps) {
  const VectorOps& ops = vector_ops(isa);
  const int64_t rows = 7, columns = 333;
  const auto x = random(rows * columns), up = random(rows * columns), weight = random(columns);
  std::vector<float> normed(x.size()), gated(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    ops.rms_norm(x.data() + r * columns, weight.data(), columns, 1e-5f, normed.data() + r * columns);
    ops.silu_mul(x.data() + r * columns, up.data() + r * columns, columns, gated.data() + r * columns);
  }
  Fp8Quant norm, gate;
  norm.norm_weight = weight.data(), norm.norm_eps = 1e-5f;
  gate.up = up.data();
  const auto same = [](const Quantized& a, const Quantized& b) { return a.codes == b.codes && a.scales == b.scales; };
  EXPECT_TRUE(same(quantize(x.data(), Fp8Element::kF32, rows, columns, norm),
                   quantize(normed.data(), Fp8Element::kF32, rows, columns)));
  EXPECT_TRUE(same(quantize(x.data(), Fp8Element::kF32, rows, columns, gate),
                   quantize(gated.data(), Fp8Element::kF32, rows, columns)));
}

/// A product of random matrices that went through quantization, and what float64 says about the same codes and scales.
struct Product {
  int64_t m, n, k, b_rows, blocks;
  Quantized a, b;
  bool by_column;

  float a_scale(int64_t i, int64_t g) const {
    return a.scales[size_t(by_column ? g * ((m + 3) / 4 * 4) + i : i * blocks + g)];
  }
  double exact(int64_t i, int64_t j, double* size) const {
    double sum = 0;
    *size = 0;
    for (int64_t p = 0; p < k; ++p) {
      const double term = double(e4m3_to_f32(a.codes[size_t(i * k + p)])) * a_scale(i, p / 128) *
                          double(e4m3_to_f32(b.codes[size_t(j * k + p)])) *
                          b.scales[size_t(j / b_rows * blocks + p / 128)];
      sum += term;
      *size += std::fabs(term);
    }
    return sum;
  }
  Fp8Gemm gemm(void* c, Fp8Element element) const {
    return {m,
            n,
            k,
            a.codes.data(),
            k,
            a.scales.data(),
            by_column ? (m + 3) / 4 * 4 : blocks,
            by_column,
            b.codes.data(),
            k,
            b.scales.data(),
            blocks,
            b_rows,
            c,
            element,
            n};
  }
};

TEST_P(Fp8, ProductsAgreeWithFloat64) {
  const int shapes = isa == Isa::kScalar ? 200 : 2000;
  for (int round = 0; round < shapes; ++round) {
    Product p{};
    const int64_t few[] = {0, 1, 3};
    p.m = round % 2 == 0 ? few[rng.below(3)] : 1 + int64_t(rng.below(20));
    p.n = 1 + int64_t(rng.below(40));
    p.k = 64 + int64_t(rng.below(round % 20 == 0 ? 8257 : 400));
    p.b_rows = round % 3 == 0 ? 1 : 128;
    p.blocks = (p.k + 127) / 128;
    p.by_column = round % 5 == 0;
    const auto x = random(p.m * p.k), w = random(p.n * p.k);
    Fp8Quant of_x, of_w;
    of_x.scales_by_column = p.by_column;
    of_w.row_block = p.b_rows;
    p.a = quantize(x.data(), Fp8Element::kF32, p.m, p.k, of_x);
    p.b = quantize(w.data(), Fp8Element::kF32, p.n, p.k, of_w);
    std::vector<float> c(size_t(p.m * p.n), 9.0f);
    std::vector<uint16_t> halves(c.size(), 9);
    ASSERT_TRUE(gemm_fp8(p.gemm(c.data(), Fp8Element::kF32), isa, pool));
    ASSERT_TRUE(gemm_fp8(p.gemm(halves.data(), Fp8Element::kBf16), isa, pool));
    double error = 0, norm = 0, half_error = 0;
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double size = 0;
        const double want = p.exact(i, j, &size);
        const auto at = size_t(i * p.n + j);
        error += std::pow(c[at] - want, 2);
        half_error += std::pow(bf16_to_f32(halves[at]) - want, 2);
        norm += want * want;
        const double rounding = 128 * 0x1p-24 * size;
        ASSERT_LE(std::fabs(c[at] - want), rounding);
        ASSERT_LE(std::fabs(bf16_to_f32(halves[at]) - want), 0x1p-8 * std::fabs(want) + 2 * rounding);
      }
    if (p.m * p.n < 30) continue;  // the norm of a few numbers may be small by chance
    ASSERT_LE(std::sqrt(error / norm), 1e-6 * std::sqrt(double(p.k) / 128)) << p.m << " " << p.n << " " << p.k;
    if (p.m * p.n < 200) continue;  // likewise the rounding of few
    ASSERT_LE(std::sqrt(half_error / norm), 2e-3);
  }
}

TEST_P(Fp8, NanStaysInItsRow) {
  Product p{9, 70, 300, 128, 3, {}, {}, false};
  auto x = random(p.m * p.k), w = random(p.n * p.k);
  p.a = quantize(x.data(), Fp8Element::kF32, p.m, p.k);
  Fp8Quant of_w;
  of_w.row_block = 128;
  p.b = quantize(w.data(), Fp8Element::kF32, p.n, p.k, of_w);
  std::vector<float> clean(size_t(p.m * p.n)), c(clean.size());
  ASSERT_TRUE(gemm_fp8(p.gemm(clean.data(), Fp8Element::kF32), isa, pool));
  x[size_t(4 * p.k + 290)] = std::nanf("");
  x[size_t(6 * p.k + 1)] = kInf;
  p.a = quantize(x.data(), Fp8Element::kF32, p.m, p.k);
  p.b.codes[size_t(33 * p.k + 131)] = 0xff;  // NaN in a weight
  ASSERT_TRUE(gemm_fp8(p.gemm(c.data(), Fp8Element::kF32), isa, pool));
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      const auto at = size_t(i * p.n + j);
      if (i == 4 || i == 6 || j == 33)
        ASSERT_TRUE(std::isnan(c[at])) << i << " " << j;
      else
        ASSERT_EQ(c[at], clean[at]) << i << " " << j;
    }
}

TEST_P(Fp8, ThreadsAndPassesChangeNoBit) {
  // Rows of 20000 columns: 12 of them are a pass.
  Product p{30, 50, 20000, 128, 157, {}, {}, false};
  const auto x = random(p.m * p.k), w = random(p.n * p.k);
  p.a = quantize(x.data(), Fp8Element::kF32, p.m, p.k);
  Fp8Quant of_w;
  of_w.row_block = 128;
  p.b = quantize(w.data(), Fp8Element::kF32, p.n, p.k, of_w);
  std::vector<float> all(size_t(p.m * p.n)), row(size_t(p.n));
  ThreadPool many(3), one(1);
  ASSERT_TRUE(gemm_fp8(p.gemm(all.data(), Fp8Element::kF32), isa, many));
  for (int64_t i = 0; i < p.m; ++i) {
    Fp8Gemm g = p.gemm(row.data(), Fp8Element::kF32);
    g.m = 1, g.a += i * p.k, g.a_scales += i * p.blocks;
    ASSERT_TRUE(gemm_fp8(g, isa, one));
    ASSERT_TRUE(std::equal(row.begin(), row.end(), all.begin() + i * p.n));
  }
}

TEST_P(Fp8, RefusesWhatDoesNotFit) {
  std::vector<float> x(256), scales(8);
  std::vector<uint8_t> codes(256);
  const Fp8Quant good{x.data(), Fp8Element::kF32, 2,   128,           128,     1, 128,     false, false,
                      1,        codes.data(),     128, scales.data(), nullptr, 0, nullptr, 0};
  ASSERT_TRUE(quantize_fp8(good, isa, pool));
  const auto refused = [&](auto change, const char* what) {
    Fp8Quant q = good;
    change(q);
    const Status status = quantize_fp8(q, isa, pool);
    ASSERT_FALSE(status) << what;
    EXPECT_NE(status.error().message().find(what), std::string::npos) << status.error().message();
  };
  refused([](Fp8Quant& q) { q.rows = -1; }, "rows");
  refused([](Fp8Quant& q) { q.ldx = 127; }, "x stride");
  refused([](Fp8Quant& q) { q.ldx = INT64_MAX; }, "x stride");
  refused([](Fp8Quant& q) { q.codes = nullptr; }, "codes");
  refused([](Fp8Quant& q) { q.column_block = 0; }, "columns of a block");
  refused([](Fp8Quant& q) { q.scales_by_column = true, q.columns = q.column_block = 64, q.column_block = 32; },
          "scales stride");
  refused([&](Fp8Quant& q) { q.row_block = 2, q.norm_weight = x.data(); }, "rows of a block");
  Fp8Gemm g;
  g.m = g.n = g.k = 1;
  EXPECT_FALSE(gemm_fp8(g, isa, pool));
  g.m = 0;
  EXPECT_TRUE(gemm_fp8(g, isa, pool));
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Fp8, testing::Values("scalar", "avx2", "avx512"),
                         [](const auto& isa) { return std::string(isa.param); });

}  // namespace
}  // namespace lowbit
