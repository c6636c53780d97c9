#pragma once
// In place of src/kernels/cuda/gemm/primitives/mma.cuh, for a host compiler: int8 activations.

#include "kernels/cuda/gemm/primitives/operands.cuh"
#include "kernels/cuda/packed_ops.cuh"

namespace lowbit::cuda {

template <GemmActivation X>
void mma(int* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  static_assert(X == GemmActivation::kInt8);
  int c[4] = {d[0], d[1], d[2], d[3]};
  const uint32_t rows[4] = {a[0], a[1], a[2], a[3]};
  multiply_signed_bytes<true>(c, rows, b0, b1);
  std::copy_n(c, 4, d);
}

}  // namespace lowbit::cuda
