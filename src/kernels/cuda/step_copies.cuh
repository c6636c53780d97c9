#pragma once
// Copies of a thread's own weights to shared memory in the kernels of a decoding step, and barriers of their teams.

#include "kernels/cuda/half_matrices.cuh"

namespace lowbit::cuda {

__device__ __forceinline__ void copy_async_8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/// kCount threads meet, at another barrier than that of all of a block, which is number 0.
template <int kCount>
__device__ __forceinline__ void sync_threads_at(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

}  // namespace lowbit::cuda
