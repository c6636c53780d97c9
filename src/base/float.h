#pragma once
// Storage floats: bf16, f16 (IEEE binary16) and FP8 E4M3 (the "fn" variant: no infinity, S.1111.111
// is NaN, max 448). All conversions to a storage float round to nearest, ties to even. Bit patterns
// are plain uint16_t / uint8_t.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

// std::bit_cast is not for device code; the builtin behind it is.
constexpr LOWBIT_HD float bits_to_f32(uint32_t u) { return __builtin_bit_cast(float, u); }
constexpr LOWBIT_HD uint32_t f32_to_bits(float f) { return __builtin_bit_cast(uint32_t, f); }

constexpr LOWBIT_HD float bf16_to_f32(uint16_t h) { return bits_to_f32(uint32_t(h) << 16); }

constexpr LOWBIT_HD uint16_t f32_to_bf16(float f) {
  const uint32_t u = f32_to_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);  // NaN stays NaN, quiet
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

constexpr LOWBIT_HD float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in f32
    const float magnitude = float(mantissa) * 0x1p-24f;
    return bits_to_f32(f32_to_bits(magnitude) | sign);
  }
  if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
  return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr LOWBIT_HD uint16_t f32_to_f16(float f) {
  const uint32_t u = f32_to_bits(f);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x33000001u) return sign;                       // <= 2^-25 rounds to zero
  if (magnitude < 0x38800000u) {                                  // subnormal half
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t m = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1u), q = m >> shift;
    return uint16_t(sign | (q + (rest > half || (rest == half && (q & 1u)) ? 1u : 0u)));
  }
  const uint32_t m = magnitude - 0x38000000u;
  return uint16_t(sign | ((m + 0xfffu + ((m >> 13) & 1u)) >> 13));
}

constexpr LOWBIT_HD float e4m3_to_f32(uint8_t c) {
  const uint32_t exponent = (c >> 3) & 0xfu, mantissa = c & 7u;
  float magnitude = 0;
  if (exponent == 15 && mantissa == 7) {
    magnitude = bits_to_f32(0x7fc00000u);
  } else if (exponent == 0) {
    magnitude = float(mantissa) * 0x1p-9f;
  } else {
    magnitude = bits_to_f32(((exponent + 120u) << 23) | (mantissa << 20));
  }
  return bits_to_f32(f32_to_bits(magnitude) | (uint32_t(c & 0x80u) << 24));
}

/// Saturates: |f| above 448 (infinity included) gives the code of 448; NaN gives NaN.
constexpr LOWBIT_HD uint8_t f32_to_e4m3(float f) {
  const uint32_t u = f32_to_bits(f);
  const uint8_t sign = uint8_t((u >> 24) & 0x80u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return uint8_t(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {                               // below 2^-6: subnormal, step 2^-9
    const float steps = bits_to_f32(magnitude) * 512.0f;
    uint32_t q = uint32_t(steps);
    const float rest = steps - float(q);
    if (rest > 0.5f || (rest == 0.5f && (q & 1u))) ++q;
    return uint8_t(sign | q);  // q == 8 is the code of 2^-6: the carry is right by construction
  }
  const uint32_t m = magnitude - (120u << 23);
  const uint32_t q = (m + 0x7ffffu + ((m >> 20) & 1u)) >> 20;
  return uint8_t(sign | (q > 0x7eu ? 0x7eu : q));
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
