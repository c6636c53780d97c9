#pragma once
// Barriers of some warps of a thread block.

#include <cstdint>

namespace lowbit::cuda {

/// `id` from 1 on: 0 is __syncthreads().
__device__ __forceinline__ void team_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Of those that barrier_init() asked for; barrier_wait() waits for all.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

}  // namespace lowbit::cuda
