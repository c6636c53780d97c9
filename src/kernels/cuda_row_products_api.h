#pragma once
// The contract between backend/cuda/ and products of several rows: several weights of the same codes in one launch.
// kernels/cuda/tensor_matmul.cc implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/numerics.md: the bits of MatmulKernel::run() for each.

#include <span>

#include "kernels/cuda_api.h"

namespace lowbit::cuda {

inline constexpr int kMostRowProducts = 3;

/// Whether row_products() takes weights that `kernel` has made: up to 32 rows of equal int8 codes with a scale per 32
/// columns, on compute capability 9.0, and no offsets. A launch of its own for each is right wherever it says no.
bool takes_row_products(const MatmulKernel& kernel, std::span<const Matmul> calls);
/// Whether the kernel of a product streams its weights past all rows: from two rows on, and for one where
/// step_products() does not. Beyond some million weights that is faster than step_products().
bool streams_rows(const MatmulKernel& kernel, const Matmul& call);
/// Enqueues them. Errors: what CUDA says.
Status row_products(const MatmulKernel& kernel, std::span<const Matmul> calls);

}  // namespace lowbit::cuda
