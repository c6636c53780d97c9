#pragma once
// Shared by the tensor-core kernels of quantized_mm. f32 accuracy: x is cut into three bf16 parts that add up to it
// exactly (8 + 8 + 8 significant bits), small integer weights are exact in bf16, and so is every product; sums are f32.
//
// Order:    lane t of a piece of a weight row holds consecutive bytes of it; pair i of a word is codes i and i + 16 /
// BITS.
//           Two codes become two bf16 by an exponent above them and one fma.

#include "kernels/cuda/quantized_mm.cuh"

namespace lowbit::cuda {

inline constexpr int kParts = 3;

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Codes i and i + 16 / BITS of a word as two bf16. 128 + c has c in its lowest bits, so a code is put there and 128
/// taken off.
template <int BITS>
__device__ __forceinline__ uint32_t decode_pair(uint32_t word, int i) {
  constexpr uint32_t kOne = 0x3f803f80u;
  if constexpr (BITS == 1) {
    return and_xor(word << (15 - i), 0x80008000u, 0xbf80bf80u);
  } else if constexpr (BITS == 2) {
    const int place = 2 * (i % 3);  // three fields fit below the exponent; fma brings them to place 0 and takes 2 off
    const uint32_t field = and_xor(word >> (6 * (i / 3)), 0x00030003u << place, 0x43004300u);
    const uint32_t factor = place == 0 ? kOne : place == 2 ? 0x3e803e80u : 0x3d803d80u;        // 1, 1/4, 1/16
    const uint32_t minus = place == 0 ? 0xc302c302u : place == 2 ? 0xc208c208u : 0xc120c120u;  // -130, -34, -10
    return fma_bf16x2(field, factor, minus);
  } else if constexpr (BITS == 4) {
    return fma_bf16x2(and_xor(word >> (4 * i), 0x000f000fu, 0x43084308u), kOne, 0xc308c308u);  // 128 + (c ^ 8) - 136
  } else {
    const uint32_t bytes = word >> (8 * i);  // the sign bit decides between -128 and -256
    return fma_bf16x2(and_xor(bytes, 0x007f007fu, 0x43004300u), kOne, and_xor(bytes, 0x00800080u, 0xc300c300u));
  }
}

/// 16 bytes of a weight row from `byte` on; zeros behind the row's end.
__device__ __forceinline__ uint4 load_weights(const uint8_t* row, int64_t byte, int64_t row_bytes, bool aligned) {
  if (aligned && byte + 16 <= row_bytes) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(row + byte));
    return v;
  }
  uint32_t v[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (byte + i < row_bytes) v[i / 4] |= static_cast<uint32_t>(row[byte + i]) << (8 * (i % 4));
  return {v[0], v[1], v[2], v[3]};
}

/// The three bf16 parts of v, as their bits in the upper halves. Infinity and NaN have one part.
__device__ __forceinline__ void split(float v, uint32_t (&parts)[kParts]) {
  const uint32_t bits = f32_to_bits(v);
  parts[0] = v == v ? bits & 0xffff0000u : 0x7fc00000u;
  float rest = __fsub_rn(v, bits_to_f32(parts[0]));
  rest = rest == rest ? rest : 0.0f;  // infinity minus itself
  parts[1] = f32_to_bits(rest) & 0xffff0000u;
  parts[2] = f32_to_bits(__fsub_rn(rest, bits_to_f32(parts[1])));
}

/// Eight columns of a token that a lane multiplies with four pairs of a word's codes: from k on, and from k +
/// `apart` on. quads[part]: four words, a pair of columns each. With 8 bits the four pairs are of two words.
template <int BITS>
__device__ __forceinline__ void split_pairs(const float (&low)[4], const float (&high)[4], uint4 (&quads)[kParts]) {
  uint32_t words[kParts][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // 8 bits: pairs (0, 2), (1, 3) of each of two words.
    const float first_of_pair = BITS == 8 ? (i < 2 ? low[i] : high[i - 2]) : low[i];
    const float second_of_pair = BITS == 8 ? (i < 2 ? low[i + 2] : high[i]) : high[i];
    uint32_t a[kParts], b[kParts];
    split(first_of_pair, a);
    split(second_of_pair, b);
#pragma unroll
    for (int part = 0; part < kParts; ++part) words[part][i] = __byte_perm(a[part], b[part], 0x7632);
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    quads[part] = {words[part][0], words[part][1], words[part][2], words[part][3]};
}

/// First column of quad `quad` (four pairs) of a lane whose words begin at column `from`, and how far the second four
/// are.
template <int BITS>
__device__ __forceinline__ int64_t column_of_quad(int64_t from, int quad) {
  constexpr int kPairsOfWord = 16 / BITS;
  const int pair = 4 * quad;
  return from + pair / kPairsOfWord * (32 / BITS) + pair % kPairsOfWord;
}
template <int BITS>
inline constexpr int kPairApart = BITS == 8 ? 4 : 16 / BITS;

__device__ __forceinline__ bool fours_aligned(const QuantizedConfig& p, const void* input) {
  const int bytes = element_bytes(p.input_element);
  const auto where = reinterpret_cast<uintptr_t>(input) | static_cast<uintptr_t>(p.input_stride * bytes);
  return (where & static_cast<uintptr_t>(4 * bytes - 1)) == 0;
}
__device__ __forceinline__ const uint8_t* row_of_x(const QuantizedConfig& p, const void* input, int64_t m) {
  return static_cast<const uint8_t*>(input) + m * p.input_stride * element_bytes(p.input_element);
}

}  // namespace lowbit::cuda
