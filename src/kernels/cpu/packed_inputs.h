#pragma once
// Queries as integers for products with packed matrices of the KV cache, as kernels/ref/packed_kv.cc has it.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"
#include "kernels/packed_kv.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Integers of up to four queries, their scales, and what the rows' least values give.
template <class L>
struct PackedInputs {
  static constexpr int kMostQueries = 4;
  alignas(64) int16_t x[kMostQueries][kMostPackedRows];
  alignas(16) float scale[kMostQueries], offset[kMostQueries];

  /// `side`: PackedMatrix::side. Not inlined: GCC then keeps too few of its values in registers.
  __attribute__((noinline)) void prepare(const float* const* from, int queries, const uint8_t* side, int64_t rows) {
    switch (queries) {
      case 4:
        return prepare_queries<4>(from, side, rows);
      case 3:
        return prepare_queries<3>(from, side, rows);
      case 2:
        return prepare_queries<2>(from, side, rows);
      default:
        return prepare_queries<1>(from, side, rows);
    }
  }

 private:
  using F = typename L::F;
  using I = typename L::I;

  /// A query's maximum and divisions are a chain of operations that wait for each other, so all go side by side.
  template <int Q>
  void prepare_queries(const float* const* from, const uint8_t* side, int64_t rows) {
    float super_scales[2];
    __builtin_memcpy(super_scales, side, sizeof(super_scales));
    side += sizeof(super_scales);
    alignas(64) float scales[kMostPackedRows];
    const float* const by = scales;
    I bits[Q];
    F offsets[Q];
#pragma GCC unroll 4
    for (int j = 0; j < Q; ++j) bits[j] = L::zero_i(), offsets[j] = L::zero();
    for (int64_t r = 0; r < rows; r += kLanes) {
      const F scale_r = L::mul(L::set(super_scales[0]), L::load(side + r));
      const F least = L::mul(L::set(super_scales[1]), L::load(reinterpret_cast<const int8_t*>(side + rows + r)));
      L::store(scales + r, scale_r);
#pragma GCC unroll 4
      for (int j = 0; j < Q; ++j) {
        const F v = L::load(from[j] + r);
        bits[j] = L::most_magnitude(bits[j], L::mul(v, scale_r));
        offsets[j] = L::fma(v, least, offsets[j]);
      }
    }
    __m128 sums[kMostQueries] = {};
    __m128i most[kMostQueries] = {};
#pragma GCC unroll 4
    for (int j = 0; j < Q; ++j) sums[j] = L::quarter(offsets[j]), most[j] = L::quarter_max(bits[j]);
    alignas(16) float inverses[kMostQueries];
    _mm_store_ps(inverses, set_scales(sums, most));
#pragma GCC unroll 4
    for (int j = 0; j < Q; ++j) {
      const F factor = L::set(inverses[j]);
      for (int64_t r = 0; r < rows; r += kLanes)
        L::store_words(x[j] + r, L::to_int(L::mul(L::mul(L::load(from[j] + r), L::load(by + r)), factor)));
    }
  }

  /// packed_x() of four queries, from quarters of their lanes; returns what x is multiplied by.
  __m128 set_scales(const __m128 (&sums)[4], const __m128i (&most)[4]) {
    // By halves: lanes 0 and 2, 1 and 3, then those two.
    const __m128 s01 = _mm_add_ps(_mm_unpacklo_ps(sums[0], sums[1]), _mm_unpackhi_ps(sums[0], sums[1]));
    const __m128 s23 = _mm_add_ps(_mm_unpacklo_ps(sums[2], sums[3]), _mm_unpackhi_ps(sums[2], sums[3]));
    _mm_store_ps(offset, _mm_add_ps(_mm_movelh_ps(s01, s23), _mm_movehl_ps(s23, s01)));
    const __m128i m01 = _mm_max_epu32(_mm_unpacklo_epi32(most[0], most[1]), _mm_unpackhi_epi32(most[0], most[1]));
    const __m128i m23 = _mm_max_epu32(_mm_unpacklo_epi32(most[2], most[3]), _mm_unpackhi_epi32(most[2], most[3]));
    const __m128i bits = _mm_max_epu32(_mm_unpacklo_epi64(m01, m23), _mm_unpackhi_epi64(m01, m23));
    const __m128 absmax = _mm_castsi128_ps(bits), x_most = _mm_set1_ps(kPackedX);
    const __m128 bad = _mm_castsi128_ps(_mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7f7fffff)));  // infinite or NaN
    const __m128 none = _mm_or_ps(bad, _mm_cmplt_ps(absmax, _mm_set1_ps(0x1p-100f)));
    const __m128 nan = _mm_and_ps(bad, _mm_set1_ps(__builtin_nanf("")));
    _mm_store_ps(scale, _mm_or_ps(nan, _mm_andnot_ps(none, _mm_div_ps(absmax, x_most))));
    return _mm_andnot_ps(none, _mm_div_ps(x_most, absmax));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
