#pragma once
// The inner loops of feedback and refinement. Same bits whatever vectors the machine has. Internal to src/quantize.

#include <cstdint>

namespace lowbit {

/// y[0..n) += a * x[0..n), each product rounded on its own.
void add_scaled(float a, const float* x, int64_t n, float* y);

/// sum x[i] * y[i], in 16 partial sums of fused multiply-adds that are added pairwise at the end.
float dot_product(const float* x, const float* y, int64_t n);

inline constexpr int kDotRows = 4;
/// out[r] = dot_product(x + r * stride, y, n) for at most kDotRows rows, which share what is read of y.
void dot_products(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out);

}  // namespace lowbit
