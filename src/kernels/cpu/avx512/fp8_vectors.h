#pragma once
// The vector vocabulary of kernels/cpu/fp8.h in AVX-512.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Fp8Vectors512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16, kTileRows = 12;

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint16_t* p) {
    const I wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F or_bits(F a, I b) { return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), b)); }

  static I bits(F v) { return _mm512_castps_si512(v); }
  static F floats(I v) { return _mm512_castsi512_ps(v); }
  static I zero_i() { return _mm512_setzero_si512(); }
  static I set_i(uint32_t v) { return _mm512_set1_epi32(int(v)); }
  static I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
  static I min_i(I a, I b) { return _mm512_min_epi32(a, b); }
  static I shift_right(I v, int n) { return _mm512_srli_epi32(v, unsigned(n)); }
  /// Lanes of `a` where x < limit, as signed integers, else of b.
  static I where_less(I x, I limit, I a, I b) { return _mm512_mask_mov_epi32(b, _mm512_cmplt_epi32_mask(x, limit), a); }
  static F add_f(F a, F b) { return _mm512_add_ps(a, b); }
  static uint32_t largest(I v) { return uint32_t(_mm512_reduce_max_epi32(v)); }
  /// The low byte of each of 16 lanes.
  static void store_codes(uint8_t* p, const I (&v)[1]) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v[0]));
  }
  /// 16 floats of f16 numbers.
  static void widen(__m256i halves, F (&out)[1]) { out[0] = _mm512_cvtph_ps(halves); }
  /// Bytes 0xff become lanes of ones.
  static I mask_of(const uint8_t* bytes) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
