#include "format/qtensor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/checked.h"
#include "base/float.h"
#include "base/rng.h"
#include "format/registry.h"
#include "format/scale_row.h"

namespace lowbit {
namespace {

ValueTensor random_values(FormatId format, int64_t n, int64_t k, const Scaling& scaling, std::vector<int64_t> row_ends,
                          Rng& rng) {
  const FormatInfo& info = format_info(format);
  ValueTensor v;
  v.format = format;
  v.n = n;
  v.k = k;
  v.scaling = scaling;
  v.row_ends = std::move(row_ends);
  for (int64_t i = 0; i < n * k; ++i) v.codes.push_back(uint8_t(rng.below(format_ops(format).codes)));
  for (int64_t r = 0; r < n; ++r) make_storable(format, v.codes.data() + r * k, k);
  if (format == FormatId::kFp8)
    for (auto& c : v.codes) c = (c & 0x7f) == 0x7f ? 0 : c;  // no NaN
  const int64_t rows = scaling.n_block == Scaling::kAll         ? 1
                       : scaling.n_block == Scaling::kRowRanges ? int64_t(v.row_ends.size())
                                                                : ceil_div(n, scaling.n_block);
  const int64_t cols = scaling.k_block == Scaling::kAll ? 1 : ceil_div(k, scaling.k_block);
  for (int64_t i = 0; i < rows * cols; ++i) {
    v.scales.push_back(round_scale(float(std::fabs(rng.normal()) + 0.01), scaling.scale));
    if (scaling.zero == ZeroKind::kPointI8) v.zeros.push_back(float(int(rng.below(9)) - 4));
    if (scaling.zero == ZeroKind::kPointF16 || scaling.zero == ZeroKind::kOffset)
      v.zeros.push_back(f16_to_f32(f32_to_f16(float(rng.normal()))));
  }
  if (scaling.scale == ScaleKind::kDouble) {
    const int64_t supers = ceil_div(cols, kSuperGroup);
    v.super_scales.resize(size_t(rows * supers));
    for (int64_t r = 0; r < rows; ++r)
      double_quantize(&v.scales[size_t(r * cols)], cols, &v.super_scales[size_t(r * supers)]);
  }
  if (info.kind == ValueKind::kTable)
    for (int i = 0; i < 1 << info.code_bits; ++i) v.codebook.push_back(float(rng.normal()));
  return v;
}

TEST(qtensor, every_format_and_scaling_packs_dequantizes_and_unpacks) {
  Rng rng(11);
  const int64_t n = 7, k = 77;
  for (const FormatInfo& info : formats()) {
    if (!info.canonical || info.kind == ValueKind::kDense) continue;
    for (ScaleKind scale : {ScaleKind::kF32, ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kPow2, ScaleKind::kDouble})
      for (ZeroKind zero : {ZeroKind::kNone, ZeroKind::kPointI8, ZeroKind::kPointF16, ZeroKind::kOffset})
        for (int64_t n_block : {Scaling::kRowRanges, Scaling::kAll, int64_t{1}, int64_t{3}})
          for (int64_t k_block : {Scaling::kAll, int64_t{1}, int64_t{3}, int64_t{32}}) {
            const Scaling s{n_block, k_block, scale, zero};
            const auto v = random_values(
                info.id, n, k, s,
                n_block == Scaling::kRowRanges ? std::vector<int64_t>{1, 3, 7} : std::vector<int64_t>{}, rng);
            const auto w = pack(v);
            ASSERT_TRUE(w) << w.error().message();
            std::vector<float> real(size_t(n * k));
            dequantize_rows(*w, 0, n, real.data());
            for (int64_t r = 0; r < n; ++r)
              for (int64_t c = 0; c < k; ++c) {
                const size_t i =
                    size_t(w->scale_row_of(r) * w->scale_cols() + (k_block == Scaling::kAll ? 0 : c / k_block));
                const uint8_t code = v.codes[size_t(r * k + c)];
                const float value = v.codebook.empty() ? format_ops(info.id).values[code] : v.codebook[code];
                const float scaled = value * v.scales[i];
                const float want = zero == ZeroKind::kNone     ? scaled
                                   : zero == ZeroKind::kOffset ? scaled + v.zeros[i]
                                                               : (value - v.zeros[i]) * v.scales[i];
                ASSERT_EQ(real[size_t(r * k + c)], want)
                    << info.name << " " << scaling_name(s) << " " << scale_kind_name(scale);
              }
            std::vector<float> row(size_t(w->scale_cols()));
            for (int64_t r = 0; r < n; ++r) {
              scales_of_row(*w, r, row.data());
              for (int64_t c = 0; c < w->scale_cols(); ++c) ASSERT_EQ(row[size_t(c)], w->scale(r, c));
            }
            const auto back = unpack(*w);
            ASSERT_TRUE(back);
            EXPECT_EQ(back->codes, v.codes);
            EXPECT_EQ(back->scales, v.scales);
            EXPECT_EQ(back->zeros, v.zeros);
            const auto again = pack(*back);
            ASSERT_TRUE(again);
            EXPECT_TRUE(std::equal(again->scales.span().begin(), again->scales.span().end(), w->scales.span().begin()));
          }
  }
}

TEST(qtensor, bits_per_weight_counts_scales) {
  Rng rng(1);
  const auto w = pack(random_values(FormatId::kInt2, 64, 576, {1, 64, ScaleKind::kF16, ZeroKind::kNone}, {}, rng));
  ASSERT_TRUE(w);
  EXPECT_DOUBLE_EQ(w->bits_per_weight(), 2.25);
  const auto t =
      pack(random_values(FormatId::kTernaryPacked, 8, 640, {1, 64, ScaleKind::kF16, ZeroKind::kNone}, {}, rng));
  EXPECT_DOUBLE_EQ(t->bits_per_weight(), 1.85);
}

TEST(qtensor, total_bytes_counts_every_part) {
  Rng rng(3);
  const Scaling ranges{Scaling::kRowRanges, 32, ScaleKind::kDouble, ZeroKind::kPointI8};
  const auto w = pack(random_values(FormatId::kCodebook3, 7, 77, ranges, {1, 3, 7}, rng));
  ASSERT_TRUE(w);
  const int64_t codes = 7 * 29, blocks = 3 * 3;  // 77 codes of 3 bits; 3 ranges of rows, 3 groups of columns
  EXPECT_EQ(w->total_bytes(), codes + blocks + blocks + 2 * 3 + 4 * 8 + 8 * 3);
  EXPECT_DOUBLE_EQ(w->bits_per_weight(), 8.0 * static_cast<double>(w->total_bytes()) / (7 * 77));
}

TEST(qtensor, check_names_what_does_not_fit) {
  Rng rng(2);
  auto w = *pack(random_values(FormatId::kInt4, 4, 64, {1, 32, ScaleKind::kF16, ZeroKind::kNone}, {}, rng));
  EXPECT_TRUE(check_qtensor(w, "w"));
  auto bad = w;
  bad.k = 65;
  EXPECT_EQ(check_qtensor(bad, "w").error().code, ErrorCode::kShapeMismatch);
  bad = w;
  bad.scaling.k_block = 16;
  EXPECT_FALSE(check_qtensor(bad, "w"));
  bad = w;
  bad.format = FormatId::kInt4Planes;
  EXPECT_EQ(check_qtensor(bad, "w").error().code, ErrorCode::kUnsupported);
  bad = w;
  bad.codebook = {1};
  EXPECT_FALSE(check_qtensor(bad, "w"));
  bad = w;
  bad.scaling.n_block = Scaling::kRowRanges;
  bad.row_ends = {3};
  EXPECT_FALSE(check_qtensor(bad, "w"));
}

TEST(qtensor, pack_refuses_a_code_outside_the_alphabet) {
  Rng rng(2);
  auto v = random_values(FormatId::kTernary, 2, 8, {1, Scaling::kAll, ScaleKind::kF16, ZeroKind::kNone}, {}, rng);
  v.codes[3] = 3;
  EXPECT_FALSE(pack(v));
  v.codes[3] = 2;
  v.scales.pop_back();
  EXPECT_FALSE(pack(v));
  for (const FormatId id : {FormatId::kInt4, FormatId::kInt3, FormatId::kInt2Odd})
    for (const size_t at : {0, 7, 8, 15, 20}) {  // eight at once, and what is left of a row
      auto w = random_values(id, 2, 21, {1, Scaling::kAll, ScaleKind::kF16, ZeroKind::kNone}, {}, rng);
      EXPECT_TRUE(pack(w));
      w.codes[at] = static_cast<uint8_t>(1 << format_info(id).code_bits);
      EXPECT_FALSE(pack(w)) << at;
    }
}

TEST(qtensor, value_sums_prove_the_zero_point_identity) {
  // sum value (x - zx) = sum value x - zx sum value: the one identity behind every activation zero
  // point.
  Rng rng(4);
  const auto w = *pack(random_values(FormatId::kInt4, 5, 70, {1, 32, ScaleKind::kF16, ZeroKind::kNone}, {}, rng));
  const auto sums = value_sums(w);
  const auto codes = unpack(w)->codes;
  for (int64_t r = 0; r < w.n; ++r)
    for (int64_t g = 0; g < w.scale_cols(); ++g) {
      const int zx = 17;
      int64_t shifted = 0, plain = 0;
      for (int64_t k = g * 32; k < std::min<int64_t>(70, g * 32 + 32); ++k) {
        const int value = int(format_ops(FormatId::kInt4).values[codes[size_t(r * 70 + k)]]),
                  x = int(rng.below(256)) - 128;
        shifted += value * (x - zx);
        plain += value * x;
      }
      EXPECT_EQ(shifted, plain - zx * int64_t{sums[size_t(r * w.scale_cols() + g)]});
    }
}

TEST(round_scale, never_makes_a_scale_vanish_or_explode) {
  for (ScaleKind kind : {ScaleKind::kF32, ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kPow2})
    for (float s : {1e-30f, 1e-8f, 0.1f, 3.0f, 7e4f, 1e30f}) {
      const float r = round_scale(s, kind);
      EXPECT_GT(r, 0.0f);
      EXPECT_TRUE(std::isfinite(r));
      EXPECT_EQ(round_scale(r, kind), r);
      if (kind != ScaleKind::kPow2) {
        EXPECT_EQ(round_scale(-s, kind), -r);
      }
    }
  EXPECT_EQ(round_scale(0.0f, ScaleKind::kF16), 0.0f);
  EXPECT_EQ(round_scale(0.3f, ScaleKind::kPow2), 0.25f);
}

TEST(double_quantize, is_idempotent_and_close) {
  Rng rng(6);
  std::vector<float> s(40), supers(3);
  for (auto& v : s) v = float(rng.normal());
  const auto original = s;
  double_quantize(s.data(), 40, supers.data());
  for (size_t i = 0; i < s.size(); ++i) EXPECT_NEAR(s[i], original[i], supers[i / 16] * 0.51f);
  auto twice = s;
  double_quantize(twice.data(), 40, supers.data());
  EXPECT_EQ(twice, s);
}

}  // namespace
}  // namespace lowbit
