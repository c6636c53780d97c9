#pragma once
// The vocabulary of kernels/cpu/vector_ops.h in AVX2: 16 lanes are two vectors.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Lanes256 {
  struct F {
    __m256 a, b;  // lanes 0..7, 8..15
  };
  struct I {
    __m256i a, b;
  };
  // Attention's tiles are of single vectors: 12 sums, 3 broadcast elements of queries and one vector fill the 16
  // registers.
  using V = __m256;
  static constexpr int kWidth = 8, kTileSums = 12;
  static V load_v(const float* p) { return _mm256_loadu_ps(p); }
  static V load_v(const uint16_t* p) { return load8(p); }
  static void store_v(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V set_v(float v) { return _mm256_set1_ps(v); }
  static V mul_v(V x, V y) { return _mm256_mul_ps(x, y); }
  static V fma_v(V x, V y, V z) { return _mm256_fmadd_ps(x, y, z); }

  // Packed pages: words of two codes a lane, multiplied by pairs of 16-bit integers.
  using W = __m256i;
  static constexpr int kPackedQueries = 3;
  typedef uint16_t Words __attribute__((vector_size(32)));
  static W load_w(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  template <int kShift, int kMask>
  static W codes_of(W w) {
    const Words codes = Words(w) >> kShift;
    if constexpr (kMask == 0xffff >> kShift) return W(codes);
    return W(codes & Words(_mm256_set1_epi16(short(kMask))));
  }
  static W zero_w() { return _mm256_setzero_si256(); }
  static W pair_w(const int16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm256_set1_epi32(pair);
  }
  static W dot_w(W sum, W codes, W pair) { return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, pair)); }
  static V to_v(W sum) { return _mm256_cvtepi32_ps(sum); }
  static V add_v(V x, V y) { return _mm256_add_ps(x, y); }
  static F load(const uint8_t* p) { return floats_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), false); }
  static F load(const int8_t* p) { return floats_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), true); }
  static F floats_of(__m128i bytes, bool is_signed) {
    const __m128i upper = _mm_unpackhi_epi64(bytes, bytes);
    if (is_signed)
      return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(upper))};
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper))};
  }
  template <int kBits>
  static W next_codes(W both, W first) {  // see PackedProducts
    return _mm256_srai_epi32(_mm256_sub_epi32(both, first), kBits);
  }
  static I most_magnitude(I most, F v) {  // as integers, so that a NaN is the largest
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_max_epu32(most.a, _mm256_and_si256(_mm256_castps_si256(v.a), mask)),
            _mm256_max_epu32(most.b, _mm256_and_si256(_mm256_castps_si256(v.b), mask))};
  }
  /// 16 -> 8 -> 4.
  static __m128 quarter(F v) {
    const __m256 s8 = _mm256_add_ps(v.a, v.b);
    return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  }
  static __m128i quarter_max(I v) {
    const __m256i s8 = _mm256_max_epu32(v.a, v.b);
    return _mm_max_epu32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  }
  static void store_words(int16_t* p, I v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8));
  }

  static __m256i first8(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256 load8(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load(const uint16_t* p) { return {load8(p), load8(p + 8)}; }
  static F load_first(const float* p, int count) {
    return {_mm256_maskload_ps(p, first8(count)), _mm256_maskload_ps(p + 8, first8(count - 8))};
  }
  static F load_first(const uint16_t* p, int count) {
    uint16_t all[16] = {};
    __builtin_memcpy(all, p, sizeof(uint16_t) * size_t(count));
    return load(all);
  }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static void store_first(float* p, F v, int count) {
    _mm256_maskstore_ps(p, first8(count), v.a);
    _mm256_maskstore_ps(p + 8, first8(count - 8), v.b);
  }
  static F keep_first(F v, F rest, int count) {
    return {_mm256_blendv_ps(rest.a, v.a, _mm256_castsi256_ps(first8(count))),
            _mm256_blendv_ps(rest.b, v.b, _mm256_castsi256_ps(first8(count - 8)))};
  }

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }  // x > y ? x : y
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F abs(F v) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(v.a, mask), _mm256_and_ps(v.b, mask)};
  }
  static F negate(F v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(v.a, sign), _mm256_xor_ps(v.b, sign)};
  }
  /// Lanes i and i + W, for i without bit W: their sum and their difference.
  template <int W>
  static F butterflies(F v) {
    if constexpr (W == 8) return {_mm256_add_ps(v.a, v.b), _mm256_sub_ps(v.a, v.b)};
    constexpr int kSign = int(0x80000000u);
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), bit = _mm256_set1_epi32(W);
    const __m256 sign = _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_and_si256(index, bit), bit), _mm256_set1_epi32(kSign)));
    return {_mm256_add_ps(partners<W>(v.a), _mm256_xor_ps(v.a, sign)),
            _mm256_add_ps(partners<W>(v.b), _mm256_xor_ps(v.b, sign))};
  }
  template <int W>
  static __m256 partners(__m256 v) {
    if constexpr (W == 4) return _mm256_permute2f128_ps(v, v, 1);
    return _mm256_permute_ps(v, W == 2 ? 0x4e : 0xb1);
  }
  static bool any_nan(F v) {
    // Of two vectors: a lane is unordered when either of its operands is NaN.
    return _mm256_movemask_ps(_mm256_cmp_ps(v.a, v.b, _CMP_UNORD_Q)) != 0;
  }
  /// x where it is NaN, else v.
  static F nan_or(F x, F v) {
    return {_mm256_blendv_ps(v.a, x.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
            _mm256_blendv_ps(v.b, x.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
  }

  static I zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I add_i(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I to_int(F v) { return {_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)}; }
  static F to_float(I v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
  static __m256 pow2_8(__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  }
  static F round(F v) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.a, kNearest), _mm256_round_ps(v.b, kNearest)};
  }
  static F floor(F v) {
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.a, kDown), _mm256_round_ps(v.b, kDown)};
  }
  /// v * 2^n in two factors, of which the second rounds: neither n = 128 nor n = -150 has a float of its own.
  static F times_pow2(F v, F n) { return {times_pow2_8(v.a, n.a), times_pow2_8(v.b, n.b)}; }
  static __m256 times_pow2_8(__m256 v, __m256 n) {
    const __m256i e = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(e, 1);
    return _mm256_mul_ps(_mm256_mul_ps(v, pow2_8(half)), pow2_8(_mm256_sub_epi32(e, half)));
  }
  static void store_codes(int8_t* p, I v) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static __m128i f16_of(__m256 v) {
    // The hardware keeps a NaN's payload; the definition keeps its sign only.
    const __m256 sign = _mm256_set1_ps(-0.0f), quiet = _mm256_set1_ps(__builtin_nanf(""));
    const __m256 nan = _mm256_or_ps(_mm256_and_ps(v, sign), quiet);
    v = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  }
  static void store_f16(uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), f16_of(v.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), f16_of(v.b));
  }

  /// The sum of 64 lanes, neighbours first.
  static float reduce_neighbours(const F (&v)[4]) {
    // Quarter q, place i of the four: of quarter q of v[i].
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(v[0].a, v[1].a), _mm256_hadd_ps(v[2].a, v[3].a)),
                 high = _mm256_hadd_ps(_mm256_hadd_ps(v[0].b, v[1].b), _mm256_hadd_ps(v[2].b, v[3].b));
    const __m256 s8 = _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehl_ps(s, s)));
  }

  /// 16 -> 8 -> 4 -> 2 -> 1.
  static float reduce(F v) {
    const __m256 s8 = _mm256_add_ps(v.a, v.b);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float reduce_max(F v) {  // s[i + w] > s[i] ? s[i + w] : s[i]
    const __m256 s8 = _mm256_max_ps(v.b, v.a);
    __m128 s = _mm_max_ps(_mm256_extractf128_ps(s8, 1), _mm256_castps256_ps128(s8));
    s = _mm_max_ps(_mm_movehl_ps(s, s), s);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(s), s));
  }
  static int32_t reduce_i(I v) {
    const __m256i s8 = _mm256_add_epi32(v.a, v.b);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
