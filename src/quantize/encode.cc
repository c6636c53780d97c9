// The last step of every fit: codes for the scales as stored, and what was lost.

#include <algorithm>

#include "quantize/block_fit.h"
#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

constexpr int64_t kChunk = 256;

/// v = x in value steps, before rounding to the grid.
LOWBIT_VECTOR_CLONES
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
LOWBIT_VECTOR_CLONES
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

/// Levels of integers, and v as these.
LOWBIT_VECTOR_CLONES
void to_integers(float low, float high, int64_t n, float* v, int32_t* level) {
  for (int64_t i = 0; i < n; ++i) {
    float j = v[i] > low ? v[i] : low;
    j = j < high ? j : high;
    v[i] = (j + 12582912.0f) - 12582912.0f;  // round_half_even of base/rounding.h
    level[i] = static_cast<int32_t>(v[i] - low);
  }
}

/// to_grid() of a uniform one.
LOWBIT_VECTOR_CLONES
void to_uniform_grid(const Grid& grid, int64_t n, float* v, uint8_t* codes) {
  const float step = grid.step, base = grid.base, j_min = grid.j_min, j_max = grid.j_max;
  int32_t level[kChunk];
  if (step == 1 && base == 0) {
    to_integers(j_min, j_max, n, v, level);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      float j = (v[i] - base) / step;
      j = j > j_min ? j : j_min;
      j = j < j_max ? j : j_max;
      j = (j + 12582912.0f) - 12582912.0f;
      level[i] = static_cast<int32_t>(j - j_min);
      v[i] = j * step + base;
    }
  }
  const uint8_t* table = grid.codes.data();
  const int32_t first = table[0], mask = grid.code_mask;
  if (mask != 0)
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>((level[i] + first) & mask);
  else
    for (int64_t i = 0; i < n; ++i) codes[i] = table[level[i]];
}

/// v -> the grid's nearest values, codes beside them.
void to_grid(const Grid& grid, int64_t n, float* v, uint8_t* codes) {
  if (grid.kind == Grid::Kind::kUniform) return to_uniform_grid(grid, n, v, codes);
  for (int64_t i = 0; i < n; ++i) {
    const auto level = static_cast<size_t>(grid.nearest(v[i]));
    v[i] = grid.values[level];
    codes[i] = grid.codes[level];
  }
}

/// Eight sums side by side: the order of additions is fixed and the compiler may use vectors.
struct EightSums {
  static constexpr int64_t kLanes = 8;
  double error[kLanes] = {}, energy[kLanes] = {};

  /// `count` elements, kLanes of them but at the end.
  template <bool kWeighted>
  [[gnu::always_inline]] void add(const float* x, const float* real, const float* h, int64_t count) {
    for (int64_t e = 0; e < count; ++e) {
      const double w = x[e], d = w - double(real[e]);
      const double hd = kWeighted ? h[e] * d : d, hw = kWeighted ? h[e] * w : w;
      error[e] += hd * d;
      energy[e] += hw * w;
    }
  }
  template <bool kWeighted>
  [[gnu::always_inline]] void add_all(const float* x, const float* real, const float* h, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) add<kWeighted>(x + i, real + i, kWeighted ? h + i : h, kLanes);
    add<kWeighted>(x + i, real + i, kWeighted ? h + i : h, n - i);
  }
};

LOWBIT_VECTOR_CLONES
void add_plain(const float* x, const float* real, int64_t n, EightSums& sums) {
  sums.add_all<false>(x, real, nullptr, n);
}
LOWBIT_VECTOR_CLONES
void add_weighted(const float* x, const float* real, const float* h, int64_t n, EightSums& sums) {
  sums.add_all<true>(x, real, h, n);
}

}  // namespace

void add_error(const float* x, const float* real, const float* h, int64_t n, RowError& sums) {
  EightSums plain, weighted;
  add_plain(x, real, n, plain);
  if (h != nullptr) add_weighted(x, real, h, n, weighted);
  for (int64_t e = 0; e < EightSums::kLanes; ++e) {
    sums.error += plain.error[e];
    sums.energy += plain.energy[e];
    sums.weighted_error += weighted.error[e];
    sums.weighted_energy += weighted.energy[e];
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
