#pragma once
// In place of src/kernels/cuda/gemm/epilogue/epilogue.cuh, for a host compiler: what products of a step need of it.

#include "kernels/cuda/gemm/primitives/operands.cuh"
#include "kernels/cuda/gemm/weight_order/decode.cuh"

namespace lowbit::cuda {

template <GemmActivation X, int Bits>
float narrow_sum(int s) {
  static_assert(X == GemmActivation::kInt8);
  return static_cast<float>(s / (1 << kFactor<Bits>));
}

}  // namespace lowbit::cuda
