#include "format/qtensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/float.h"
#include "base/try.h"
#include "format/registry.h"
#include "lowbit/tensor.h"

namespace lowbit {
namespace {

int64_t scale_rows_of(int64_t n, const Scaling& s, const std::vector<int64_t>& row_ends) {
  if (s.n_block == Scaling::kAll) return 1;
  if (s.n_block == Scaling::kRowRanges) return static_cast<int64_t>(row_ends.size());
  return ceil_div(n, s.n_block);
}
int64_t scale_cols_of(int64_t k, const Scaling& s) { return s.k_block == Scaling::kAll ? 1 : ceil_div(k, s.k_block); }

template <class T>
T read(const Buffer& buffer, int64_t i) {
  T v;
  std::memcpy(&v, buffer.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <class T>
void write(Buffer& buffer, int64_t i, T v) {
  std::memcpy(buffer.data() + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

float read_zero(const QTensor& w, int64_t i) {
  if (w.scaling.zero == ZeroKind::kPointI8) return read<int8_t>(w.zeros, i);
  if (zero_bytes(w.scaling) == 4) return read<float>(w.zeros, i);
  return f16_to_f32(read<uint16_t>(w.zeros, i));
}

/// A row of a dense format, by a loop that the compiler sees through.
void dense_row(FormatId format, const uint8_t* row, int64_t k, float* out) {
  const auto convert = [&](auto to_f32) {
    for (int64_t i = 0; i < k; ++i) {
      uint16_t stored;
      std::memcpy(&stored, row + 2 * i, sizeof stored);
      out[i] = to_f32(stored);
    }
  };
  if (format == FormatId::kF16)
    convert([](uint16_t v) { return f16_to_f32(v); });
  else if (format == FormatId::kBf16)
    convert([](uint16_t v) { return bf16_to_f32(v); });
  else if (k > 0)
    std::memcpy(out, row, static_cast<size_t>(k) * 4);
}

/// Row r's elements [first, first + n) as table or codec values, not yet scaled.
void row_values(const QTensor& w, int64_t r, int64_t first, int64_t n, float* out) {
  constexpr int64_t kChunk = 256;
  const FormatOps& ops = format_ops(w.format);
  const float* table = w.codebook.empty() ? ops.values : w.codebook.data();
  uint8_t codes[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = std::min(kChunk, n - begin);
    ops.unpack(w.row(r), first + begin, count, codes);
    for (int64_t i = 0; i < count; ++i) out[begin + i] = table[codes[i]];
  }
}

tl::unexpected<Error> mismatch(const std::string& where, const std::string& what, int64_t got, int64_t wanted) {
  return fail(ErrorCode::kShapeMismatch, where, what + " " + std::to_string(got), std::to_string(wanted));
}

Status check_scaling(const QTensor& w, const std::string& where) {
  const Scaling& s = w.scaling;
  if (s.n_block < Scaling::kRowRanges || s.k_block < 0)
    return fail(ErrorCode::kInvalidArgument, where, "scale block " + scaling_name(s), "positive block sizes");
  if ((s.n_block == Scaling::kRowRanges) == w.row_ends.empty())
    return fail(ErrorCode::kShapeMismatch, where, std::to_string(w.row_ends.size()) + " row ranges",
                s.n_block == Scaling::kRowRanges ? "at least one" : "none");
  for (size_t i = 0; i < w.row_ends.size(); ++i)
    if (w.row_ends[i] <= (i ? w.row_ends[i - 1] : 0) || (i + 1 == w.row_ends.size() && w.row_ends[i] != w.n))
      return fail(ErrorCode::kShapeMismatch, where, "row range ending at " + std::to_string(w.row_ends[i]),
                  "ascending ends, the last one " + std::to_string(w.n));
  const int64_t count = w.scale_rows() * w.scale_cols();
  if (w.scales.size() != count * scale_bytes(s.scale))
    return mismatch(where, "scale bytes", w.scales.size(), count * scale_bytes(s.scale));
  if (w.zeros.size() != count * zero_bytes(s))
    return mismatch(where, "zero point bytes", w.zeros.size(), count * zero_bytes(s));
  const int64_t supers = s.scale == ScaleKind::kDouble ? 2 * w.scale_rows() * ceil_div(w.scale_cols(), kSuperGroup) : 0;
  if (w.super_scales.size() != supers) return mismatch(where, "super-scale bytes", w.super_scales.size(), supers);
  return {};
}

tl::unexpected<Error> cannot_store(FormatId format, unsigned code, int64_t row, int64_t column) {
  const unsigned codes = format_ops(format).codes;
  return fail(ErrorCode::kInvalidArgument, "pack",
              "code " + std::to_string(code) + " at row " + std::to_string(row) + ", column " + std::to_string(column),
              (code < codes ? std::string("a code that the trellis offers behind those before it")
                            : "a code below " + std::to_string(codes)) +
                  " for " + format_info(format).name);
}

Status store_scales(const ValueTensor& v, QTensor& w) {
  const int64_t cols = w.scale_cols(), supers = ceil_div(cols, kSuperGroup), count = w.scale_rows() * cols;
  if (v.scaling.scale == ScaleKind::kDouble) {
    if (static_cast<int64_t>(v.super_scales.size()) != w.scale_rows() * supers)
      return mismatch("pack", "super-scales", static_cast<int64_t>(v.super_scales.size()), w.scale_rows() * supers);
    LOWBIT_TRY_ASSIGN(w.super_scales, Buffer::allocate(2 * w.scale_rows() * supers, "weight super-scales"));
    for (size_t i = 0; i < v.super_scales.size(); ++i)
      write(w.super_scales, static_cast<int64_t>(i), f32_to_f16(v.super_scales[i]));
  }
  for (int64_t i = 0; i < count; ++i) {
    const float s = v.scales[static_cast<size_t>(i)];
    switch (v.scaling.scale) {
      case ScaleKind::kF32:
        write(w.scales, i, s);
        break;
      case ScaleKind::kF16:
        write(w.scales, i, f32_to_f16(s));
        break;
      case ScaleKind::kBf16:
        write(w.scales, i, f32_to_bf16(s));
        break;
      case ScaleKind::kPow2:
        write(w.scales, i, static_cast<int8_t>(-std::ilogb(s)));
        break;
      case ScaleKind::kDouble: {
        const float super = v.super_scales[static_cast<size_t>(i / cols * supers + i % cols / kSuperGroup)];
        write(w.scales, i, static_cast<int8_t>(super == 0 ? 0 : std::nearbyint(s / super)));
        break;
      }
    }
    if (v.scaling.zero == ZeroKind::kNone) continue;
    const float zero = v.zeros[static_cast<size_t>(i)];
    if (v.scaling.zero == ZeroKind::kPointI8) {
      write(w.zeros, i, static_cast<int8_t>(zero));
    } else if (zero_bytes(v.scaling) == 4) {
      write(w.zeros, i, zero);
    } else {
      write(w.zeros, i, f32_to_f16(zero));
    }
  }
  return {};
}

}  // namespace

int64_t QTensor::scale_rows() const { return scale_rows_of(n, scaling, row_ends); }
int64_t QTensor::scale_cols() const { return scale_cols_of(k, scaling); }
int64_t QTensor::group() const { return scaling.k_block == Scaling::kAll ? k : scaling.k_block; }

int64_t QTensor::scale_row_of(int64_t r) const {
  if (scaling.n_block == 1) return r;
  if (scaling.n_block == Scaling::kAll) return 0;
  if (scaling.n_block == Scaling::kRowRanges)
    return std::upper_bound(row_ends.begin(), row_ends.end(), r) - row_ends.begin();
  return r / scaling.n_block;
}

float QTensor::scale(int64_t r, int64_t col) const {
  const int64_t scale_row = scale_row_of(r), i = scale_row * scale_cols() + col;
  switch (scaling.scale) {
    case ScaleKind::kF32:
      return read<float>(scales, i);
    case ScaleKind::kF16:
      return f16_to_f32(read<uint16_t>(scales, i));
    case ScaleKind::kBf16:
      return bf16_to_f32(read<uint16_t>(scales, i));
    case ScaleKind::kPow2:
      return std::ldexp(1.0f, -read<int8_t>(scales, i));
    case ScaleKind::kDouble: {
      const int64_t super = scale_row * ceil_div(scale_cols(), kSuperGroup) + col / kSuperGroup;
      return read<int8_t>(scales, i) * f16_to_f32(read<uint16_t>(super_scales, super));
    }
  }
  return 0;
}

float QTensor::offset(int64_t r, int64_t col) const {
  if (scaling.zero == ZeroKind::kNone) return 0;
  const float zero = read_zero(*this, scale_row_of(r) * scale_cols() + col);
  return scaling.zero == ZeroKind::kOffset ? zero : -(zero * scale(r, col));
}

const uint8_t* QTensor::row(int64_t r) const { return codes.as<uint8_t>() + r * row_bytes(format, k); }

int64_t QTensor::total_bytes() const {
  return codes.size() + scales.size() + super_scales.size() + zeros.size() + 4 * static_cast<int64_t>(codebook.size()) +
         8 * static_cast<int64_t>(row_ends.size());
}

double QTensor::bits_per_weight() const {
  return n * k == 0 ? 0.0
                    : 8.0 * static_cast<double>(total_bytes()) / (static_cast<double>(n) * static_cast<double>(k));
}

Status check_qtensor(const QTensor& w, const char* name) {
  const std::string where = name;
  const FormatInfo& info = format_info(w.format);
  if (w.n < 0 || w.k < 0) return fail(ErrorCode::kShapeMismatch, where, shape_string({w.n, w.k}), "extents >= 0");
  if (!info.canonical)
    return fail(ErrorCode::kUnsupported, where, std::string("format ") + info.name, "a canonical format");
  const auto bytes = checked_mul(static_cast<uint64_t>(w.n), static_cast<uint64_t>(row_bytes(w.format, w.k)));
  if (!bytes || *bytes != static_cast<uint64_t>(w.codes.size()))
    return mismatch(where, "code bytes", w.codes.size(), bytes ? static_cast<int64_t>(*bytes) : -1);
  if (info.kind == ValueKind::kDense) return {};
  const size_t entries = info.kind == ValueKind::kTable ? size_t{1} << info.code_bits : 0;
  if (w.codebook.size() != entries)
    return mismatch(where, "codebook entries", static_cast<int64_t>(w.codebook.size()), static_cast<int64_t>(entries));
  return check_scaling(w, where);
}

void dequantize_rows(const QTensor& w, int64_t first, int64_t count, float* out) {
  const bool dense = is_dense(w.format);
  const ZeroKind zero_kind = w.scaling.zero;
  for (int64_t r = first; r < first + count; ++r, out += w.k) {
    if (dense) {
      dense_row(w.format, w.row(r), w.k, out);
      continue;
    }
    row_values(w, r, 0, w.k, out);
    const int64_t group = w.group(), cols = w.scale_cols(), scale_row = w.scale_row_of(r);
    for (int64_t g = 0; g < cols; ++g) {
      const float scale = w.scale(r, g);
      const float zero = zero_kind == ZeroKind::kNone ? 0.0f : read_zero(w, scale_row * cols + g);
      const int64_t begin = g * group, end = std::min(begin + group, w.k);
      for (int64_t k = begin; k < end; ++k)
        out[k] = zero_kind == ZeroKind::kNone     ? out[k] * scale
                 : zero_kind == ZeroKind::kOffset ? out[k] * scale + zero
                                                  : (out[k] - zero) * scale;
    }
  }
}

Result<QTensor> expand(const QTensor& w) {
  QTensor out = w;
  out.format = format_info(w.format).expanded;
  if (out.format == w.format) return out;
  const int64_t stride = row_bytes(out.format, w.k);
  LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(w.n * stride, "weight codes"));
  std::vector<uint8_t> codes(static_cast<size_t>(w.k));
  for (int64_t r = 0; r < w.n; ++r) {
    format_ops(w.format).unpack(w.row(r), 0, w.k, codes.data());
    format_ops(out.format).pack(codes.data(), w.k, out.codes.as<uint8_t>() + r * stride);
  }
  return out;
}

std::vector<int32_t> value_sums(const QTensor& w) {
  const int64_t cols = w.scale_cols(), group = w.group();
  std::vector<int32_t> sums(static_cast<size_t>(w.n * cols));
  std::vector<float> values(static_cast<size_t>(w.k));
  for (int64_t r = 0; r < w.n; ++r) {
    row_values(w, r, 0, w.k, values.data());
    for (int64_t k = 0; k < w.k; ++k)
      sums[static_cast<size_t>(r * cols + k / group)] += static_cast<int32_t>(values[static_cast<size_t>(k)]);
  }
  return sums;
}

Result<QTensor> pack(const ValueTensor& v) {
  const FormatInfo& info = format_info(v.format);
  QTensor w;
  w.format = v.format;
  w.n = v.n;
  w.k = v.k;
  w.scaling = v.scaling;
  w.codebook = v.codebook;
  w.row_ends = v.row_ends;
  const int64_t scale_count = w.scale_rows() * w.scale_cols();
  const bool has_zeros = v.scaling.zero != ZeroKind::kNone;
  if (info.kind == ValueKind::kDense) return fail(ErrorCode::kInvalidArgument, "pack", info.name, "a packed format");
  if (static_cast<int64_t>(v.codes.size()) != v.n * v.k)
    return mismatch("pack", "codes", static_cast<int64_t>(v.codes.size()), v.n * v.k);
  if (static_cast<int64_t>(v.scales.size()) != scale_count)
    return mismatch("pack", "scales", static_cast<int64_t>(v.scales.size()), scale_count);
  if (static_cast<int64_t>(v.zeros.size()) != (has_zeros ? scale_count : 0))
    return mismatch("pack", "zero points", static_cast<int64_t>(v.zeros.size()), has_zeros ? scale_count : 0);

  const int64_t stride = row_bytes(v.format, v.k);
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(v.n * stride, "weight codes"));
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(scale_count * scale_bytes(v.scaling.scale), "weight scales"));
  LOWBIT_TRY_ASSIGN(w.zeros, Buffer::allocate(scale_count * zero_bytes(v.scaling), "weight zero points"));
  for (int64_t r = 0; r < v.n; ++r) {
    const uint8_t* const codes = v.codes.data() + r * v.k;
    const int64_t packed = format_ops(v.format).pack(codes, v.k, w.codes.as<uint8_t>() + r * stride);
    if (packed < v.k) return cannot_store(v.format, codes[packed], r, packed);
  }
  LOWBIT_TRY(store_scales(v, w));
  LOWBIT_TRY(check_qtensor(w, "pack"));
  return w;
}

Result<ValueTensor> unpack(const QTensor& w) {
  LOWBIT_TRY(check_qtensor(w, "unpack"));
  if (is_dense(w.format))
    return fail(ErrorCode::kInvalidArgument, "unpack", format_info(w.format).name, "a packed format");
  ValueTensor v;
  v.format = w.format;
  v.n = w.n;
  v.k = w.k;
  v.scaling = w.scaling;
  v.codebook = w.codebook;
  v.row_ends = w.row_ends;
  v.codes.resize(static_cast<size_t>(w.n * w.k));
  for (int64_t r = 0; r < w.n; ++r) format_ops(w.format).unpack(w.row(r), 0, w.k, v.codes.data() + r * w.k);
  const int64_t rows = w.scale_rows(), cols = w.scale_cols();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t any_row = w.scaling.n_block == Scaling::kAll ? 0
                            : w.scaling.n_block == Scaling::kRowRanges
                                ? (r ? w.row_ends[static_cast<size_t>(r - 1)] : 0)
                                : r * w.scaling.n_block;
    for (int64_t c = 0; c < cols; ++c) {
      v.scales.push_back(w.scale(any_row, c));
      if (w.scaling.zero != ZeroKind::kNone) v.zeros.push_back(read_zero(w, r * cols + c));
    }
  }
  for (int64_t i = 0; i < w.super_scales.size() / 2; ++i)
    v.super_scales.push_back(f16_to_f32(read<uint16_t>(w.super_scales, i)));
  return v;
}

}  // namespace lowbit
