#pragma once
// Floats that tell by themselves whether they have been written: before a pass all of them have the bits of kUnwritten,
// which no arithmetic yields. So a kernel reads what its predecessor stores as soon as it is stored, and need not wait
// for the predecessor's end first. The writer must run already: a dependent launch begins when all thread blocks of its
// predecessor have begun. Reading again and again delays those who store: a kernel that waits here lets its successor
// start when its own rows have come, not before.

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

inline constexpr uint32_t kUnwritten = 0xffffffffu;

__device__ __forceinline__ bool is_unwritten(float v) { return __float_as_uint(v) == kUnwritten; }
__device__ __forceinline__ bool is_unwritten(const float4& v) {
  return is_unwritten(v.x) || is_unwritten(v.y) || is_unwritten(v.z) || is_unwritten(v.w);
}

/// `v`, which was loaded from there, once it is written.
template <class T>
__device__ __forceinline__ T when_written(T v, const T* from) {
  while (is_unwritten(v)) v = load_relaxed(from);
  return v;
}

/// Null: nobody reads it with marks.
__device__ __forceinline__ void store_marked(float* to, float v) {
  if (to != nullptr) store_relaxed(to, is_unwritten(v) ? __uint_as_float(0x7fffffffu) : v);
}

}  // namespace lowbit::cuda
