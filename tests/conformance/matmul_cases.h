#pragma once
// Random weights and activations for the matmul conformance list. Everything derives from one seed.

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/float.h"
#include "base/rng.h"
#include "format/qtensor.h"
#include "format/registry.h"

namespace lowbit::conformance {

enum class Fill { kNormal, kExtreme, kSpecial, kDenormal };

struct Case {
  FormatId format = FormatId::kInt4;
  Scaling scaling;
  int64_t m = 1, n = 16, k = 64, ldx = 64, ldy = 16;
  bool bias = false;
  int64_t activation_group = 0;  // scales of x: 0 per row
  int64_t shift = 0;             // elements by which x, y and bias are moved off their alignment
  Fill weights = Fill::kNormal, activations = Fill::kNormal;
  uint64_t seed = 0;
  std::vector<int64_t> row_ends = {};  // of row ranges; drawn when empty

  std::string name() const {
    return std::string(format_info(format).name) + " " + scaling_name(scaling) + " n_block " +
           std::to_string(scaling.n_block) + " " + scale_kind_name(scaling.scale) + " zero " +
           zero_kind_name(scaling.zero) + " m " + std::to_string(m) + " n " + std::to_string(n) + " k " +
           std::to_string(k) + " ag " + std::to_string(activation_group) + " fill " + std::to_string(int(weights)) +
           "/" + std::to_string(int(activations)) + " seed " + std::to_string(seed);
  }
};

/// q, k and v of BitNet's 2B-4T in one weight: 2560, 640 and 640 rows with a scale each (seed 002 would cut it in
/// thirds).
inline Case qkv_case(int64_t m) {
  Case c;
  c.format = FormatId::kTernary;
  c.scaling.n_block = Scaling::kRowRanges;
  c.scaling.k_block = Scaling::kAll;
  c.row_ends = {2560, 3200, 3840};
  c.m = m;
  c.n = c.ldy = 3840;
  c.k = c.ldx = 2560;
  c.seed = 2000 + uint64_t(m);
  return c;
}

template <class T>
T pick(Rng& rng, std::initializer_list<T> choices) {
  return *(choices.begin() + rng.below(choices.size()));
}

inline Case random_case(uint64_t seed) {
  Rng rng(seed, 1);
  Case c;
  c.seed = seed;
  do {
    c.format = formats()[rng.below(formats().size())].id;
  } while (!format_info(c.format).canonical);
  c.m = pick<int64_t>(rng, {0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, int64_t(rng.below(71))});
  c.n = rng.below(20) == 0 ? 0 : 1 + int64_t(rng.below(c.m > 16 ? 40 : 100));
  c.k = pick<int64_t>(rng, {1 + int64_t(rng.below(80)), 1 + int64_t(rng.below(700)), 64, 576, 320, 256});
  c.ldx = c.k + int64_t(rng.below(3));
  c.ldy = c.n + int64_t(rng.below(3));
  c.bias = rng.below(2) == 0;
  c.activation_group = pick<int64_t>(rng, {0, 0, 32, 32, 64, 128});
  c.shift = int64_t(rng.below(4));
  c.weights = pick(rng, {Fill::kNormal, Fill::kNormal, Fill::kExtreme});
  c.activations =
      pick(rng, {Fill::kNormal, Fill::kNormal, Fill::kNormal, Fill::kExtreme, Fill::kSpecial, Fill::kDenormal});
  Scaling& s = c.scaling;
  s.k_block =
      pick<int64_t>(rng, {Scaling::kAll, 32, 32, 64, 64, 128, 256, 4, 8, 20, 40, 5, 1 + int64_t(rng.below(300))});
  s.n_block = pick<int64_t>(rng, {1, 1, 1, 1, Scaling::kAll, Scaling::kRowRanges, 3, 16, 128});
  if (c.n == 0) s.n_block = 1;  // row ranges need a row
  s.scale = pick(
      rng, {ScaleKind::kF16, ScaleKind::kF16, ScaleKind::kF32, ScaleKind::kBf16, ScaleKind::kPow2, ScaleKind::kDouble});
  const bool integer = format_info(c.format).kind == ValueKind::kInteger;
  s.zero = pick(rng, {ZeroKind::kNone, ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8, ZeroKind::kPointF16});
  if (!integer && s.zero != ZeroKind::kNone) s.zero = ZeroKind::kOffset;
  return c;
}

inline QTensor dense_weights(const Case& c, Rng& rng) {
  QTensor w;
  w.format = c.format;
  w.n = c.n;
  w.k = c.k;
  w.codes = *Buffer::allocate(std::max<int64_t>(1, c.n * row_bytes(c.format, c.k)), "test");
  w.codes =
      Buffer::borrow(w.codes.span().first(size_t(c.n * row_bytes(c.format, c.k))), std::make_shared<Buffer>(w.codes));
  for (int64_t i = 0; i < c.n * c.k; ++i) {
    const float v = float(rng.normal()) * (c.weights == Fill::kExtreme ? 1e-6f : 0.05f);
    if (c.format == FormatId::kF32) w.codes.as<float>()[i] = v;
    if (c.format == FormatId::kF16) w.codes.as<uint16_t>()[i] = f32_to_f16(v);
    if (c.format == FormatId::kBf16) w.codes.as<uint16_t>()[i] = f32_to_bf16(v);
  }
  return w;
}

/// Integers of 8 bits, as they are fitted, of few bits or with -128, or floats.
inline std::vector<float> random_table(Rng& rng, unsigned entries) {
  const uint64_t kind = rng.below(4);
  std::vector<float> table;
  for (unsigned i = 0; i < entries; ++i)
    table.push_back(kind == 0   ? float(rng.normal())
                    : kind == 1 ? float(int(rng.below(25)) - 12)
                                : float(int(rng.below(255)) - 127));
  if (kind < 2) return table;
  table.front() = kind == 2 ? -127 : -128;
  table.back() = 127;
  table[1] = -0.0f;
  return table;
}

/// Errors: what pack() refuses.
inline Result<QTensor> try_weights(const Case& c) {
  Rng rng(c.seed, 2);
  const FormatInfo& info = format_info(c.format);
  if (info.kind == ValueKind::kDense) return dense_weights(c, rng);
  ValueTensor v;
  v.format = c.format;
  v.n = c.n;
  v.k = c.k;
  v.scaling = c.scaling;
  v.row_ends = c.row_ends;
  if (c.scaling.n_block == Scaling::kRowRanges && c.row_ends.empty())
    for (int64_t end = 0; end < c.n;) v.row_ends.push_back(end = std::min(c.n, end + 1 + int64_t(rng.below(20))));
  const unsigned codes = format_ops(c.format).codes;
  v.codes.resize(size_t(c.n * c.k));
  // Extreme: every code of a row is the one of the largest, or of the smallest, value.
  const unsigned low = info.kind == ValueKind::kInteger ? code_of(c.format, info.min_value)
                       : info.kind == ValueKind::kTable ? 0u
                                                        : 0x7eu % codes;
  const unsigned high = info.kind == ValueKind::kInteger ? code_of(c.format, info.max_value)
                        : info.kind == ValueKind::kTable ? codes - 1
                                                         : 0xfeu % codes;
  for (int64_t r = 0; r < c.n; ++r) {
    const unsigned extreme = rng.below(2) ? high : low;
    for (int64_t i = 0; i < c.k; ++i) {
      uint8_t& code = v.codes[size_t(r * c.k + i)];
      code = uint8_t(c.weights == Fill::kExtreme ? extreme : rng.below(codes));
      // One NaN hides all else in its row: they stay in one row of eight.
      if (c.format == FormatId::kFp8 && (code & 0x7f) == 0x7f && r % 8 != 3) code ^= 1;
    }
    make_storable(c.format, v.codes.data() + r * c.k, c.k);
  }
  if (info.kind == ValueKind::kTable) v.codebook = random_table(rng, codes);
  const int64_t rows = c.scaling.n_block == Scaling::kAll         ? 1
                       : c.scaling.n_block == Scaling::kRowRanges ? int64_t(v.row_ends.size())
                                                                  : ceil_div(c.n, c.scaling.n_block);
  const int64_t cols = c.scaling.k_block == Scaling::kAll ? 1 : ceil_div(c.k, c.scaling.k_block);
  for (int64_t i = 0; i < rows * cols; ++i) {
    v.scales.push_back(round_scale(float(0.01 + 0.05 * rng.uniform()), c.scaling.scale));
    if (c.scaling.zero == ZeroKind::kPointI8) v.zeros.push_back(float(int(rng.below(255)) - 127));
    if (c.scaling.zero == ZeroKind::kPointF16) v.zeros.push_back(f16_to_f32(f32_to_f16(float(rng.normal()))));
    if (c.scaling.zero == ZeroKind::kOffset) {
      const float zero = float(rng.normal());
      v.zeros.push_back(c.scaling.scale == ScaleKind::kF32 ? zero : f16_to_f32(f32_to_f16(zero)));
    }
  }
  if (c.scaling.scale == ScaleKind::kDouble) {
    const int64_t supers = ceil_div(cols, kSuperGroup);
    v.super_scales.resize(size_t(rows * supers));
    for (int64_t r = 0; r < rows; ++r)
      double_quantize(&v.scales[size_t(r * cols)], cols, &v.super_scales[size_t(r * supers)]);
  }
  return pack(v);
}

/// Of cases that must be possible: an exception, which fails the test, where they are not.
inline QTensor random_weights(const Case& c) {
  auto w = try_weights(c);
  if (!w) throw std::runtime_error(c.name() + ": " + w.error().message());
  return std::move(*w);
}

inline std::vector<float> random_activations(const Case& c) {
  Rng rng(c.seed, 3);
  std::vector<float> x(size_t(c.m * c.ldx + 1 + c.shift));
  for (int64_t r = 0; r < c.m; ++r) {
    const float sign = rng.below(2) ? 1.0f : -1.0f;
    for (int64_t i = 0; i < c.ldx; ++i) {
      float& v = x[size_t(c.shift + r * c.ldx + i)];
      v = float(rng.normal());
      if (c.activations == Fill::kExtreme) v = sign;  // every code is 127 or -127
      if (c.activations == Fill::kDenormal) v *= 1e-39f;
      if (c.activations == Fill::kSpecial && rng.below(200) == 0)
        v = pick(rng, {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), 3e38f, -0.0f, 1e-45f});
    }
  }
  return x;
}

}  // namespace lowbit::conformance
