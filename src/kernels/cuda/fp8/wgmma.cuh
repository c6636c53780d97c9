#pragma once
// wgmma on E4M3: 64 rows of a times N rows of b, 32 columns deep, both in shared memory as rows of 128 bytes in
// 128-byte swizzle.

#include <cstdint>

#include "kernels/cuda/gemm/primitives/ptx.cuh"

namespace lowbit::cuda::fp8 {

/// Rows of 128 bytes in 128-byte swizzle, 1024-byte aligned; 32 columns further is 2 more.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t shared) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
/// tile_descriptor() in two steps: of a kernel's first tile once, then of one at a distance, in 16 bytes. One addition
/// then stands between a stage's number and its products.
__device__ __forceinline__ uint32_t first_descriptor(uint32_t shared) { return shared >> 4 | 1u << 16; }
__device__ __forceinline__ uint64_t descriptor_at(uint32_t first, int distance) {
  return uint64_t(first + uint32_t(distance)) | uint64_t(1 << 30 | 64) << 32;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// clang-format off
#define LOWBIT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LOWBIT_D8(i) LOWBIT_D4(i), LOWBIT_D4(i + 4)
#define LOWBIT_D_4 LOWBIT_D4(0)
#define LOWBIT_D_8 LOWBIT_D8(0)
#define LOWBIT_D_16 LOWBIT_D_8, LOWBIT_D8(8)
#define LOWBIT_D_32 LOWBIT_D_16, LOWBIT_D8(16), LOWBIT_D8(24)
#define LOWBIT_D_48 LOWBIT_D_32, LOWBIT_D8(32), LOWBIT_D8(40)
#define LOWBIT_D_56 LOWBIT_D_48, LOWBIT_D8(48)
#define LOWBIT_D_64 LOWBIT_D_56, LOWBIT_D8(56)
#define LOWBIT_D_72 LOWBIT_D_64, LOWBIT_D8(64)
#define LOWBIT_D_80 LOWBIT_D_72, LOWBIT_D8(72)
#define LOWBIT_D_96 LOWBIT_D_80, LOWBIT_D8(80), LOWBIT_D8(88)
#define LOWBIT_R_4 "%0, %1, %2, %3"
#define LOWBIT_R8(a, b, c, d, e, f, g, h) ", %" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define LOWBIT_R_8 LOWBIT_R_4 ", %4, %5, %6, %7"
#define LOWBIT_R_16 LOWBIT_R_8 LOWBIT_R8(8, 9, 10, 11, 12, 13, 14, 15)
#define LOWBIT_R_32 LOWBIT_R_16 LOWBIT_R8(16, 17, 18, 19, 20, 21, 22, 23) LOWBIT_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define LOWBIT_R_48 LOWBIT_R_32 LOWBIT_R8(32, 33, 34, 35, 36, 37, 38, 39) LOWBIT_R8(40, 41, 42, 43, 44, 45, 46, 47)
#define LOWBIT_R_56 LOWBIT_R_48 LOWBIT_R8(48, 49, 50, 51, 52, 53, 54, 55)
#define LOWBIT_R_64 LOWBIT_R_56 LOWBIT_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define LOWBIT_R_72 LOWBIT_R_64 LOWBIT_R8(64, 65, 66, 67, 68, 69, 70, 71)
#define LOWBIT_R_80 LOWBIT_R_72 LOWBIT_R8(72, 73, 74, 75, 76, 77, 78, 79)
#define LOWBIT_R_96 LOWBIT_R_80 LOWBIT_R8(80, 81, 82, 83, 84, 85, 86, 87) LOWBIT_R8(88, 89, 90, 91, 92, 93, 94, 95)
#define LOWBIT_MULTIPLY(N, REGS, A, B, ADD)                                                                              \
  __device__ __forceinline__ void multiply(float (&d)[REGS], uint64_t a, uint64_t b, int add) {                          \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" \
                 LOWBIT_R_##REGS "}, %" #A ", %" #B ", p, 1, 1; }"                                                       \
                 : LOWBIT_D_##REGS : "l"(a), "l"(b), "r"(add));                                                          \
  }
LOWBIT_MULTIPLY(8, 4, 4, 5, 6)
LOWBIT_MULTIPLY(16, 8, 8, 9, 10)
LOWBIT_MULTIPLY(32, 16, 16, 17, 18)
LOWBIT_MULTIPLY(64, 32, 32, 33, 34)
LOWBIT_MULTIPLY(96, 48, 48, 49, 50)
LOWBIT_MULTIPLY(128, 64, 64, 65, 66)
LOWBIT_MULTIPLY(144, 72, 72, 73, 74)
LOWBIT_MULTIPLY(192, 96, 96, 97, 98)
// clang-format on

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int InFlight = 0>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(InFlight) : "memory");
}
#endif

}  // namespace lowbit::cuda::fp8
