#pragma once
// A barrier of some warps of a thread block.

namespace lowbit::cuda {

/// `id` from 1 on: 0 is __syncthreads().
__device__ __forceinline__ void team_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace lowbit::cuda
