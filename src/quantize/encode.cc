// The last step of every fit: codes for the scales as stored, and what was lost.

#include <algorithm>

#include "quantize/block_fit.h"

namespace lowbit {
namespace {

constexpr int64_t kChunk = 256;

/// v = x in value steps, before rounding to the grid.
void to_values(ZeroKind kind, const float* x, int64_t n, float scale, float zero, float* v) {
  switch (kind) {
    case ZeroKind::kNone:
      for (int64_t i = 0; i < n; ++i) v[i] = x[i] / scale;
      break;
    case ZeroKind::kPointI8:
    case ZeroKind::kPointF16:
      for (int64_t i = 0; i < n; ++i) v[i] = x[i] / scale + zero;
      break;
    case ZeroKind::kOffset:
      for (int64_t i = 0; i < n; ++i) v[i] = (x[i] - zero) / scale;
      break;
  }
}

/// The reals that QTensor means by values v, rounded as dequantize_rows rounds them.
void to_reals(ZeroKind kind, int64_t n, float scale, float zero, float* v) {
  switch (kind) {
    case ZeroKind::kNone:
      for (int64_t i = 0; i < n; ++i) v[i] = v[i] * scale;
      break;
    case ZeroKind::kPointI8:
    case ZeroKind::kPointF16:
      for (int64_t i = 0; i < n; ++i) v[i] = (v[i] - zero) * scale;
      break;
    case ZeroKind::kOffset:
      for (int64_t i = 0; i < n; ++i) v[i] = v[i] * scale + zero;
      break;
  }
}

/// v -> the grid's nearest values, codes beside them.
void to_grid(const Grid& grid, int64_t n, float* v, uint8_t* codes) {
  if (grid.kind != Grid::Kind::kUniform) {
    for (int64_t i = 0; i < n; ++i) {
      const auto level = static_cast<size_t>(grid.nearest(v[i]));
      v[i] = grid.values[level];
      codes[i] = grid.codes[level];
    }
    return;
  }
  const float step = grid.step, base = grid.base, j_min = grid.j_min, j_max = grid.j_max;
  int32_t level[kChunk];
  for (int64_t i = 0; i < n; ++i) {
    float j = (v[i] - base) / step;
    j = j > j_min ? j : j_min;
    j = j < j_max ? j : j_max;
    j = (j + 12582912.0f) - 12582912.0f;  // round_half_even of base/rounding.h
    level[i] = static_cast<int32_t>(j - j_min);
    v[i] = j * step + base;
  }
  const uint8_t* table = grid.codes.data();
  for (int64_t i = 0; i < n; ++i) codes[i] = table[level[i]];
}

}  // namespace

/// Four sums side by side: the order of additions is fixed and the compiler may use vectors.
void add_error(const float* x, const float* real, const float* h, int64_t n, RowError& sums) {
  double error[4] = {}, energy[4] = {}, weighted_error[4] = {}, weighted_energy[4] = {};
  for (int64_t i = 0; i < n; i += 4)
    for (int64_t e = 0; e < std::min<int64_t>(4, n - i); ++e) {
      const double w = x[i + e], d = w - real[i + e];
      error[e] += d * d;
      energy[e] += w * w;
      if (h) {
        weighted_error[e] += h[i + e] * d * d;
        weighted_energy[e] += h[i + e] * w * w;
      }
    }
  for (int e = 0; e < 4; ++e) {
    sums.error += error[e];
    sums.energy += energy[e];
    sums.weighted_error += weighted_error[e];
    sums.weighted_energy += weighted_energy[e];
  }
}

RowError encode_row(const FitPlan& plan, const float* row, const float* scales, const float* zeros, uint8_t* codes) {
  const ZeroKind kind = plan.options.scaling.zero;
  const auto zero_level = static_cast<size_t>(plan.grid.zero_level);
  const int64_t group = plan.group();
  RowError sums;
  float v[kChunk];
  for (int64_t c = 0, begin = 0; begin < plan.k; ++c, begin += group) {
    const float scale = scales[c], zero = zeros ? zeros[c] : 0.0f;
    const int64_t end = std::min(begin + group, plan.k);
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      if (scale == 0) {
        std::fill_n(v, n, plan.grid.values[zero_level]);
        std::fill_n(codes + i, n, plan.grid.codes[zero_level]);
      } else {
        to_values(kind, row + i, n, scale, zero, v);
        to_grid(plan.grid, n, v, codes + i);
      }
      to_reals(kind, n, scale, zero, v);
      add_error(row + i, v, plan.importance ? plan.importance + i : nullptr, n, sums);
    }
  }
  return sums;
}

}  // namespace lowbit
