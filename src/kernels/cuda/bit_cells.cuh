#pragma once
// Bits of words of x on their way to planes: bit_gemv.cuh, matmul_chain.cuh.

#include <cstdint>

namespace lowbit::cuda {

/// Of kWords words of kWords cells of B bits in every half or whole byte: word f gets, at cell c, what word c held at cell f.
template <int B, int kWords>
__device__ __forceinline__ void transpose_cells(uint32_t* v) {
#pragma unroll
  for (int d = 1; d < kWords; d *= 2) {
    const int shift = B * d;
    const uint32_t low = shift == 1 ? 0x55555555u : shift == 2 ? 0x33333333u : 0x0f0f0f0fu;
#pragma unroll
    for (int f = 0; f < kWords; ++f) {
      if ((f & d) != 0) continue;
      const uint32_t a = v[f], b = v[f + d];
      v[f] = (a & low) | (b << shift & ~low);
      v[f + d] = (a >> shift & low) | (b & ~low);
    }
  }
}

}  // namespace lowbit::cuda
