#pragma once
// In place of src/kernels/cuda/elements.cuh: what kernels of cuda/block/ need of it, for a host compiler.

#include <cmath>

#include "base/float.h"
#include "tests/conformance/cuda_emulated/block_fibers.h"

namespace lowbit::cuda {

inline float f16_value(uint16_t h) { return f16_to_f32(h); }
inline uint16_t f16_nearest(float f) { return f32_to_f16(f); }

inline uint32_t magnitude_bits(float v) { return f32_to_bits(v) & 0x7fffffffu; }
struct Quantizer {
  float scale, inverse;
};
inline Quantizer quantizer_of(uint32_t largest) {
  const float a = bits_to_f32(largest);
  if (largest > 0x7f800000u) return {bits_to_f32(0x7fc00000u), 0.0f};
  if (a < 0x1p-120f) return {0.0f, 0.0f};
  if (largest == 0x7f800000u) return {a, 0.0f};
  return {a / 127.0f, 127.0f / a};
}
inline float exact_scale(float scale) {
  constexpr uint32_t kDropped = (1u << 18) - 1;
  return bits_to_f32((f32_to_bits(scale) + kDropped) & ~kDropped);
}
inline Quantizer exact_quantizer(const Quantizer& q) {
  if (q.inverse == 0.0f) return q;
  const float scale = exact_scale(q.scale);
  return {scale, 1.0f / scale};
}
inline uint32_t largest_of_exact(uint32_t most, bool exact_scales) {
  return exact_scales ? __reduce_max_sync(0xffffffffu, most) : most;
}
inline int quantize_one(float v, float inverse) {
  return inverse == 0.0f ? 0 : static_cast<int>(std::nearbyint(v * inverse));
}

}  // namespace lowbit::cuda
