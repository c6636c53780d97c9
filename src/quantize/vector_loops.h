#pragma once
// The inner loops of feedback and refinement. Same bits whatever vectors the machine has. Internal to src/quantize.

#include <cstdint>

namespace lowbit {

inline constexpr int64_t kStripWidth = 64;

/// y[0..n) += a * x[0..n), each product rounded on its own.
void add_scaled(float a, const float* x, int64_t n, float* y);

/// y[0..kStripWidth) += a[t] * rows[index[t] * kStripWidth ...] for t = 0 .. count - 1, each product rounded on its
/// own.
void add_scaled_rows(const float* a, const int32_t* index, int64_t count, const float* rows, float* y);

/// sum x[i] * y[i], in 16 partial sums that are added pairwise at the end.
float dot_product(const float* x, const float* y, int64_t n);

inline constexpr int kDotRows = 4;
/// out[r] = dot_product(x + r * stride, y, n) for at most kDotRows rows, which share what is read of y.
void dot_products(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out);

}  // namespace lowbit
