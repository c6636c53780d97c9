#pragma once
// The storage formats of weights: which exist, how a code means a value, where scales lie.
//
// Vocabulary: a code is the stored bits of one element, a value is what it means (a small integer,
// an E4M3 float or a table entry), and  real = (value - zero) * scale.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lowbit/error.h"
#include "lowbit/format_id.h"

namespace lowbit {

enum class ValueKind : uint8_t {
  kDense,    // the element is a float: no codes, no scales
  kInteger,  // value is an int8
  kFloat,    // value is an E4M3 float
  kTable,    // value is an entry of the tensor's codebook
};

struct FormatInfo {
  FormatId id;
  const char* name;      // what files, options and reports say
  const char* alphabet;  // the values, for people: "-2..1", "-1, +1"
  ValueKind kind;
  bool canonical;  // may appear in a checkpoint
  int code_bits;   // bits of one code
  int pack_elems;  // elements of the smallest packed run
  int pack_bytes;  // and its bytes
  int min_value;   // kInteger only
  int max_value;
  FormatId expanded;  // a format with the same codes that stores each on its own: `id` itself, but for a trellis

  /// Storage of one code, e.g. 1.6 for five ternary values in a byte. Scales not included.
  double bits_per_code() const { return 8.0 * pack_bytes / pack_elems; }
};

std::span<const FormatInfo> formats();
const FormatInfo& format_info(FormatId id);

/// f32, f16, bf16: numbers as they are, without codes and scales.
inline bool is_dense(FormatId id) { return format_info(id).kind == ValueKind::kDense; }
Result<FormatId> parse_format(std::string_view name);

/// The bit layout of one pack as text: which element and bit lies where, and each code's value.
std::string draw_layout(FormatId id);

enum class ScaleKind : uint8_t {
  kF32,
  kF16,
  kBf16,
  kPow2,    // int8 shift: scale = 2^-shift
  kDouble,  // int8 code times an f16 super-scale shared by 16 groups of a row: scale = code * super
};
enum class ZeroKind : uint8_t {
  kNone,
  kPointI8,   // int8 zero point in value steps: real = (value - zero) * scale
  kPointF16,  // the same with a fractional zero
  kOffset,    // real = value * scale + zero; zero in f32 when the scale is f32, else f16
};

const char* scale_kind_name(ScaleKind kind);  // "float32", "float16", "bfloat16", "pow2", "double"
Result<ScaleKind> parse_scale_kind(std::string_view name);
const char* zero_kind_name(ZeroKind kind);  // "none", "int8", "float16", "offset"
Result<ZeroKind> parse_zero_kind(std::string_view name);

/// Which elements share a scale: blocks of n_block rows by k_block columns. The last block of a row
/// or column may be short.
struct Scaling {
  static constexpr int64_t kAll = 0;  // the block spans every row (n_block) or the whole row (k_block)
  static constexpr int64_t kRowRanges =
      -1;  // n_block: blocks of unequal height, QTensor::row_ends says where each ends

  int64_t n_block = 1;
  int64_t k_block = kAll;
  ScaleKind scale = ScaleKind::kF16;
  ZeroKind zero = ZeroKind::kNone;

  bool operator==(const Scaling&) const = default;
};

/// "tensor", "row", "g64", "128x128", "ranges".
std::string scaling_name(const Scaling& scaling);

}  // namespace lowbit
