#pragma once
// Instructions for kernels on packed pages; tests/conformance/cuda_emulated/ has versions for a host.

#include <cuda_runtime.h>

#include <cstdint>

#define LOWBIT_OUT_OF_LINE __noinline__

namespace lowbit::cuda {

/// c[16, 8] += a[16, 32] b[32, 8] of bytes, a unsigned; fragments as in mma_u8_s8().
template <bool kSigned>
__device__ __forceinline__ void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
/// multiply_bytes(), a signed.
template <bool kSigned>
__device__ __forceinline__ void multiply_signed_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
/// c + the products of two signed numbers of 16 bits with the two low bytes of b, or the two high ones.
template <bool kHigh>
__device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  if constexpr (kHigh) {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}
/// Bytes of b and a, chosen by the four lowest nibbles of `which`.
__device__ __forceinline__ uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t which) {
  return __byte_perm(a, b, which);
}
/// Loads bytes that are read once only, past the first-level cache.
__device__ __forceinline__ uint2 load_once(const uint8_t* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
/// load_once() if `is`, else v stays as it is. It is no branch: behind one the compiler would move registers.
__device__ __forceinline__ void load_once_if(bool is, uint2& v, const uint8_t* from) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];}"
               : "+r"(v.x), "+r"(v.y)
               : "l"(from), "r"(static_cast<int>(is)));
}
/// Loads an address at this point of the program, not where it is used.
__device__ __forceinline__ const uint8_t* load_pointer_once(const uint64_t* from) {
  uint64_t v;
  asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(from));
  return reinterpret_cast<const uint8_t*>(v);
}
__device__ __forceinline__ void copy_to_shared_8(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
/// Copies kBytes, 8 or 16, that lie kOffset behind both addresses, if `is`: no branch, and no address of its own.
template <int kBytes, int kOffset>
__device__ __forceinline__ void copy_to_shared_at(void* to, const void* from, bool is = true) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int yes = static_cast<int>(is);
  if constexpr (kBytes == 16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0+%3], [%1+%3], 16;}" ::"r"(address),
        "l"(from), "r"(yes), "n"(kOffset)
        : "memory");
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0+%3], [%1+%3], 8;}" ::"r"(address),
        "l"(from), "r"(yes), "n"(kOffset)
        : "memory");
  }
}
/// threadIdx.x, read here: what is computed of it is not computed before a loop, where it would take registers.
__device__ __forceinline__ int thread_read_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
/// The number itself, which the compiler from here on neither computes anew nor takes apart: it stays in a register.
__device__ __forceinline__ uint32_t kept(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}
/// The largest number of a warp, in all lanes; none is NaN.
__device__ __forceinline__ float largest_of_warp(float v) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t most = __reduce_max_sync(0xffffffffu, bits >> 31 != 0 ? ~bits : bits | 0x80000000u);
  return __uint_as_float(most >> 31 != 0 ? most & 0x7fffffffu : ~most);
}
/// The larger of `most` and |v|; NaN where one of them is.
__device__ __forceinline__ float larger_magnitude(float most, float v) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(most), "f"(fabsf(v)));
  return larger;
}
__device__ __forceinline__ bool all_of_warp(bool is) { return __all_sync(0xffffffffu, is) != 0; }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
/// The 128 threads of a team meet; teams are numbered from 0.
__device__ __forceinline__ void sync_team(int team) { asm volatile("bar.sync %0, 128;" ::"r"(team + 1) : "memory"); }

}  // namespace lowbit::cuda
