#pragma once
// What matmul_chain.cuh does in words of the machine. A test has the same in C++ (tests/conformance/cuda_emulated/).

#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

__device__ __forceinline__ uint8_t* shared_memory() {
  extern __shared__ __align__(128) uint8_t smem[];
  return smem;
}

/// Works a value out here, not where it is used: what stands behind a wait is a chain in which every instruction counts.
__device__ __forceinline__ void settle(int& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void settle(uint32_t& v) { asm volatile("" : "+r"(v)); }
template <class T>
__device__ __forceinline__ void settle(T*& v) {
  asm volatile("" : "+l"(v));
}

__device__ __forceinline__ void load_exchange_16(const void* from, uint32_t (&v)[4]) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_exchange_8(const void* from, uint32_t (&v)[2]) {
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ void store_exchange(void* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
/// So many bytes more will come before the barrier's phase ends.
__device__ __forceinline__ void expect_more(uint32_t barrier, uint32_t bytes) {
#if LOWBIT_SM90
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ int load_finished(uint32_t from) {
  int v;
  asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_finished(uint32_t to, int v) {
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared_4(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void add_shared_at(uint32_t to, int v) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
/// Two sums; zeros where they were.
__device__ __forceinline__ int2 take_sums(uint32_t at) {
  int2 v;
  asm volatile("ld.shared.v2.s32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  asm volatile("st.shared.v2.s32 [%0], {%1,%1};" ::"r"(at), "r"(0) : "memory");
  return v;
}
/// Two neighbours as bf16, the first in the lower half. NaN becomes 0x7fff.
__device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(second), "f"(first));
  return v;
}
__device__ __forceinline__ void store_exchange_8(void* to, uint32_t v, uint32_t w) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(to), "r"(v), "r"(w) : "memory");
}
__device__ __forceinline__ void meet(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace lowbit::cuda
