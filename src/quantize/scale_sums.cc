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
constexpr int64_t kChunk = 256;        // elements whose sums stay floats
constexpr float kRound = 12582912.0f;  // round_half_even of base/rounding.h
using Vec4 = float __attribute__((vector_size(16)));
using Vec8 = float __attribute__((vector_size(32)));

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
  else
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3);
}

/// kVecs vectors of scales, and what they have in common over all elements.
template <class Vec, int kVecs>
struct Pass {
  static constexpr int kScalesOfVec = sizeof(Vec) / sizeof(Vec4), kScales = kVecs * kScalesOfVec;

  [[gnu::always_inline]] Pass(const Integers& on, const float* scales)
      : low(splat<Vec>(on.low)), high(splat<Vec>(on.high)) {
#pragma GCC unroll 4
    for (int p = 0; p < kVecs; ++p) {
      float lanes[kScalesOfVec * kLanes];
      for (int e = 0; e < kScalesOfVec * kLanes; ++e) lanes[e] = scales[p * kScalesOfVec + e / kLanes];
      __builtin_memcpy(&scale[p], lanes, sizeof lanes);
      per_scale[p] = 1.0f / scale[p];
    }
  }

  Vec low, high, scale[kVecs], per_scale[kVecs];
};

/// Of one chunk.
template <class Vec, int kVecs>
struct VecSums {
  Vec dd[kVecs], dv[kVecs], vv[kVecs];
};

template <bool kWeighted, class Vec, int kVecs>
[[gnu::always_inline]] inline void add_elements(const Pass<Vec, kVecs>& pass, const float* x4, const float* h4,
                                                VecSums<Vec, kVecs>& sums) {
  const Vec x = repeat<Vec>(x4), round = splat<Vec>(kRound);
  const Vec h = kWeighted ? repeat<Vec>(h4) : Vec{};
#pragma GCC unroll 4
  for (int p = 0; p < kVecs; ++p) {
    Vec j = x * pass.per_scale[p];
    j = j > pass.low ? j : pass.low;
    j = j < pass.high ? j : pass.high;
    const Vec v = (j + round) - round, d = x - v * pass.scale[p];
    const Vec hd = kWeighted ? h * d : d, hv = kWeighted ? h * v : v;
    sums.dd[p] += hd * d;
    sums.dv[p] += hd * v;
    sums.vv[p] += hv * v;
  }
}

template <bool kWeighted, class Vec, int kVecs>
[[gnu::always_inline]] inline void sum_chunk(const Pass<Vec, kVecs>& pass, const Group& g, int64_t begin, int64_t end,
                                             LaneSums& out) {
  VecSums<Vec, kVecs> sums = {};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) add_elements<kWeighted>(pass, g.x + i, g.h + (kWeighted ? i : 0), sums);
  if (i < end) {  // zeros, which have no error and weigh nothing
    float x[kLanes] = {}, h[kLanes] = {};
    for (int64_t e = 0; i + e < end; ++e) {
      x[e] = g.x[i + e];
      if (kWeighted) h[e] = g.h[i + e];
    }
    add_elements<kWeighted>(pass, x, h, sums);
  }
#pragma GCC unroll 4
  for (int p = 0; p < kVecs; ++p) {
    const int at = p * kLanes * Pass<Vec, kVecs>::kScalesOfVec;
    __builtin_memcpy(out.dd + at, &sums.dd[p], sizeof(Vec));
    __builtin_memcpy(out.dv + at, &sums.dv[p], sizeof(Vec));
    __builtin_memcpy(out.vv + at, &sums.vv[p], sizeof(Vec));
  }
}

/// kAddTotals(lanes, scales, sums): adds a chunk's four lanes to the sum of each scale, pairs first.
template <class Vec, int kVecs, auto kAddTotals, bool kWeighted>
[[gnu::always_inline]] inline void run_pass(const Integers& on, const float* scales, int first, ScaleSums& out) {
  const Pass<Vec, kVecs> pass(on, scales + first);
  LaneSums lanes;
  for (auto* sums : {&out.dd, &out.dv, &out.vv}) std::fill_n(sums->begin() + first, pass.kScales, 0.0);
  for (int64_t begin = 0; begin < on.group.n; begin += kChunk) {
    sum_chunk<kWeighted>(pass, on.group, begin, std::min(begin + kChunk, on.group.n), lanes);
    kAddTotals(lanes.dd, pass.kScales, out.dd.data() + first);
    kAddTotals(lanes.dv, pass.kScales, out.dv.data() + first);
    kAddTotals(lanes.vv, pass.kScales, out.vv.data() + first);
  }
}

template <class Vec, int kVecs, auto kAddTotals, bool kWeighted>
[[gnu::always_inline]] inline void run_passes(const Integers& on, const float* scales, int count, ScaleSums& out) {
  constexpr int kScales = Pass<Vec, kVecs>::kScales;
  static_assert(kScalesAtOnce % kScales == 0);
  for (int first = 0; first < count; first += kScales)
    run_pass<Vec, kVecs, kAddTotals, kWeighted>(on, scales, first, out);
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

/// A chunk's four lanes of four scales added up, pairs first.
LOWBIT_VECTOR_VERSION("avx512f")
inline __m256d totals_of(const __m512& lanes) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 0, 4, 1, 5);
  const __m256d high = _mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(lanes), 1);
  const __m512d ab = _mm512_cvtps_pd(_mm512_castps512_ps256(lanes)), cd = _mm512_cvtps_pd(_mm256_castpd_ps(high));
  const __m512d pairs = _mm512_add_pd(_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
  const __m512d totals = _mm512_add_pd(pairs, _mm512_shuffle_f64x2(pairs, pairs, 0xb1));  // a c a c b d b d
  return _mm512_castpd512_pd256(_mm512_permutexvar_pd(order, totals));
}

LOWBIT_VECTOR_VERSION("avx512f")
inline void add_totals_avx512(const __m512& lanes, bool is_first, double* sums) {
  const __m256d totals = totals_of(lanes);
  _mm256_storeu_pd(sums, is_first ? totals : _mm256_add_pd(_mm256_loadu_pd(sums), totals));
}

/// Four scales to a vector, written out: made from Pass the sums would go through memory.
template <int kVecs, bool kWeighted>
LOWBIT_VECTOR_VERSION("avx512f")
void run_wide(const Integers& on, const float* scales, ScaleSums& out) {
  const __m512 low = _mm512_set1_ps(on.low), high = _mm512_set1_ps(on.high), round = _mm512_set1_ps(kRound);
  const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  __m512 scale[kVecs], per_scale[kVecs];
  const __m512 all = _mm512_loadu_ps(scales), inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), all);
#pragma GCC unroll 4
  for (int p = 0; p < kVecs; ++p) {
    const __m512i of_four = _mm512_add_epi32(each, _mm512_set1_epi32(4 * p));
    scale[p] = _mm512_maskz_permutexvar_ps(0xffff, of_four, all);
    per_scale[p] = _mm512_maskz_permutexvar_ps(0xffff, of_four, inverse);
  }
  const Group& g = on.group;
  for (int64_t begin = 0; begin < g.n; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, g.n);
    __m512 dd[kVecs], dv[kVecs], vv[kVecs];
#pragma GCC unroll 4
    for (int p = 0; p < kVecs; ++p) dd[p] = dv[p] = vv[p] = _mm512_setzero_ps();
    for (int64_t i = begin; i < end; i += kLanes) {
      const auto there = static_cast<__mmask16>(0xf >> std::max<int64_t>(0, i + kLanes - end));
      // Zeros behind the end, which have no error and weigh nothing.
      const auto load = [&](const float* from) LOWBIT_VECTOR_VERSION("avx512f") {
        const __m512 four = _mm512_maskz_loadu_ps(there, from + i);
        return _mm512_shuffle_f32x4(four, four, 0);
      };
      const __m512 x = load(g.x), h = kWeighted ? load(g.h) : round;
#pragma GCC unroll 4
      for (int p = 0; p < kVecs; ++p) {
        const __m512 j = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x, per_scale[p]), low), high);
        const __m512 v = _mm512_sub_ps(_mm512_add_ps(j, round), round);
        const __m512 d = _mm512_sub_ps(x, _mm512_mul_ps(v, scale[p]));
        const __m512 hd = kWeighted ? _mm512_mul_ps(h, d) : d, hv = kWeighted ? _mm512_mul_ps(h, v) : v;
        dd[p] = _mm512_add_ps(dd[p], _mm512_mul_ps(hd, d));
        dv[p] = _mm512_add_ps(dv[p], _mm512_mul_ps(hd, v));
        vv[p] = _mm512_add_ps(vv[p], _mm512_mul_ps(hv, v));
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kVecs; ++p) {
      add_totals_avx512(dd[p], begin == 0, out.dd.data() + 4 * p);
      add_totals_avx512(dv[p], begin == 0, out.dv.data() + 4 * p);
      add_totals_avx512(vv[p], begin == 0, out.vv.data() + 4 * p);
    }
  }
}

template <bool kWeighted>
void run_as_wide_as_needed(const Integers& on, const float* scales, int count, ScaleSums& out) {
  using Run = void (*)(const Integers& on, const float* scales, ScaleSums& out);
  static constexpr Run kByVecs[] = {&run_wide<1, kWeighted>, &run_wide<2, kWeighted>, &run_wide<3, kWeighted>,
                                    &run_wide<4, kWeighted>};
  if (count > 0) kByVecs[(count - 1) / 4](on, scales, out);
}

void sum_avx512(const Integers& on, const float* scales, int count, ScaleSums& out) {
  (on.group.h != nullptr ? run_as_wide_as_needed<true> : run_as_wide_as_needed<false>)(on, scales, count, out);
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
  const bool has_zero = grid.j_min <= 0 && grid.j_max >= 0;  // what a tail is filled with has no error
  if (grid.kind == Grid::Kind::kUniform && grid.step == 1 && grid.base == 0 && has_zero) {
    static const SumIntegers widest = integer_loops().back();
    return widest({g, grid.j_min, grid.j_max}, scales, count, sums);
  }
  sums = {};
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
