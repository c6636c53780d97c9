#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/float.h"
#include "format/qtensor.h"
#include "lowbit/format.h"

namespace lowbit {
namespace {

constexpr std::array<std::pair<ScaleKind, const char*>, 5> kScaleNames = {{{ScaleKind::kF32, "float32"},
                                                                           {ScaleKind::kF16, "float16"},
                                                                           {ScaleKind::kBf16, "bfloat16"},
                                                                           {ScaleKind::kPow2, "pow2"},
                                                                           {ScaleKind::kDouble, "double"}}};
constexpr std::array<std::pair<ZeroKind, const char*>, 4> kZeroNames = {{{ZeroKind::kNone, "none"},
                                                                         {ZeroKind::kPointI8, "int8"},
                                                                         {ZeroKind::kPointF16, "float16"},
                                                                         {ZeroKind::kOffset, "offset"}}};

template <class Names>
auto parse_name(const Names& names, std::string_view name, const char* where) -> Result<decltype(names[0].first)> {
  std::string known;
  for (const auto& [kind, text] : names) {
    if (name == text) return kind;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  return fail(ErrorCode::kInvalidArgument, where, "'" + std::string(name) + "'", "one of " + known);
}

/// Nearest storable value, but a finite non-zero scale never becomes 0 or infinite.
float round_to_half(float scale, float smallest, float largest, float rounded) {
  if (scale != 0 && rounded == 0) return std::copysign(smallest, scale);
  if (std::isinf(rounded) && std::isfinite(scale)) return std::copysign(largest, scale);
  return rounded;
}

}  // namespace

const char* scale_kind_name(ScaleKind kind) { return kScaleNames[static_cast<size_t>(kind)].second; }
const char* zero_kind_name(ZeroKind kind) { return kZeroNames[static_cast<size_t>(kind)].second; }

Result<ScaleKind> parse_scale_kind(std::string_view name) {
  if (name == "f32") return ScaleKind::kF32;
  if (name == "f16") return ScaleKind::kF16;
  if (name == "bf16") return ScaleKind::kBf16;
  return parse_name(kScaleNames, name, "scale type");
}
Result<ZeroKind> parse_zero_kind(std::string_view name) { return parse_name(kZeroNames, name, "zero point type"); }

std::string scaling_name(const Scaling& s) {
  const bool whole_row = s.k_block == Scaling::kAll;
  if (s.n_block == Scaling::kRowRanges) return whole_row ? "ranges" : "ranges-g" + std::to_string(s.k_block);
  if (s.n_block == Scaling::kAll && whole_row) return "tensor";
  if (s.n_block == 1) return whole_row ? "row" : "g" + std::to_string(s.k_block);
  const auto extent = [](int64_t block) { return block == Scaling::kAll ? std::string("all") : std::to_string(block); };
  return extent(s.n_block) + "x" + extent(s.k_block);
}

int64_t scale_bytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kF32:
      return 4;
    case ScaleKind::kF16:
    case ScaleKind::kBf16:
      return 2;
    case ScaleKind::kPow2:
    case ScaleKind::kDouble:
      return 1;
  }
  return 0;
}

int64_t zero_bytes(const Scaling& s) {
  switch (s.zero) {
    case ZeroKind::kNone:
      return 0;
    case ZeroKind::kPointI8:
      return 1;
    case ZeroKind::kPointF16:
      return 2;
    case ZeroKind::kOffset:
      return s.scale == ScaleKind::kF32 ? 4 : 2;
  }
  return 0;
}

float round_scale(float scale, ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kF32:
    case ScaleKind::kDouble:
      return scale;
    case ScaleKind::kF16:
      return round_to_half(scale, 0x1p-24f, 65504.0f, f16_to_f32(f32_to_f16(scale)));
    case ScaleKind::kBf16:
      return round_to_half(scale, 0x1p-133f, 0x1.fep127f, bf16_to_f32(f32_to_bf16(scale)));
    case ScaleKind::kPow2: {
      if (scale == 0)
        return 0x1p-127f;  // a shift has no zero: the smallest scale, far below any value that
                           // matters
      const float exponent = std::nearbyint(std::log2(std::fabs(scale)));
      return std::ldexp(1.0f, static_cast<int>(std::fmin(std::fmax(exponent, -127.0f), 127.0f)));
    }
  }
  return scale;
}

void double_quantize(float* scales, int64_t cols, float* supers) {
  for (int64_t begin = 0; begin < cols; begin += kSuperGroup, ++supers) {
    const int64_t end = std::min(begin + kSuperGroup, cols);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::fmax(largest, std::fabs(scales[i]));
    *supers = largest == 0 ? 0.0f : round_scale(largest / 127.0f, ScaleKind::kF16);
    for (int64_t i = begin; i < end; ++i) {
      const float code = *supers == 0 ? 0.0f : std::nearbyint(scales[i] / *supers);
      scales[i] = std::fmin(std::fmax(code, -127.0f), 127.0f) * *supers;
    }
  }
}

}  // namespace lowbit
