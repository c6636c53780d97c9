#pragma once
// Packed matrices of the KV cache: codes of 2, 3, 4 or 8 bits, each row with a scale and a least value of its own, both
// stored in 8 bits. A row of packed keys is one element of a head over the positions of a page, a row of packed values
// one position over some elements of the head; so one order of codes and one product serve both. Exact definition:
// docs/kv-cache.md; meaning: kernels/ref/packed_kv.h.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"

namespace lowbit {

/// A matrix of the KV cache whose rows have a scale and a least value each:
/// real[r][c] = super_least * leasts[r] + super_scale * scales[r] * code[r][c].
/// side: f32 super_scale, f32 super_least, u8 scales [rows], i8 leasts [rows].
struct PackedMatrix {
  const uint8_t *codes = nullptr, *side = nullptr;
};

/// A span with packed pages: those whose keys and values are null. A row of keys is one element of a head, a row of
/// values one position. Numerics: those of SpanArgs, but on a packed page, whose products are those of
/// kernels/ref/packed_kv.h:
///   c[t] = packed_product(q, keys);  o = o + packed_product(e, values), e[t] = 0 for positions that the query does not
///     see
struct PackedSpanArgs : SpanArgs {
  PackedMatrix packed_keys[kSpanPages];  // {bits, d, kKvPage}
  /// {bits, kKvPage, value_columns(bits)} one behind the other, codes and sides; the last may be narrower.
  PackedMatrix packed_values[kSpanPages];
  int key_bits[kSpanPages] = {}, value_bits[kSpanPages] = {};
};
inline namespace LOWBIT_ISA {

/// rows: a multiple of 16, at most kMostPackedRows. columns: 16, 32, 48 or 64. bits: 2, 3, 4 or 8, and 1 for a part of
/// 3.
struct PackedShape {
  int bits = 4;
  int64_t rows = 0, columns = 0;

  constexpr int64_t code_bytes() const { return rows * columns * bits / 8; }
  constexpr int64_t side_bytes() const { return 2 * int64_t(sizeof(float)) + 2 * rows; }
};
/// Products of a row with codes below 256 must fit in 32 bits.
inline constexpr int64_t kMostPackedRows = 256;
/// Heads that can be packed: 16, 32, .. 256 elements.
constexpr bool is_packable_head(int64_t d) { return d > 0 && d % 16 == 0 && d <= kMostPackedRows; }

/// Codes lie in packs of 64 bytes: 32 words of 16 bits, each with 16 / bits codes, the first in the lowest bits. Code
/// number k of word w belongs to vector v = pack * (16 / bits) + k. Vector v holds rows 2 p and 2 p + 1 with p = v /
/// (columns / 16), columns 16 n to 16 n + 15 with n = v % (columns / 16); word w is row 2 p + w % 2, column 16 n + w /
/// 2 of them. So a shift and a mask give pairs of rows side by side, as instructions multiply them.
struct CodePosition {
  int64_t byte;
  int shift;
};
constexpr CodePosition code_position(const PackedShape& s, int64_t row, int64_t column) {
  const int64_t of_word = 16 / s.bits, vector = row / 2 * (s.columns / 16) + column / 16;
  const int64_t word = vector / of_word * 32 + column % 16 * 2 + row % 2, bit = vector % of_word * s.bits;
  return {2 * word + bit / 8, int(bit % 8)};
}

/// Codes of 3 bits are two matrices, one behind the other: the low two bits, then the highest.
constexpr PackedShape low_bits(const PackedShape& s) { return {2, s.rows, s.columns}; }
constexpr PackedShape high_bit(const PackedShape& s) { return {1, s.rows, s.columns}; }

/// The code of an element.
constexpr int code_at(const uint8_t* codes, const PackedShape& s, int64_t row, int64_t column) {
  if (s.bits == 3)
    return code_at(codes, low_bits(s), row, column) |
           code_at(codes + low_bits(s).code_bytes(), high_bit(s), row, column) << 2;
  const CodePosition at = code_position(s, row, column);
  return codes[at.byte] >> at.shift & ((1 << s.bits) - 1);
}

/// Values share a scale over so many elements of a head; the last block may be narrower.
constexpr int64_t value_columns(int bits) { return bits <= 2 ? 32 : 64; }

/// x of a packed product becomes integers of this magnitude.
inline constexpr float kPackedX = 32767.0f;

/// The two factors of x in a packed product, as RowQuantizer's.
struct PackedX {
  float scale, inverse;
};
inline PackedX packed_x(float absmax, bool has_nan) {
  if (has_nan || absmax > 3.4028234e38f) return {__builtin_nanf(""), 0.0f};
  if (absmax < 0x1p-100f) return {0.0f, 0.0f};
  return {absmax / kPackedX, kPackedX / absmax};
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
