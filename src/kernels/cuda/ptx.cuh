#pragma once
// Instructions that C++ has no words for. Each wrapper does what its name says; on architectures that lack one it does
// nothing where that is right, and is never called where it is not.

#include <cstdint>

namespace lowbit::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LOWBIT_SM90 1
#else
#define LOWBIT_SM90 0
#endif

/// Shared memory of as many bytes as the launch says.
#define LOWBIT_DYNAMIC_SHARED(name) extern __shared__ __align__(128) uint8_t name[]

// ---- Programmatic dependent launch

/// The next kernel of the stream may start. It sees this one's stores only after wait_for_predecessor().
__device__ __forceinline__ void let_successor_start() {
#if LOWBIT_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_predecessor() {
#if LOWBIT_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// wait_for_predecessor() that depends on its arguments. So the compiler computes them before the wait; behind it every
/// instruction costs time. No address is 1, and neither number is the least one.
__device__ __forceinline__ void wait_for_predecessor_with(const void* address, const void* other, uint32_t shared_word,
                                                          int number, int small) {
#if LOWBIT_SM90
  asm volatile(
      "{.reg .pred p; setp.ne.u64 p, %0, 1; setp.ne.and.u64 p, %1, 1, p; setp.ne.and.u32 p, %2, 1, p;"
      "setp.ne.and.s32 p, %3, 0x80000000, p; setp.ne.and.s32 p, %4, 0x80000000, p; @p griddepcontrol.wait;}" ::"l"(
          address),
      "l"(other), "r"(shared_word), "r"(number), "r"(small)
      : "memory");
#endif
}

// ---- Copies from global to shared memory that run beside the program

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_to_shared_16(void* to, const void* from) {
  copy_async_16(shared_address(to), from);
}
__device__ __forceinline__ void copies_arrive(uint32_t barrier) {  // when this thread's copies so far are done
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
#if LOWBIT_SM90
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

#if LOWBIT_SM90
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barriers_visible_to_copies() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// One thread of a converged warp. The compiler knows that it is one, as it does not of a comparison with threadIdx.
__device__ __forceinline__ bool elected() {
  uint32_t yes;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(yes));
  return yes != 0;
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
#endif

__device__ __forceinline__ void prefetch_to_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

__device__ __forceinline__ int load_shared(uint32_t from) {
  int v;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
/// *to += v in shared memory, by one lane at a time or many.
__device__ __forceinline__ void add_shared(int* to, int v) {
  asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(shared_address(to)), "r"(v) : "memory");
}

// ---- Tensor cores

/// c[16, 8] += a[16, 32] b[32, 8], a unsigned bytes, b signed; sums modulo 2^32. Lane 4 g + t holds rows g and g + 8 of
/// a at columns 4 t.. and 16 + 4 t.., column g of b at the same, and c[g][2t], c[g][2t+1], c[g+8][2t], c[g+8][2t+1].
__device__ __forceinline__ void mma_u8_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// c[16, 8] += a[16, 16] b[16, 8] in bf16 with f32 sums: fragments as in mma_u8_s8(), with pairs of columns 2 t.. and 8
/// + 2 t...
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// (a & b) ^ c in one instruction.
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace lowbit::cuda
