#pragma once
// QTensor: a weight matrix in a format, in canonical packing; and ValueTensor, what quantizers
// produce before packing.

#include <cstdint>
#include <span>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/format.h"
#include "tensor/buffer.h"

namespace lowbit {

/// Groups that share one super-scale along a row when scales are double-quantized.
inline constexpr int64_t kSuperGroup = 16;

/// A weight matrix [n, k] (n outputs, k reduction). real[n, k] = (value - zero) * scale, or value *
/// scale + zero for ZeroKind::kOffset, each operation rounded to f32 on its own.
struct QTensor {
  FormatId format = FormatId::kF32;
  int64_t n = 0, k = 0;
  Buffer codes;  // [n, row_bytes(format, k)] bytes; dense formats: the floats themselves
  Scaling scaling;
  Buffer scales;                  // [scale_rows, scale_cols] of the scale kind's type: f32, f16, bf16, int8 shift
                                  // or int8 code
  Buffer super_scales;            // kDouble only: f16 [scale_rows, ceil(scale_cols / kSuperGroup)]
  Buffer zeros;                   // ZeroKind's type, same shape as scales
  std::vector<float> codebook;    // kTable only: 2^code_bits entries
  std::vector<int64_t> row_ends;  // Scaling::kRowRanges only: ascending, last == n

  int64_t scale_rows() const;
  int64_t scale_cols() const;  // ceil(k / k_block), 1 when k_block is kAll
  int64_t group() const;       // columns that share a scale: k_block, or k
  int64_t scale_row_of(int64_t row) const;
  float scale(int64_t row, int64_t col) const;  // row in [0, n), col in [0, scale_cols)
  /// The additive term: real = value * scale + offset. Exact for kOffset; for zero points it is
  /// -(zero * scale).
  float offset(int64_t row, int64_t col) const;

  const uint8_t* row(int64_t r) const;
  int64_t total_bytes() const;     // codes, scales, zeros, codebook
  double bits_per_weight() const;  // 8 * total_bytes / (n * k)
};

/// Shapes, buffer sizes, alphabet and scaling agree with each other. `name` is for the message.
Status check_qtensor(const QTensor& w, const char* name);

/// out[0 .. count * k) = real values of rows [first, first + count). The normative meaning of every
/// format.
void dequantize_rows(const QTensor& w, int64_t first, int64_t count, float* out);

/// `w` with codes that can be decoded one by one: in format_info(w.format).expanded. Errors: kOutOfMemory.
Result<QTensor> expand(const QTensor& w);

/// Sum of the values (not reals) of each row over each group: [n, scale_cols]. Integer formats
/// only. With it sum (value)(x - zero_x) = sum value x - zero_x * row_sum, the one identity behind
/// every zero point.
std::vector<int32_t> value_sums(const QTensor& w);

/// A quantizer's product: integers or E4M3 codes or table indices, with real-valued scales;
/// unpacked. pack() makes bits of it.
struct ValueTensor {
  FormatId format = FormatId::kInt8;
  int64_t n = 0, k = 0;
  std::vector<uint8_t> codes;  // [n, k], one code a byte
  Scaling scaling;
  std::vector<float> scales;        // [scale_rows, scale_cols], already rounded to the scale kind
  std::vector<float> super_scales;  // kDouble only: [scale_rows, ceil(scale_cols / kSuperGroup)],
                                    // from double_quantize()
  std::vector<float> zeros;         // likewise, empty for ZeroKind::kNone
  std::vector<float> codebook;
  std::vector<int64_t> row_ends;
};

/// Packs codes canonically and stores scales in their kind. Errors: kInvalidArgument when a code is
/// outside the alphabet or off its trellis or a size does not fit; kOutOfMemory.
Result<QTensor> pack(const ValueTensor& values);
Result<ValueTensor> unpack(const QTensor& w);

/// The scale a kind can store that is nearest to `scale` (kPow2: nearest in the exponent, sign
/// dropped; kDouble: unchanged, see double_quantize). Never 0, infinite or NaN for a finite
/// non-zero input; 0 stays 0 where the kind has a zero.
float round_scale(float scale, ScaleKind kind);

/// Double quantization of one row's scales: per kSuperGroup of them an f16 super-scale, and each
/// scale replaced by code * super with an int8 code. scales[0..cols) is rewritten in place,
/// supers[0..ceil(cols / kSuperGroup)) is filled.
void double_quantize(float* scales, int64_t cols, float* supers);

int64_t scale_bytes(ScaleKind kind);
int64_t zero_bytes(const Scaling& scaling);  // bytes of one zero; 0 for kNone

}  // namespace lowbit
