#pragma once
// kernels/vector_math.h for the device: the same operations, rounded one by one.

#include <cuda_runtime.h>

#include <cstdint>

#include "base/float.h"
#include "base/rounding.h"

namespace lowbit::cuda::block {

constexpr int kLanes = 16;  // partial sums of a reduction: half a warp

__device__ __forceinline__ float exp_f32(float x) {
  if (x != x) return x;
  x = fminf(fmaxf(x, -104.0f), 89.0f);
  const float n = round_half_even(__fmul_rn(x, 1.44269504088896341f));
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  const int e = static_cast<int>(n), low = e >> 1, high = e - low;
  return __fmul_rn(__fmul_rn(p, __int_as_float((low + 127) << 23)), __int_as_float((high + 127) << 23));
}

/// The sum of sixteen lanes' values in the lowest of them, halving the width each time.
__device__ __forceinline__ float reduce_lanes(float sum) {
#pragma unroll
  for (int w = kLanes / 2; w > 0; w /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xffffffffu, sum, w, kLanes));
  return __shfl_sync(0xffffffffu, sum, 0, kLanes);
}

__device__ __forceinline__ float largest_of_lanes(float most) {
#pragma unroll
  for (int w = kLanes / 2; w > 0; w /= 2) {
    const float other = __shfl_down_sync(0xffffffffu, most, w, kLanes);
    most = other > most ? other : most;
  }
  return __shfl_sync(0xffffffffu, most, 0, kLanes);
}

}  // namespace lowbit::cuda::block
