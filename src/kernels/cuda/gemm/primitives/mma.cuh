#pragma once
// mma.sync for the kinds of activations: 16 rows of weights by 8 tokens, 32 bytes of x deep.

#include "kernels/cuda/gemm/primitives/operands.cuh"

namespace lowbit::cuda {

#define LOWBIT_MMA(SHAPE, CONSTRAINT)                                                              \
  asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : CONSTRAINT(d[0]), CONSTRAINT(d[1]), CONSTRAINT(d[2]), CONSTRAINT(d[3])                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <GemmActivation X>
__device__ __forceinline__ void mma(typename SumOf<X>::Type* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  if constexpr (X == GemmActivation::kInt8) {
    LOWBIT_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
  } else if constexpr (X == GemmActivation::kBit) {
    LOWBIT_MMA("m16n8k256.row.col.s32.b1.b1.s32.and.popc", "+r");
  } else if constexpr (X == GemmActivation::kF16) {
    LOWBIT_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
  } else {
    LOWBIT_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  }
}
#undef LOWBIT_MMA

/// Four 8 x 16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&b)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(address)
               : "memory");
}

}  // namespace lowbit::cuda
