#pragma once
// step_products() of x in 16 bits.

#include "kernels/cuda_product_api.h"

namespace lowbit::cuda {

/// One to kMostStepRows tokens and weights in the order of the tensor cores for halves (gemm/weight_order/): `rows`, or
/// halves as the x of the first part, zeros behind column k up to a multiple of 32. x_element of the parts is the type
/// that rows are rounded to. Room in a block for x. Sums: docs/numerics.md#activations-in-16-bits.
bool takes_half_step(const StepProducts& call);
int64_t half_step_blocks(const StepProducts& call);
Status half_step_products(const StepProducts& call);

}  // namespace lowbit::cuda
