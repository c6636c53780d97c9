#include "quantize/scale_sums.h"

#include <algorithm>

#include "quantize/vector_clones.h"
#ifdef LOWBIT_HAS_VECTOR_VERSIONS
#include <immintrin.h>
#endif

namespace lowbit {
namespace {

// Several scales beside each other in a vector: each has its four lanes, so its sums have the order, and the bits, that
// residual_sums() gives it alone.
constexpr int kLanes = 4;
constexpr int64_t kChunk = 256;  // elements whose sums stay floats
using Vec4 = float __attribute__((vector_size(16)));
using Vec8 = float __attribute__((vector_size(32)));
using Vec16 = float __attribute__((vector_size(64)));

/// Sums of a chunk for each scale, [scales, kLanes].
struct LaneSums {
  alignas(64) float dd[kLanes * kScalesAtOnce], dv[kLanes * kScalesAtOnce], vv[kLanes * kScalesAtOnce];
};

template <class Vec>
[[gnu::always_inline]] inline Vec splat(float value) {
  return value - Vec{};
}

/// Four elements, once for each scale of the vector.
template <class Vec>
[[gnu::always_inline]] inline Vec repeat(const float* x) {
  Vec4 v;
  __builtin_memcpy(&v, x, sizeof v);
  if constexpr (sizeof(Vec) == 16)
    return v;
  else if constexpr (sizeof(Vec) == 32)
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3);
  else
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
}

/// What kVecs vectors of scales have in common over all elements, and their sums.
template <class Vec, int kVecs, bool kWeighted>
struct Pass {
  static constexpr int kScalesOfVec = sizeof(Vec) / sizeof(Vec4), kScales = kVecs * kScalesOfVec;

  [[gnu::always_inline]] Pass(const Integers& on, const float* scales, int count)
      : low(splat<Vec>(on.low)), high(splat<Vec>(on.high)) {
    for (int p = 0; p < kVecs; ++p) {
      float lanes[kScalesOfVec * kLanes];
      for (int e = 0; e < kScalesOfVec * kLanes; ++e)
        lanes[e] = scales[std::min(p * kScalesOfVec + e / kLanes, count - 1)];
      __builtin_memcpy(&scale[p], lanes, sizeof lanes);
      per_scale[p] = 1.0f / scale[p];
    }
  }

  [[gnu::always_inline]] void add(const float* x4, const float* h4) {
    const Vec x = repeat<Vec>(x4), round = splat<Vec>(12582912.0f);  // round_half_even of base/rounding.h
    const Vec h = kWeighted ? repeat<Vec>(h4) : Vec{};
#pragma GCC unroll 4
    for (int p = 0; p < kVecs; ++p) {
      Vec j = x * per_scale[p];
      j = j > low ? j : low;
      j = j < high ? j : high;
      const Vec v = (j + round) - round, d = x - v * scale[p];
      const Vec hd = kWeighted ? h * d : d, hv = kWeighted ? h * v : v;
      dd[p] += hd * d;
      dv[p] += hd * v;
      vv[p] += hv * v;
    }
  }

  [[gnu::always_inline]] void sum(const Group& g, int64_t begin, int64_t end, LaneSums& out) {
    for (int p = 0; p < kVecs; ++p) dd[p] = dv[p] = vv[p] = Vec{};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) add(g.x + i, g.h + (kWeighted ? i : 0));
    if (i < end) {  // zeros, which have no error and weigh nothing
      float x[kLanes] = {}, h[kLanes] = {};
      for (int64_t e = 0; i + e < end; ++e) {
        x[e] = g.x[i + e];
        if (kWeighted) h[e] = g.h[i + e];
      }
      add(x, h);
    }
    __builtin_memcpy(out.dd, dd, sizeof dd);
    __builtin_memcpy(out.dv, dv, sizeof dv);
    __builtin_memcpy(out.vv, vv, sizeof vv);
  }

  Vec low, high, scale[kVecs], per_scale[kVecs], dd[kVecs], dv[kVecs], vv[kVecs];
};

/// kAddTotals(lanes, scales, sums): adds a chunk's four lanes to the sum of each scale, pairs first.
template <class Vec, int kVecs, auto kAddTotals, bool kWeighted>
[[gnu::always_inline]] inline void run_pass(const Integers& on, const float* scales, int first, int count,
                                            ScaleSums& out) {
  Pass<Vec, kVecs, kWeighted> pass(on, scales + first, count - first);
  LaneSums lanes;
  for (int64_t begin = 0; begin < on.group.n; begin += kChunk) {
    pass.sum(on.group, begin, std::min(begin + kChunk, on.group.n), lanes);
    kAddTotals(lanes.dd, pass.kScales, out.dd.data() + first);
    kAddTotals(lanes.dv, pass.kScales, out.dv.data() + first);
    kAddTotals(lanes.vv, pass.kScales, out.vv.data() + first);
  }
}

template <class Vec, int kVecs, auto kAddTotals, bool kWeighted>
[[gnu::always_inline]] inline void run_passes(const Integers& on, const float* scales, int count, ScaleSums& out) {
  constexpr int kScales = Pass<Vec, kVecs, kWeighted>::kScales;
  static_assert(kScalesAtOnce % kScales == 0);
  for (int first = 0; first < count; first += kScales)
    run_pass<Vec, kVecs, kAddTotals, kWeighted>(on, scales, first, count, out);
}

void add_totals(const float* lanes, int scales, double* sums) {
  for (int s = 0; s < scales; ++s, lanes += kLanes)
    sums[s] += (double(lanes[0]) + double(lanes[1])) + (double(lanes[2]) + double(lanes[3]));
}

void sum_narrow(const Integers& on, const float* scales, int count, ScaleSums& out) {
  if (on.group.h != nullptr) return run_passes<Vec4, 2, add_totals, true>(on, scales, count, out);
  run_passes<Vec4, 2, add_totals, false>(on, scales, count, out);
}

#ifdef LOWBIT_HAS_VECTOR_VERSIONS
LOWBIT_VECTOR_VERSION("avx2")
void add_totals_avx2(const float* lanes, int scales, double* sums) {
  for (int s = 0; s < scales; s += 2, lanes += 2 * kLanes) {
    const __m256d a = _mm256_cvtps_pd(_mm_load_ps(lanes)), b = _mm256_cvtps_pd(_mm_load_ps(lanes + kLanes));
    const __m256d pairs = _mm256_add_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
    const __m128d totals = _mm_add_pd(_mm256_castpd256_pd128(pairs), _mm256_extractf128_pd(pairs, 1));
    _mm_storeu_pd(sums + s, _mm_add_pd(_mm_loadu_pd(sums + s), totals));
  }
}

LOWBIT_VECTOR_VERSION("avx2")
void sum_avx2(const Integers& on, const float* scales, int count, ScaleSums& out) {
  if (on.group.h != nullptr) return run_passes<Vec8, 2, add_totals_avx2, true>(on, scales, count, out);
  run_passes<Vec8, 2, add_totals_avx2, false>(on, scales, count, out);
}

LOWBIT_VECTOR_VERSION("avx512f")
void add_totals_avx512(const float* lanes, int scales, double* sums) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 0, 4, 1, 5);
  for (int s = 0; s < scales; s += 4, lanes += 4 * kLanes) {
    const __m512d ab = _mm512_cvtps_pd(_mm256_load_ps(lanes)), cd = _mm512_cvtps_pd(_mm256_load_ps(lanes + 2 * kLanes));
    const __m512d pairs = _mm512_add_pd(_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
    const __m512d totals = _mm512_add_pd(pairs, _mm512_shuffle_f64x2(pairs, pairs, 0xb1));  // a c a c b d b d
    const __m256d abcd = _mm512_castpd512_pd256(_mm512_permutexvar_pd(order, totals));
    _mm256_storeu_pd(sums + s, _mm256_add_pd(_mm256_loadu_pd(sums + s), abcd));
  }
}

/// A whole vector of scales costs as much as one of them.
template <bool kWeighted>
[[gnu::always_inline]] inline void run_wide_passes(const Integers& on, const float* scales, int count, ScaleSums& out) {
  int first = 0;
  for (; count - first > 8; first += 16)
    run_pass<Vec16, 4, add_totals_avx512, kWeighted>(on, scales, first, count, out);
  if (count - first > 4) return run_pass<Vec16, 2, add_totals_avx512, kWeighted>(on, scales, first, count, out);
  if (count - first > 0) run_pass<Vec16, 1, add_totals_avx512, kWeighted>(on, scales, first, count, out);
}

LOWBIT_VECTOR_VERSION("avx512f")
void sum_avx512(const Integers& on, const float* scales, int count, ScaleSums& out) {
  if (on.group.h != nullptr) return run_wide_passes<true>(on, scales, count, out);
  run_wide_passes<false>(on, scales, count, out);
}
#endif

}  // namespace

const std::vector<SumIntegers>& integer_loops() {
  static const std::vector<SumIntegers> loops = [] {
    std::vector<SumIntegers> all = {&sum_narrow};
#ifdef LOWBIT_HAS_VECTOR_VERSIONS
    if (__builtin_cpu_supports("avx2") != 0) all.push_back(&sum_avx2);
    if (__builtin_cpu_supports("avx512f") != 0) all.push_back(&sum_avx512);
#endif
    return all;
  }();
  return loops;
}

void scale_sums(const Grid& grid, const Group& g, const float* scales, int count, ScaleSums& sums) {
  sums = {};
  const bool has_zero = grid.j_min <= 0 && grid.j_max >= 0;  // what a tail is filled with has no error
  if (grid.kind == Grid::Kind::kUniform && grid.step == 1 && grid.base == 0 && has_zero) {
    static const SumIntegers widest = integer_loops().back();
    return widest({g, grid.j_min, grid.j_max}, scales, count, sums);
  }
  for (int i = 0; i < count; ++i) {
    const ResidualSums alone = residual_sums(grid, g, scales[i], 0);
    const auto at = static_cast<size_t>(i);
    sums.dd[at] = alone.dd;
    sums.dv[at] = alone.dv;
    sums.vv[at] = alone.vv;
  }
}

LOWBIT_VECTOR_CLONES
void solve_scales(const ScaleSums& s, const float* scales, int count, float* solved, double* errors) {
  using Doubles = double __attribute__((vector_size(32)));
  constexpr int kTogether = 4;
  for (int i = 0; i < count; i += kTogether) {
    const auto load = [i](const auto& sums) {
      Doubles v;
      __builtin_memcpy(&v, sums.data() + i, sizeof v);
      return v;
    };
    const Doubles dv = load(s.dv), vv = load(s.vv), none{};
    const Doubles moved = vv > none ? dv / vv : none, error = load(s.dd) - (vv > none ? dv * dv / vv : none);
    for (int e = 0; e < kTogether; ++e) solved[i + e] = scales[i + e] + static_cast<float>(moved[e]);
    __builtin_memcpy(errors + i, &error, sizeof error);
  }
}

}  // namespace lowbit
