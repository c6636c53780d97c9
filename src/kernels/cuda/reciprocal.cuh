#pragma once
// 1 / d to about 23 bits.

namespace lowbit::cuda {

__device__ __forceinline__ float reciprocal_estimate(float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  return r;
}

}  // namespace lowbit::cuda
