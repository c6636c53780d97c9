#pragma once
// Instructions of this folder's kernels: signed weights times unsigned codes on the matrix unit, clusters.

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::gru {

/// c[16, 8] += a[16, 32] b[32, 8], a signed, b unsigned; places as in mma_u8_s8. Sums modulo 2^32.
__device__ __forceinline__ void mma_s8_u8(int (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// The compiler keeps v in a register: it may not find it again from where it came.
__device__ __forceinline__ void hold(int& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void hold(uint32_t& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void hold(float& v) { asm volatile("" : "+f"(v)); }
__device__ __forceinline__ void hold(double& v) { asm volatile("" : "+d"(v)); }

/// Four blocks of 8 rows x 16 bytes; lane i holds the address of row i % 8 of block i / 8 and gets 4 bytes of each
/// block.
__device__ __forceinline__ void load_blocks(uint32_t (&b)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}

/// The dynamic shared memory of this block.
__device__ __forceinline__ uint8_t* block_memory() {
  extern __shared__ __align__(128) uint8_t bytes[];
  return bytes;
}
__device__ __forceinline__ float load_shared_f32(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared_1(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared_2(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(uint16_t(v)) : "memory");
}
__device__ __forceinline__ void store_shared_16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
/// Warps 2 pair and 2 pair + 1 of a block.
__device__ __forceinline__ void pair_sync(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }
/// The first `threads` of a block.
__device__ __forceinline__ void warps_sync(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }
__device__ __forceinline__ void store_1(uint8_t* p, uint32_t v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_2(uint8_t* p, uint32_t v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(uint16_t(v)) : "memory");
}
/// data + row * stride, in one instruction.
template <class Byte>
__device__ __forceinline__ Byte* row_at(Byte* data, int row, int stride) {
  uint64_t at;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(stride), "l"(data));
  return reinterpret_cast<Byte*>(at);
}

/// 16 bytes, or zeros.
__device__ __forceinline__ void copy_async_16_or_zero(uint32_t to, const void* from, bool take) {
  const int bytes = take ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int InFlight>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(InFlight) : "memory");
}

__device__ __forceinline__ void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// ---- Clusters: compute capability 9; elsewhere these are never called.

__device__ __forceinline__ void cluster_sync() {
#if LOWBIT_SM90
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// The address that corresponds to `address` in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there = address;
#if LOWBIT_SM90
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}
/// 16 bytes to another block; `barrier`, of that block, counts them when they have arrived.
__device__ __forceinline__ void send_16(uint32_t address, const uint4& v, uint32_t barrier) {
#if LOWBIT_SM90
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
      : "memory");
#endif
}
/// Makes the thread's stores to shared memory visible to copies.
__device__ __forceinline__ void writes_visible_to_copies() {
#if LOWBIT_SM90
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// A multiple of 16 bytes of the block's shared memory to another block, as send_16.
__device__ __forceinline__ void send_bulk(uint32_t address, uint32_t from, uint32_t bytes, uint32_t barrier) {
#if LOWBIT_SM90
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
#if LOWBIT_SM90
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void barriers_visible() {
#if LOWBIT_SM90
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// Waits for bytes that other blocks of the cluster have sent.
__device__ __forceinline__ void wait_for_bytes(uint32_t barrier, uint32_t parity) {
#if LOWBIT_SM90
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#endif
}

}  // namespace lowbit::cuda::gru
