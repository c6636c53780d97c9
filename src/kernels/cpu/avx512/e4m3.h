#pragma once
// E4M3 codes to floats by two look-ups in 128 bytes each: a value has so few bits that the upper half of its f32 (a
// bf16) holds all of it.

#include <immintrin.h>

#include <cstdint>

#include "base/float.h"
#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Bf16OfE4m3 {
  __m512i high[2], low[2];  // bytes of the upper half, by magnitude

  static inline __attribute__((always_inline)) Bf16OfE4m3 load() {
    const auto at = [](const uint8_t* p) { return _mm512_load_si512(p); };
    return {{at(kBytes.high), at(kBytes.high + 64)}, {at(kBytes.low), at(kBytes.low + 64)}};
  }

  /// 64 codes to bf16, two in each place of 32 bits: those of bytes 2 i and 2 i + 1 of a quarter in place i of
  /// pairs[0], of bytes 2 i + 8 and 2 i + 9 in that of pairs[1]; the first in the lower half.
  inline __attribute__((always_inline)) void pairs(__m512i codes, __m512i (&pairs)[2]) const {
    const __m512i magnitude = _mm512_permutex2var_epi8(high[0], codes, high[1]);  // looks at seven bits
    const __m512i with_sign = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(char(0x80)), 0xf8);
    const __m512i rest = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    pairs[0] = _mm512_unpacklo_epi8(rest, with_sign);
    pairs[1] = _mm512_unpackhi_epi8(rest, with_sign);
  }
  static inline __attribute__((always_inline)) __m512 lower(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  }
  static inline __attribute__((always_inline)) __m512 upper(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
  }

 private:
  struct Bytes {
    alignas(64) uint8_t high[128], low[128];
  };
  static constexpr Bytes kBytes = [] {
    Bytes b{};
    for (int code = 0; code < 128; ++code) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, e4m3_to_f32(uint8_t(code)));
      b.high[code] = uint8_t(bits >> 24);
      b.low[code] = uint8_t(bits >> 16);
    }
    return b;
  }();
};

/// sum + w x of the upper halves, rounded, and then + that of the lower ones, rounded: two columns in their order. The
/// instruction takes subnormal numbers for zero, which values of E4M3 and sums of their products never are. Only where
/// has_bf16_pairs(): an instruction of AVX-512 BF16.
static inline __attribute__((always_inline)) __m512 add_bf16_pairs(__m512 w, __m512 x, __m512 sum) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
