#pragma once
// Reading and writing f32, f16 and bf16 as base/float.h defines them, and the quantization of activations.

#include <cstdint>

#include "base/float.h"
#include "kernels/cuda_operands.h"

namespace lowbit::cuda {

__device__ __forceinline__ float f16_value(uint16_t h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
__device__ __forceinline__ uint16_t f16_nearest(float f) {
  uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

__device__ __forceinline__ float load_element(const void* p, Element e, int64_t i) {
  if (e == Element::kF32) return static_cast<const float*>(p)[i];
  const uint16_t h = static_cast<const uint16_t*>(p)[i];
  return e == Element::kBf16 ? bf16_to_f32(h) : f16_value(h);
}

__device__ __forceinline__ void store_element(void* p, Element e, int64_t i, float v) {
  if (e == Element::kF32) {
    static_cast<float*>(p)[i] = v;
  } else {
    static_cast<uint16_t*>(p)[i] = e == Element::kBf16 ? f32_to_bf16(v) : f16_nearest(v);
  }
}

/// Four consecutive elements from `first` on, zeros from `count` on. `aligned`: the address is a multiple of four
/// elements.
__device__ __forceinline__ void load_four(const void* p, Element e, int64_t first, int64_t count, bool aligned,
                                          float (&v)[4]) {
  if (aligned && first + 4 <= count) {
    if (e == Element::kF32) {
      const float4 f = *reinterpret_cast<const float4*>(static_cast<const float*>(p) + first);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
      const ushort4 h = *reinterpret_cast<const ushort4*>(static_cast<const uint16_t*>(p) + first);
      const uint16_t part[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = e == Element::kBf16 ? bf16_to_f32(part[i]) : f16_value(part[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = first + i < count ? load_element(p, e, first + i) : 0.0f;
}

/// The largest magnitude as bits: ordered like unsigned integers, NaN above infinity.
__device__ __forceinline__ uint32_t magnitude_bits(float v) { return f32_to_bits(v) & 0x7fffffffu; }

struct Quantizer {
  float scale, inverse;
};
/// The table of docs/numerics.md#activations. Divisions are IEEE's.
__device__ __forceinline__ Quantizer quantizer_of(uint32_t largest) {
  const float a = bits_to_f32(largest);
  if (largest > 0x7f800000u) return {bits_to_f32(0x7fc00000u), 0.0f};
  if (a < 0x1p-120f) return {0.0f, 0.0f};
  if (largest == 0x7f800000u) return {a, 0.0f};
  return {__fdiv_rn(a, 127.0f), __fdiv_rn(127.0f, a)};
}

/// exact_scale() of kernels/vector_math.h.
__device__ __forceinline__ float exact_scale(float scale) {
  constexpr uint32_t kDropped = (1u << 18) - 1;
  return bits_to_f32((f32_to_bits(scale) + kDropped) & ~kDropped);
}
/// The quantizer of codes with exact scales, of that without.
__device__ __forceinline__ Quantizer exact_quantizer(const Quantizer& q) {
  if (q.inverse == 0.0f) return q;
  const float scale = exact_scale(q.scale);
  return {scale, __fdiv_rn(1.0f, scale)};
}
/// Lanes of four columns each: the largest magnitude of the 128 columns that a warp has, where they share a scale,
/// else `most`, that of the 32 columns of eight lanes. All lanes.
__device__ __forceinline__ uint32_t largest_of_exact(uint32_t most, bool exact_scales) {
  return exact_scales ? __reduce_max_sync(0xffffffffu, most) : most;
}

__device__ __forceinline__ int quantize_one(float v, float inverse) {
  return inverse == 0.0f ? 0 : __float2int_rn(__fmul_rn(v, inverse));
}

}  // namespace lowbit::cuda
