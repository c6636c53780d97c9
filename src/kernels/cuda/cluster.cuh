#pragma once
// Thread blocks of a cluster (compute capability 9.0): where they meet, and what they read of each other.

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

/// Where the blocks of a cluster meet: what they have stored in shared memory is there for the others.
__device__ __forceinline__ void meet_in_cluster() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// *from in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ float load_from_cluster(const float* from, int rank) {
  float v = 0;
#if LOWBIT_SM90
  asm volatile("{.reg .u32 a; mapa.shared::cluster.u32 a, %1, %2; ld.shared::cluster.f32 %0, [a];}"
               : "=f"(v)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(rank)
               : "memory");
#endif
  return v;
}

}  // namespace lowbit::cuda
