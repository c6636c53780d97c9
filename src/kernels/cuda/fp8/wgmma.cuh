#pragma once
// wgmma on E4M3: 64 rows of a times N rows of b, 32 columns deep, both in shared memory as rows of 128 bytes in 128-byte swizzle.

#include <cstdint>

#include "kernels/cuda/gemm/primitives/ptx.cuh"

namespace lowbit::cuda::fp8 {

/// Rows of 128 bytes in 128-byte swizzle, 1024-byte aligned; 32 columns further is 2 more.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t shared) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// clang-format off
#define LOWBIT_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define LOWBIT_R8(a, b, c, d, e, f, g, h) "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define LOWBIT_R_8 LOWBIT_R8(0, 1, 2, 3, 4, 5, 6, 7)
#define LOWBIT_R_32 LOWBIT_R_8 ", " LOWBIT_R8(8, 9, 10, 11, 12, 13, 14, 15) ", " LOWBIT_R8(16, 17, 18, 19, 20, 21, 22, 23) ", " \
                    LOWBIT_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define LOWBIT_R_64 LOWBIT_R_32 ", " LOWBIT_R8(32, 33, 34, 35, 36, 37, 38, 39) ", " LOWBIT_R8(40, 41, 42, 43, 44, 45, 46, 47) ", " \
                    LOWBIT_R8(48, 49, 50, 51, 52, 53, 54, 55) ", " LOWBIT_R8(56, 57, 58, 59, 60, 61, 62, 63)
__device__ __forceinline__ void multiply(float (&d)[8], uint64_t a, uint64_t b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {" LOWBIT_R_8
               "}, %8, %9, p, 1, 1; }" : LOWBIT_D8(0) : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" LOWBIT_R_32
               "}, %32, %33, p, 1, 1; }" : LOWBIT_D8(0), LOWBIT_D8(8), LOWBIT_D8(16), LOWBIT_D8(24) : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" LOWBIT_R_64
               "}, %64, %65, p, 1, 1; }" : LOWBIT_D8(0), LOWBIT_D8(8), LOWBIT_D8(16), LOWBIT_D8(24), LOWBIT_D8(32), LOWBIT_D8(40),
               LOWBIT_D8(48), LOWBIT_D8(56) : "l"(a), "l"(b), "r"(add));
}
#undef LOWBIT_D8
#undef LOWBIT_R8
#undef LOWBIT_R_8
#undef LOWBIT_R_32
#undef LOWBIT_R_64
// clang-format on
#endif

__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

}  // namespace lowbit::cuda::fp8
