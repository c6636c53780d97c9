#pragma once
// Thread blocks of a cluster (compute capability 9.0): where they meet, and what they store in each other.

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

/// The two halves of a place where all blocks of a cluster meet: each has come this far, and what it wrote to its own
/// shared memory before is there for those that have waited. A block that has ended has come.
__device__ __forceinline__ void arrive_in_cluster() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// The address of `p`, in shared memory, as block `rank` of the cluster has it.
__device__ __forceinline__ uint32_t address_in_cluster(const void* p, int rank) {
  uint32_t a = 0;
#if LOWBIT_SM90
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(a)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))), "r"(rank));
#endif
  return a;
}

/// Stores to a block of the cluster whose barrier counts their bytes: it alone must still be there when they come. Both
/// addresses are of address_in_cluster().
__device__ __forceinline__ void store_in_cluster(uint32_t to, float v, uint32_t barrier) {
#if LOWBIT_SM90
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(v)), "r"(barrier)
               : "memory");
#endif
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float2 v, uint32_t barrier) {
#if LOWBIT_SM90
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(barrier)
               : "memory");
#endif
}
/// One thread makes a barrier that waits for `bytes` of such stores, before arrive_in_cluster().
__device__ __forceinline__ void expect_in_cluster(uint64_t* barrier, int bytes) {
#if LOWBIT_SM90
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  barrier_init(at, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  barrier_expect(at, static_cast<uint32_t>(bytes));
#endif
}
/// All bytes have come.
__device__ __forceinline__ void wait_for_stores(uint64_t* barrier) {
#if LOWBIT_SM90
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(at)
        : "memory");
#endif
}

}  // namespace lowbit::cuda
