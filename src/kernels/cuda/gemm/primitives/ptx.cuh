#pragma once
// PTX that has no intrinsic: barriers in shared memory, the bulk copy engine, clusters, dependent launch. sm_90 and
// later unless a function says otherwise.

#include <cuda.h>
#include <cstdint>

namespace lowbit::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra WAIT; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// `bytes` (a multiple of 16) from global to this block's shared memory; completes on `barrier`.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// One box of a 2-D tensor map, coordinates in elements; what lies outside of the tensor becomes 0.
__device__ __forceinline__ void box_load(uint32_t to, const CUtensorMap* map, int col, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(col), "r"(row), "r"(barrier)
      : "memory");
}
/// One box of a 3-D tensor map.
__device__ __forceinline__ void slab_load(uint32_t to, const CUtensorMap* map, int col, int row, int slab,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(map), "r"(col), "r"(row), "r"(slab), "r"(barrier)
      : "memory");
}
/// One box from this block's shared memory to a 2-D tensor map; what lies outside of the tensor is left out, but for
/// the rest of 16 bytes that begin inside of it. A thread's
/// boxes are waited for together by store_wait().
__device__ __forceinline__ void box_store(const CUtensorMap* map, int col, int row, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\ncp.async.bulk.commit_group;" ::"l"(
          map),
      "r"(col), "r"(row), "r"(from)
      : "memory");
}
/// The shared memory of this thread's box_store() may be written again.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Ordinary writes to shared memory become visible to the copy engine.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Everything the previous kernel wrote is visible behind this; nothing happens without the launch attribute.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Orders nothing but itself: enough to know that every block of the cluster has begun and set up its barriers.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/// The address that corresponds to `address` in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Two words to another block; `barrier`, of that block, counts their 8 bytes when they have arrived.
__device__ __forceinline__ void send_pair(uint32_t address, uint32_t a, uint32_t b, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "r"(a), "r"(b), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send_quad(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
/// barrier_arrive() without a branch, where ptxas takes one between products for a divergent path (C7520).
__device__ __forceinline__ void barrier_arrive_if(bool arrives, uint32_t barrier) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %0, 0; @p mbarrier.arrive.shared::cta.b64 _, [%1]; }" ::"r"(int{arrives}),
      "r"(barrier)
      : "memory");
}
/// One thread of a converged warp. The compiler knows that it is one, as it does not of a comparison with threadIdx.
__device__ __forceinline__ bool elected() {
  uint32_t yes;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(yes));
  return yes != 0;
}
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// This thread's warpgroup, in a form that the compiler knows to be uniform over a warp: values that follow from it
/// stay in uniform registers, where descriptors of wgmma and copies must be. From threadIdx alone it moves each of them
/// over, one by one, in the innermost loops.
__device__ __forceinline__ int warpgroup_of_thread() { return __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0); }

template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace lowbit::cuda
