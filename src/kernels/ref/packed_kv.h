#pragma once
// The meaning of products with packed pages of the KV cache.

#include <cstdint>

#include "kernels/packed_kv.h"

namespace lowbit {

/// y[c] = sum_r x[r] * real[r][c], x [rows], y [columns].
/// Numerics (normative): x'[r] = x[r] * (super_scale * scales[r]); a = max |x'[r]|; X[r] = round-half-even(x'[r] *
/// (32767 / a)); the sum of X[r] * code[r][c] is exact; offset = sum_r x[r] * (super_least * leasts[r]), by fma in 16
/// partial sums, r to sum r % 16, reduced as VectorOps' others; y[c] = fma(f32(sum), a / 32767, offset). An x' that is
/// NaN or infinite makes every y NaN.
void packed_product(const float* x, const PackedShape& shape, const PackedMatrix& matrix, float* y);

}  // namespace lowbit
