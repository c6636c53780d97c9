#pragma once
// A transform of activations at run time that spreads outliers over a block of columns.

#include <cstdint>

#include "base/threads.h"
#include "kernels/api.h"

namespace lowbit {

/// Columns of a block for rows of k: the largest power of two that divides k, at most kLargestHadamard; 1 for odd k.
int64_t hadamard_block(int64_t k);

/// Each `block` columns of x [m, k], dense rows, become their Hadamard transform, in place. block: a power of two that
/// divides k. Numerics: VectorOps::hadamard; orthogonal and its own inverse but for rounding; same bits for any thread
/// count and any ISA. Reference: kernels/ref/vector_ops.cc.
void hadamard_rows(const VectorOps& ops, float* x, int64_t m, int64_t k, int64_t block, ThreadPool& pool);

}  // namespace lowbit
