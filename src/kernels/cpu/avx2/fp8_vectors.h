#pragma once
// The vector vocabulary of kernels/cpu/fp8.h in AVX2.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Fp8Vectors256 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8, kTileRows = 6;

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float v) { return _mm256_set1_ps(v); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static F load_bf16(const uint16_t* p) {
    const I wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F or_bits(F a, I b) { return _mm256_or_ps(a, _mm256_castsi256_ps(b)); }

  static I bits(F v) { return _mm256_castps_si256(v); }
  static F floats(I v) { return _mm256_castsi256_ps(v); }
  static I zero_i() { return _mm256_setzero_si256(); }
  static I set_i(uint32_t v) { return _mm256_set1_epi32(int(v)); }
  static I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I max_i(I a, I b) { return _mm256_max_epi32(a, b); }
  static I min_i(I a, I b) { return _mm256_min_epi32(a, b); }
  static I shift_right(I v, int n) { return _mm256_srli_epi32(v, n); }
  /// Lanes of `a` where x < limit, as signed integers, else of b.
  static I where_less(I x, I limit, I a, I b) { return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(limit, x)); }
  static F add_f(F a, F b) { return _mm256_add_ps(a, b); }
  static uint32_t largest(I v) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return uint32_t(_mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1))));
  }
  /// The low byte of each lane of 16 lanes.
  static void store_codes(uint8_t* p, const I (&v)[2]) {
    const I words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v[0], v[1]), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  /// 16 floats of f16 numbers.
  static void widen(__m256i halves, F (&out)[2]) {
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
  /// Bytes 0xff become lanes of ones.
  static I mask_of(const uint8_t* bytes) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
