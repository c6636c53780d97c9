#pragma once
// The vocabulary of kernels/cpu/vector_ops.h in AVX-512: 16 lanes are one vector.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Lanes512 {
  using F = __m512;
  using I = __m512i;
  using V = __m512;  // of attention's tiles
  static constexpr int kWidth = 16, kTileSums = 24;
  static V load_v(const float* p) { return load(p); }
  static V load_v(const uint16_t* p) { return load(p); }
  static void store_v(float* p, V v) { store(p, v); }
  static V set_v(float v) { return set(v); }
  static V mul_v(V x, V y) { return mul(x, y); }
  static V fma_v(V x, V y, V z) { return fma(x, y, z); }

  // Packed pages: words of two codes a lane, multiplied by pairs of 16-bit integers.
  using W = __m512i;
  static constexpr int kPackedQueries = 4;  // GCC 12 spills sums of five and six, which takes 1.3 and 1.6 times as long
  typedef uint16_t Words __attribute__((vector_size(64)));
  static W load_w(const uint8_t* p) { return _mm512_loadu_si512(p); }
  template <int kShift, int kMask>
  static W codes_of(W w) {
    const Words codes = Words(w) >> kShift;
    if constexpr (kMask == 0xffff >> kShift) return W(codes);
    return W(codes & Words(_mm512_set1_epi16(short(kMask))));
  }
  static W zero_w() { return _mm512_setzero_si512(); }
  static W pair_w(const int16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static W dot_w(W sum, W codes, W pair) { return _mm512_dpwssd_epi32(sum, codes, pair); }
  static V to_v(W sum) { return _mm512_cvtepi32_ps(sum); }
  static V add_v(V x, V y) { return _mm512_add_ps(x, y); }
  static F load(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  template <int kBits>
  static W next_codes(W both, W first) {  // see PackedProducts
    return _mm512_srai_epi32(_mm512_sub_epi32(both, first), kBits);
  }
  static void store_words(int16_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
  }
  static I most_magnitude(I most, F v) {  // as integers, so that a NaN is the largest
    return _mm512_max_epu32(most, _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
  }
  /// 16 -> 8 -> 4.
  static __m128 quarter(F v) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  }
  static __m128i quarter_max(I v) {
    const __m256i s8 = _mm256_max_epu32(_mm512_castsi512_si256(v), _mm512_extracti32x8_epi32(v, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  }

  static __mmask16 first(int count) { return __mmask16((1u << count) - 1u); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static F load_first(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
  static F load_first(const uint16_t* p, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), p));
  }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void store_first(float* p, F v, int count) { _mm512_mask_storeu_ps(p, first(count), v); }
  static F keep_first(F v, F rest, int count) { return _mm512_mask_mov_ps(rest, first(count), v); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F v) { return _mm512_abs_ps(v); }
  static F negate(F v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f)); }
  /// Lanes i and i + W, for i without bit W: their sum and their difference.
  template <int W>
  static F butterflies(F v) {
    constexpr __mmask16 kUpper = W == 8 ? 0xff00 : W == 4 ? 0xf0f0 : W == 2 ? 0xcccc : 0xaaaa;
    F partner;
    if constexpr (W >= 4) {
      partner = _mm512_shuffle_f32x4(v, v, W == 8 ? 0x4e : 0xb1);
    } else {
      partner = _mm512_permute_ps(v, W == 2 ? 0x4e : 0xb1);
    }
    return _mm512_mask_sub_ps(_mm512_add_ps(partner, v), kUpper, partner, v);
  }
  static bool any_nan(F v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0; }
  /// x where it is NaN, else v.
  static F nan_or(F x, F v) { return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }

  static I zero_i() { return _mm512_setzero_si512(); }
  static I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
  static I to_int(F v) { return _mm512_cvtps_epi32(v); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static F round(F v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F floor(F v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static F times_pow2(F v, F n) { return _mm512_scalef_ps(v, n); }  // rounded once, also below the normal range
  static void store_codes(int8_t* p, I v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }
  static void store_f16(uint16_t* p, F v) {
    // The hardware keeps a NaN's payload; the definition keeps its sign only.
    const F sign = _mm512_set1_ps(-0.0f), quiet = _mm512_set1_ps(__builtin_nanf(""));
    const F nan = _mm512_or_ps(_mm512_and_ps(v, sign), quiet);
    v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  /// The sum of 64 lanes, neighbours first.
  static float reduce_neighbours(const F (&v)[4]) {
    const auto pairs = [](F a, F b) {  // in each quarter two of a, then two of b
      return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    };
    const F s16 = pairs(pairs(v[0], v[1]), pairs(v[2], v[3]));  // quarter q, place i: of quarter q of v[i]
    const __m256 low = _mm512_castps512_ps256(s16), high = _mm512_extractf32x8_ps(s16, 1);
    const __m256 s8 = _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehl_ps(s, s)));
  }

  /// 16 -> 8 -> 4 -> 2 -> 1.
  static float reduce(F v) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float reduce_max(F v) {  // s[i + w] > s[i] ? s[i + w] : s[i]
    const __m256 s8 = _mm256_max_ps(_mm512_extractf32x8_ps(v, 1), _mm512_castps512_ps256(v));
    __m128 s = _mm_max_ps(_mm256_extractf128_ps(s8, 1), _mm256_castps256_ps128(s8));
    s = _mm_max_ps(_mm_movehl_ps(s, s), s);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(s), s));
  }
  static int32_t reduce_i(I v) {
    const __m256i s8 = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti32x8_epi32(v, 1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
