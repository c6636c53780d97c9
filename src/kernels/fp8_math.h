#pragma once
// The scalar parts of FP8 in blocks, for the CPU and the GPU: docs/numerics.md#fp8-in-blocks.

#include <cstdint>

#include "base/float.h"
#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// The largest magnitude of E4M3.
inline constexpr float kE4m3Max = 448.0f;

/// The scale of a block whose largest magnitude is `largest`; NaN stays NaN. A power of two is rounded up, so that no
/// code saturates, and is 2^-126 at least.
constexpr LOWBIT_HD float fp8_scale(float largest, bool power_of_two) {
  if (largest < 0x1p-120f) return 0.0f;
  const float scale = largest / kE4m3Max;
  const uint32_t bits = f32_to_bits(scale);
  if (!power_of_two || bits >= 0x7f800000u) return scale;
  return bits_to_f32((bits + 0x7fffffu) & 0x7f800000u);
}

/// Codes stand for something: the scale is neither 0 nor infinite nor NaN. All codes of other blocks are 0.
constexpr LOWBIT_HD bool fp8_has_codes(float scale) { return scale > 0.0f && f32_to_bits(scale) < 0x7f800000u; }

}  // namespace LOWBIT_ISA
}  // namespace lowbit
