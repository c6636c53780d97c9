#pragma once
// The two inner loops of feedback and refinement. Same bits whatever vectors the machine has. Internal to src/quantize.

#include <cstdint>

namespace lowbit {

/// y[0..n) += a * x[0..n), each product rounded on its own.
void add_scaled(float a, const float* x, int64_t n, float* y);

/// sum x[i] * y[i], in 16 partial sums that are added pairwise at the end.
float dot_product(const float* x, const float* y, int64_t n);

}  // namespace lowbit
