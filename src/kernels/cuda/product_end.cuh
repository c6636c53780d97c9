#pragma once
// The epilogue of a product in a decoding step: ProductEnd, for device code.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda_product_api.h"

namespace lowbit::cuda {

__device__ __forceinline__ float gated(float gate, float up, ProductEnd end) {
  if (end == ProductEnd::kSilu) return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, block::exp_f32(-gate))), up);
  const float r = gate < 0 ? 0.0f : gate;  // a NaN stays one
  return __fmul_rn(__fmul_rn(r, r), up);
}

}  // namespace lowbit::cuda
