#pragma once
// step_products() of one token with weights in the order of integer_gemv.h.

#include "kernels/cuda_product_api.h"

namespace lowbit::cuda {

/// Codes in the order of integer_gemv.h are unsigned, of `bits` bits: a value is mul * code + add.
struct GemvCodes {
  int bits = 0, mul = 0, add = 0;
};
/// bits 0: the kernel's weights lie in another order, or are counted (bit_gemv.cuh).
GemvCodes gemv_codes(const MatmulKernel& kernel);

/// Weights of 1 or 2 bits, scales of x and of the weights per row, no offsets, and room in a block for x.
bool takes_bit_step(const StepProducts& call);
int64_t bit_step_blocks(const StepProducts& call);
Status bit_step_products(const StepProducts& call);

}  // namespace lowbit::cuda
