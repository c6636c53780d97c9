#pragma once
// wgmma with the weights (A) in registers and x (B) in shared memory, 128-byte swizzle, K-major: 64 rows of weights
// times N tokens, 32 bytes of x deep. One inline function per N and element type; the operand lists are spelled out by
// macros.

#include <cstdint>

#include "kernels/cuda/gemm/primitives/operands.cuh"

namespace lowbit::cuda {

/// Tile of x: rows of 128 bytes in 128-byte swizzle, 1024-byte aligned; step j begins 32 j bytes further.
__device__ __forceinline__ uint64_t x_descriptor(uint32_t shared) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int InFlight>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(InFlight) : "memory");
}

// clang-format off
#define LOWBIT_R8(a, b, c, d, e, f, g, h) "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define LOWBIT_R_8 LOWBIT_R8(0, 1, 2, 3, 4, 5, 6, 7)
#define LOWBIT_R_16 LOWBIT_R_8 ", " LOWBIT_R8(8, 9, 10, 11, 12, 13, 14, 15)
#define LOWBIT_R_32 LOWBIT_R_16 ", " LOWBIT_R8(16, 17, 18, 19, 20, 21, 22, 23) ", " LOWBIT_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define LOWBIT_R_64 LOWBIT_R_32 ", " LOWBIT_R8(32, 33, 34, 35, 36, 37, 38, 39) ", " LOWBIT_R8(40, 41, 42, 43, 44, 45, 46, 47) ", " \
                    LOWBIT_R8(48, 49, 50, 51, 52, 53, 54, 55) ", " LOWBIT_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define LOWBIT_R_48 LOWBIT_R_32 ", " LOWBIT_R8(32, 33, 34, 35, 36, 37, 38, 39) ", " LOWBIT_R8(40, 41, 42, 43, 44, 45, 46, 47)
#define LOWBIT_D8(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define LOWBIT_D_8(c) LOWBIT_D8(c, 0)
#define LOWBIT_D_16(c) LOWBIT_D_8(c), LOWBIT_D8(c, 8)
#define LOWBIT_D_32(c) LOWBIT_D_16(c), LOWBIT_D8(c, 16), LOWBIT_D8(c, 24)
#define LOWBIT_D_48(c) LOWBIT_D_32(c), LOWBIT_D8(c, 32), LOWBIT_D8(c, 40)
#define LOWBIT_D_64(c) LOWBIT_D_32(c), LOWBIT_D8(c, 32), LOWBIT_D8(c, 40), LOWBIT_D8(c, 48), LOWBIT_D8(c, 56)
#define LOWBIT_WGMMA_OF(N, REGS, TYPE, CONSTRAINT, A0, A1, A2, A3, B, ADD, SHAPE, TAIL)                                             \
  __device__ __forceinline__ void wgmma(Wgmma<N, GemmActivation::TYPE>, typename Wgmma<N, GemmActivation::TYPE>::Sum* d,         \
                                        const uint32_t* a, uint64_t x, int add) {                                                \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N SHAPE                       \
                 " {" LOWBIT_R_##REGS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p" TAIL "; }"                       \
                 : LOWBIT_D_##REGS(CONSTRAINT)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x), "r"(add));                                                \
  }
#define LOWBIT_WGMMA_INTEGERS(N, REGS, ...)                                                  \
  LOWBIT_WGMMA_OF(N, REGS, kInt8, "+r", __VA_ARGS__, "k32.s32.s8.s8", "")                       \
  LOWBIT_WGMMA_OF(N, REGS, kBit, "+r", __VA_ARGS__, "k256.s32.b1.b1.and.popc", "")
#define LOWBIT_WGMMA_TYPES(N, REGS, ...)                                                     \
  LOWBIT_WGMMA_INTEGERS(N, REGS, __VA_ARGS__)                                                \
  LOWBIT_WGMMA_OF(N, REGS, kF16, "+f", __VA_ARGS__, "k16.f32.f16.f16", ", 1, 1, 0")             \
  LOWBIT_WGMMA_OF(N, REGS, kBf16, "+f", __VA_ARGS__, "k16.f32.bf16.bf16", ", 1, 1, 0")
// clang-format on

template <int N, GemmActivation X>
struct Wgmma {
  using Sum = typename SumOf<X>::Type;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
LOWBIT_WGMMA_TYPES(16, 8, 8, 9, 10, 11, 12, 13)
LOWBIT_WGMMA_TYPES(32, 16, 16, 17, 18, 19, 20, 21)
LOWBIT_WGMMA_TYPES(64, 32, 32, 33, 34, 35, 36, 37)
LOWBIT_WGMMA_INTEGERS(96, 48, 48, 49, 50, 51, 52, 53)
LOWBIT_WGMMA_TYPES(128, 64, 64, 65, 66, 67, 68, 69)
#endif

}  // namespace lowbit::cuda
