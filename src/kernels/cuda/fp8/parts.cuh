#pragma once
// Shared by the kernels of FP8 in blocks: loading, rounding, and shuffles between the lanes of a block.

#include <cuda_runtime.h>

#include <cstdint>

#include "base/float.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/fp8_math.h"
#include "kernels/fp8_problem.h"

namespace lowbit::cuda::fp8 {

constexpr int kThreads = 256;
constexpr int kLanes = 16, kPerLane = 8;  // half a warp takes a block of 128 columns
static_assert(kLanes * kPerLane == kFp8Block);

template <Fp8Element E>
__device__ __forceinline__ float load_one(const void* x, int64_t i) {
  if constexpr (E == Fp8Element::kF32) return static_cast<const float*>(x)[i];
  const uint16_t half = static_cast<const uint16_t*>(x)[i];
  return E == Fp8Element::kF16 ? f16_value(half) : bf16_to_f32(half);
}

/// Elements i .. i + 7, of which the first n are there; the others are 0. kWide: i begins 16 bytes, and all are there
/// or none.
template <Fp8Element E, bool kWide>
__device__ __forceinline__ void load_lane(const void* x, int64_t i, int n, float (&v)[kPerLane]) {
  if (kWide && n == kPerLane) {
    if constexpr (E == Fp8Element::kF32) {
      const float4* const from = reinterpret_cast<const float4*>(static_cast<const float*>(x) + i);
      const float4 a = from[0], b = from[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x) + i);
      const uint32_t words[4] = {all.x, all.y, all.z, all.w};
      for (int w = 0; w < 4; ++w)
        for (int h = 0; h < 2; ++h) {
          const auto half = static_cast<uint16_t>(words[w] >> (16 * h));
          v[2 * w + h] = E == Fp8Element::kF16 ? f16_value(half) : bf16_to_f32(half);
        }
    }
    return;
  }
  for (int j = 0; j < kPerLane; ++j) v[j] = j < n ? load_one<E>(x, i + j) : 0.0f;
}

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

/// The largest of half a warp's numbers, in all of its lanes. Magnitudes compare as integers, and NaN is larger than
/// all others.
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t most) {
#pragma unroll
  for (int w = kLanes / 2; w > 0; w /= 2)
    most = max(most, __float_as_uint(__shfl_down_sync(0xffffffffu, __uint_as_float(most), w, kLanes)));
  return __float_as_uint(__shfl_sync(0xffffffffu, __uint_as_float(most), 0, kLanes));
}

/// A scale prepared for divisions x / scale.
struct Divisor {
  float scale, inverse;
  bool plain;
};
__device__ __forceinline__ Divisor divisor_of(float scale) {
  return {scale, __fdiv_rn(1.0f, scale), scale > 0x1p-80f && scale < 0x1p80f};
}
/// x / scale, rounded to nearest, for quotients up to 448. Between 2^-80 and 2^80 two corrections of a product with the
/// reciprocal are the division; what underflows there is far below the smallest code.
__device__ __forceinline__ float quotient(float x, const Divisor& d) {
  if (!d.plain) return __fdiv_rn(x, d.scale);
  const float q = __fmul_rn(x, d.inverse);
  const float closer = __fmaf_rn(__fmaf_rn(-q, d.scale, x), d.inverse, q);
  const float found = __fmaf_rn(__fmaf_rn(-closer, d.scale, x), d.inverse, closer);
  return __uint_as_float((__float_as_uint(found) & 0x7fffffffu) | (__float_as_uint(x) & 0x80000000u));  // of -0, too
}

/// Two codes, the first in the lower byte. No NaN comes here.
__device__ __forceinline__ uint32_t codes_of(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return uint32_t{f32_to_e4m3(first)} | uint32_t{f32_to_e4m3(second)} << 8;
#endif
}

__device__ __forceinline__ uint64_t eight_codes(const float (&v)[kPerLane], const Divisor& by) {
  uint64_t codes = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; j += 2)
    codes |= uint64_t{codes_of(quotient(v[j], by), quotient(v[j + 1], by))} << (8 * j);
  return codes;
}

/// A lane's codes; the first n of them are stored. kWide: at a multiple of 8 bytes, all or none.
template <bool kWide>
__device__ __forceinline__ void store_codes(const float (&v)[kPerLane], float scale, int n, uint8_t* to) {
  uint64_t codes = 0;
  if (fp8_has_codes(scale)) {
    const Divisor by = divisor_of(scale);
    codes = by.plain ? eight_codes(v, {by.scale, by.inverse, true}) : eight_codes(v, {by.scale, by.inverse, false});
  }
  if (kWide && n == kPerLane) {
    *reinterpret_cast<uint2*>(to) = uint2{static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
    return;
  }
  for (int j = 0; j < n; ++j) to[j] = static_cast<uint8_t>(codes >> (8 * j));
}

__device__ __forceinline__ float* scale_at(const Fp8Quant& q, int64_t row, int64_t block) {
  return q.scales + (q.scales_by_column ? block * q.ldscales + row : row * q.ldscales + block);
}

/// By columns: zeros behind the last row, from its block of threads.
__device__ __forceinline__ void clear_padding(const Fp8Quant& q, int64_t rows, int64_t row, int64_t block) {
  if (!q.scales_by_column || row != rows - 1) return;
  const int64_t end = min((rows + kFp8ScaleRowMultiple - 1) / kFp8ScaleRowMultiple * kFp8ScaleRowMultiple, q.ldscales);
  for (int64_t r = rows; r < end; ++r) *scale_at(q, r, block) = 0.0f;
}

}  // namespace lowbit::cuda::fp8
