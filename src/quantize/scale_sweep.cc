#include "quantize/scale_sweep.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "quantize/vector_clones.h"

namespace lowbit {
namespace {

constexpr int64_t kMostSwept = 128;
constexpr size_t kMostValues = 16;
constexpr int kStarts = ScaleTrials::kMost, kBest = 2, kAround = kScalesAtOnce / kBest;
constexpr float kReach = 0.8f;         // how far around a start, in its distance from the next one
constexpr float kWidest = 40;          // between the largest scale and the smallest one
constexpr float kRound = 12582912.0f;  // round_half_even of base/rounding.h
using Vec4 = float __attribute__((vector_size(16)));
using Vec8 = float __attribute__((vector_size(32)));
using Vec16 = float __attribute__((vector_size(64)));

/// kVecs vectors of scales, whose sums stay in registers.
template <class Vec, int kVecs>
[[gnu::always_inline]] inline void try_some(const Integers& on, float energy, const float* scales, float* solved_out,
                                            float* error_out) {
  const Group& g = on.group;
  const Vec none = {}, low = on.low - none, high = on.high - none, round = kRound - none, all = energy - none;
  Vec per_scale[kVecs], xv[kVecs] = {}, vv[kVecs] = {};
  __builtin_memcpy(per_scale, scales, sizeof per_scale);
#pragma GCC unroll 2
  for (int p = 0; p < kVecs; ++p) per_scale[p] = 1.0f / per_scale[p];
  for (int64_t i = 0; i < g.n; ++i) {
    const Vec x = g.x[i] - none;
#pragma GCC unroll 2
    for (int p = 0; p < kVecs; ++p) {
      Vec j = x * per_scale[p];
      j = j > low ? j : low;
      j = j < high ? j : high;
      const Vec v = (j + round) - round;
      xv[p] += x * v;
      vv[p] += v * v;
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kVecs; ++p) {
    const Vec solved = xv[p] / (vv[p] > none ? vv[p] : 1.0f - none), error = all - solved * xv[p],
              positive = error > none ? error : none;
    __builtin_memcpy(solved_out + p * sizeof(Vec) / sizeof(float), &solved, sizeof(Vec));
    __builtin_memcpy(error_out + p * sizeof(Vec) / sizeof(float), &positive, sizeof(Vec));
  }
}

template <class Vec, int kVecs>
[[gnu::always_inline]] inline void try_all(const Integers& on, float energy, const float* scales, uint32_t first,
                                           ScaleTrials& out) {
  constexpr int kScales = kVecs * static_cast<int>(sizeof(Vec) / sizeof(float));
  alignas(64) float errors[kScalesAtOnce];
  float* const solved = out.solved.data() + first;
  for (int s = 0; s < kScalesAtOnce; s += kScales) try_some<Vec, kVecs>(on, energy, scales + s, solved + s, errors + s);
  for (uint32_t s = 0; s < kScalesAtOnce; ++s)
    out.keys[first + s] = (std::bit_cast<uint32_t>(errors[s]) & ~(ScaleTrials::kMost - 1)) | (first + s);
}

[[gnu::always_inline]] inline double energy_of(const Group& g) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kLanes <= g.n; i += kLanes)
    for (int64_t e = 0; e < kLanes; ++e) lanes[e] += double(g.x[i + e]) * g.x[i + e];
  for (int64_t e = 0; i + e < g.n; ++e) lanes[e] += double(g.x[i + e]) * g.x[i + e];
  for (int64_t e = 0; e < kLanes; ++e) sum += lanes[e];
  return sum;
}

/// Scales to begin with, of both signs where both are wanted; returns what each is multiplied by to give the next one.
[[gnu::always_inline]] inline float choose_starts(const Grid& grid, const Group& g, double energy, float* starts) {
  const float upper = 1.05f * g.abs_max / grid.reach();
  const auto spread = static_cast<float>(0.5 * grid.unit_scale * std::sqrt(energy / static_cast<double>(g.n)));
  float ratio = std::max(std::min(spread, 0.7f * upper), upper / kWidest) / upper;
  const bool both = grid.wants_sign();
  const int count = both ? kStarts / 2 : kStarts;
  for (int i = 1; i < count; i *= 2) ratio = std::sqrt(ratio);
  starts[0] = upper;
  float power = ratio;
  for (int have = 1; have < count; have *= 2, power *= power)
    for (int i = 0; i < have; ++i) starts[have + i] = starts[i] * power;
  // The largest element on an outermost value: right for weights that were on this grid before.
  starts[count - 2] = grid.low() != 0 ? g.abs_max / std::fabs(grid.low()) : upper;
  starts[count - 1] = grid.high() != 0 ? g.abs_max / std::fabs(grid.high()) : upper;
  if (both)
    for (int i = 0; i < kStarts / 2; ++i) starts[kStarts / 2 + i] = -starts[i];
  return ratio;
}

[[gnu::always_inline]] inline uint32_t least(const uint32_t* keys, int count) {
  uint32_t best = ~uint32_t{0};
  for (int i = 0; i < count; ++i) best = keys[i] < best ? keys[i] : best;
  return best;
}

[[gnu::always_inline]] inline AffineFit fit_of(const ScaleTrials& trials, uint32_t key) {
  const uint32_t at = key % ScaleTrials::kMost;
  return {trials.solved[at], 0, std::bit_cast<float>(key - at)};
}

template <class Vec, int kVecs>
[[gnu::always_inline]] inline AffineFit search(const Grid& grid, const Group& g) {
  const double energy = energy_of(g);
  const auto all = static_cast<float>(energy);
  const Integers on{g, grid.j_min, grid.j_max};
  alignas(64) float starts[kStarts], around[kScalesAtOnce];
  const float step = kReach * (1 - choose_starts(grid, g, energy, starts));
  ScaleTrials coarse, fine;
  for (int first = 0; first < kStarts; first += kScalesAtOnce)
    try_all<Vec, kVecs>(on, all, starts + first, static_cast<uint32_t>(first), coarse);
  AffineFit best;
  for (int b = 0; b < kBest; ++b) {
    const uint32_t key = least(coarse.keys.data(), kStarts), at = key % ScaleTrials::kMost;
    if (b == 0) best = fit_of(coarse, key);
    coarse.keys[at] = ~uint32_t{0};
    for (int i = 0; i < kAround; ++i)
      around[b * kAround + i] = starts[at] * (1 + step * (static_cast<float>(2 * i + 1 - kAround) / kAround));
  }
  try_all<Vec, kVecs>(on, all, around, 0, fine);
  const AffineFit finer = fit_of(fine, least(fine.keys.data(), kScalesAtOnce));
  return finer.error < best.error ? finer : best;
}

void try_narrow(const Integers& on, float energy, const float* scales, uint32_t first, ScaleTrials& out) {
  try_all<Vec4, 2>(on, energy, scales, first, out);
}
AffineFit search_narrow(const Grid& grid, const Group& g) { return search<Vec4, 2>(grid, g); }
#ifdef LOWBIT_HAS_VECTOR_VERSIONS
LOWBIT_VECTOR_VERSION("avx2")
void try_avx2(const Integers& on, float energy, const float* scales, uint32_t first, ScaleTrials& out) {
  try_all<Vec8, 2>(on, energy, scales, first, out);
}
LOWBIT_VECTOR_VERSION("avx2")
AffineFit search_avx2(const Grid& grid, const Group& g) { return search<Vec8, 2>(grid, g); }
LOWBIT_VECTOR_VERSION("avx512f")
void try_avx512(const Integers& on, float energy, const float* scales, uint32_t first, ScaleTrials& out) {
  try_all<Vec16, 1>(on, energy, scales, first, out);
}
LOWBIT_VECTOR_VERSION("avx512f")
AffineFit search_avx512(const Grid& grid, const Group& g) { return search<Vec16, 1>(grid, g); }
#endif

}  // namespace

const std::vector<ScaleSweep>& scale_sweeps() {
  static const std::vector<ScaleSweep> sweeps = [] {
    std::vector<ScaleSweep> all = {{&try_narrow, &search_narrow}};
#ifdef LOWBIT_HAS_VECTOR_VERSIONS
    if (__builtin_cpu_supports("avx2") != 0) all.push_back({&try_avx2, &search_avx2});
    if (__builtin_cpu_supports("avx512f") != 0) all.push_back({&try_avx512, &search_avx512});
#endif
    return all;
  }();
  return sweeps;
}

bool can_be_swept(const Grid& grid, const Group& g) {
  return grid.kind == Grid::Kind::kUniform && grid.step == 1 && grid.base == 0 && grid.values.size() <= kMostValues &&
         g.h == nullptr && g.n <= kMostSwept;
}

AffineFit sweep_scale(const Grid& grid, const Group& g) {
  static const ScaleSweep widest = scale_sweeps().back();
  return widest.search(grid, g);
}

}  // namespace lowbit
