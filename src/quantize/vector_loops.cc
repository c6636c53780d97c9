#include "quantize/vector_loops.h"

#include <algorithm>

#include "quantize/vector_clones.h"

namespace lowbit {

LOWBIT_VECTOR_CLONES
void add_scaled(float a, const float* __restrict x, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

namespace {

// One copy for each width of vector, with vectors of that width: wider ones are split through memory, which takes ten
// times as long.
using Vec16 = float __attribute__((vector_size(16)));
using Vec32 = float __attribute__((vector_size(32)));
using Vec64 = float __attribute__((vector_size(64)));

/// Sums of 16 lanes for every row, in registers; halves of the lanes are added up at the end.
template <class Vec, int kRows>
[[gnu::always_inline]] inline void dot_rows_by(const float* x, int64_t stride, const float* y, int64_t n, float* out) {
  constexpr int kLanes = 16, kFloats = sizeof(Vec) / sizeof(float), kVecs = kLanes / kFloats;
  Vec sum[kRows][kVecs] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      Vec b;
      __builtin_memcpy(&b, y + i + v * kFloats, sizeof b);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        Vec a;
        __builtin_memcpy(&a, x + r * stride + i + v * kFloats, sizeof a);
        sum[r][v] = fused(a, b, sum[r][v]);
      }
    }
  for (int r = 0; r < kRows; ++r) {
    float lanes[kLanes];
    __builtin_memcpy(lanes, sum[r], sizeof lanes);
    for (int64_t e = i; e < n; ++e) lanes[e - i] = __builtin_fmaf(x[r * stride + e], y[e], lanes[e - i]);
    for (int width = kLanes / 2; width > 0; width /= 2)
      for (int e = 0; e < width; ++e) lanes[e] += lanes[e + width];
    out[r] = lanes[0];
  }
}

template <class Vec>
[[gnu::always_inline]] inline void dot_by(const float* x, int64_t stride, int rows, const float* y, int64_t n,
                                          float* out) {
  if (rows == kDotRows) return dot_rows_by<Vec, kDotRows>(x, stride, y, n, out);
  for (int r = 0; r < rows; ++r) dot_rows_by<Vec, 1>(x + r * stride, stride, y, n, out + r);
}

LOWBIT_FUSED_VERSION("default")
void dots(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out) {
  dot_by<Vec16>(x, stride, rows, y, n, out);
}

#ifdef LOWBIT_HAS_FUSED_VERSIONS
LOWBIT_FUSED_VERSION("avx2,fma")
void dots(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out) {
  dot_by<Vec32>(x, stride, rows, y, n, out);
}

LOWBIT_FUSED_VERSION("avx512f")
void dots(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out) {
  dot_by<Vec64>(x, stride, rows, y, n, out);
}
#endif

}  // namespace

void dot_products(const float* x, int64_t stride, int rows, const float* y, int64_t n, float* out) {
  dots(x, stride, rows, y, n, out);
}

float dot_product(const float* x, const float* y, int64_t n) {
  float sum = 0;
  dots(x, 0, 1, y, n, &sum);
  return sum;
}

}  // namespace lowbit
