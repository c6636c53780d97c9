#include "quantize/vector_loops.h"

#include <algorithm>
#include <cstring>

#include "quantize/vector_clones.h"

namespace lowbit {

LOWBIT_VECTOR_CLONES
void add_scaled(float a, const float* __restrict x, int64_t n, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

LOWBIT_VECTOR_CLONES
void add_scaled_rows(const float* a, const int32_t* index, int64_t count, const float* rows, float* y) {
  // Wider than most machines' vectors; the compiler splits it. Sums stay in registers for the whole call.
  using Vec = float __attribute__((vector_size(64)));
  constexpr int kVecs = 4;
  static_assert(kVecs * sizeof(Vec) == kStripWidth * sizeof(float));
  Vec sum[kVecs];
  std::memcpy(sum, y, sizeof sum);
  for (int64_t t = 0; t < count; ++t) {
    const float* row = rows + int64_t{index[t]} * kStripWidth;
    for (int i = 0; i < kVecs; ++i) {
      Vec x;
      std::memcpy(&x, row + i * 16, sizeof x);
      sum[i] += a[t] * x;
    }
  }
  std::memcpy(y, sum, sizeof sum);
}

LOWBIT_VECTOR_CLONES
float dot_product(const float* x, const float* y, int64_t n) {
  constexpr int64_t kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t e = 0; e < kLanes; ++e) sums[e] += x[i + e] * y[i + e];
  for (int64_t e = 0; i + e < n; ++e) sums[e] += x[i + e] * y[i + e];
  for (int64_t width = kLanes / 2; width > 0; width /= 2)
    for (int64_t e = 0; e < width; ++e) sums[e] += sums[e + width];
  return sums[0];
}

}  // namespace lowbit
