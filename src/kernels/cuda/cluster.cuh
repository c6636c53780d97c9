#pragma once
// Thread blocks that run together and write to each other's shared memory, on compute capability 9.0 and higher. A
// kernel that does not run in clusters must not call these. tests/conformance/cuda_emulated/ has the same for a host.

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

/// This block has begun: others may write to it once they have waited.
__device__ __forceinline__ void cluster_begins() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
/// This block's stores so far are for the others to see once they have waited.
__device__ __forceinline__ void cluster_arrives() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_waits() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// To the same place of another block's shared memory as `to` is of this one's.
__device__ __forceinline__ void store_in_block(float* to, int rank, float v) {
#if LOWBIT_SM90
  asm volatile("{.reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2;}" ::"r"(
                   shared_address(to)),
               "r"(rank), "f"(v)
               : "memory");
#endif
}

}  // namespace lowbit::cuda
