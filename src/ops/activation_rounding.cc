#include "ops/activation_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/float.h"

namespace lowbit {
namespace {

/// Below this a group counts as all zero, as in VectorOps::quantize_groups_int8.
constexpr float kQuantizeFloor = 0x1p-120f;

struct Factors {
  float scale, inverse;  // real = code * scale; code = round(v * inverse)
};

Factors factors_of(float absmax, bool has_nan, int largest) {
  if (has_nan) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (absmax < kQuantizeFloor) return {0, 0};
  if (absmax > std::numeric_limits<float>::max()) return {absmax, 0};
  return {absmax / static_cast<float>(largest), static_cast<float>(largest) / absmax};
}

}  // namespace

void round_to_halves(const float* x, int64_t n, Halves to, float* y) {
  for (int64_t i = 0; i < n; ++i)
    y[i] = to == Halves::kF16    ? f16_to_f32(f32_to_f16(x[i]))
           : to == Halves::kBf16 ? bf16_to_f32(f32_to_bf16(x[i]))
                                 : x[i];
}

void clip_row(float* v, int64_t k, double clipped) {
  if (clipped <= 0 || k < 2) return;
  std::vector<float> size(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    if (v[i] != v[i]) return;
    size[static_cast<size_t>(i)] = std::fabs(v[i]);
  }
  const auto out = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(clipped * static_cast<double>(k))), 1, k - 1);
  const auto at = size.begin() + (k - 1 - out);
  std::nth_element(size.begin(), at, size.end());
  const float limit = *at;
  for (int64_t i = 0; i < k; ++i) v[i] = std::min(std::max(v[i], -limit), limit);
}

void round_groups(const float* v, int64_t k, int64_t group, int64_t padded, int largest, int8_t* xq, float* scales,
                  int32_t* sums) {
  for (int64_t first = 0; first < k; first += group) {
    const int64_t last = std::min(first + group, k), g = first / group;
    float absmax = 0;
    bool has_nan = false;
    for (int64_t i = first; i < last; ++i) {
      has_nan |= v[i] != v[i];
      absmax = std::max(absmax, std::fabs(v[i]));  // a NaN stays out
    }
    const Factors f = factors_of(absmax, has_nan, largest);
    scales[g] = f.scale;
    sums[g] = 0;
    for (int64_t i = first; i < last; ++i) {
      xq[i] = f.inverse == 0 ? int8_t{0} : static_cast<int8_t>(std::nearbyint(v[i] * f.inverse));
      sums[g] += xq[i];
    }
  }
  std::fill(xq + k, xq + std::max(k, padded), int8_t{0});
}

}  // namespace lowbit
