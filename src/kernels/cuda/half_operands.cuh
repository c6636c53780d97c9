#pragma once
// Operands of products of weights in fragment order and x in 16 bits.

#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/weight_order/decode.cuh"

namespace lowbit::cuda {

template <bool kBf16>
inline constexpr GemmActivation kHalfActivation = kBf16 ? GemmActivation::kBf16 : GemmActivation::kF16;

/// The values of a lane's words of 32 columns: four registers of 16 columns, and four of the next.
template <int Bits, bool kBf16>
__device__ __forceinline__ void half_values(const uint32_t* words, uint32_t half_zero, uint32_t (&a)[8]) {
  decode<kHalfActivation<kBf16>, Bits>(words, half_zero, a);
}
/// d[16, 8] += a[16, 16] b[16, 8] with f32 sums.
template <bool kBf16>
__device__ __forceinline__ void multiply_halves(float (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
  mma<kHalfActivation<kBf16>>(d, a, b0, b1);
}

}  // namespace lowbit::cuda
