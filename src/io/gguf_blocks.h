#pragma once
// Fields of GGUF's blocks that both the dequantizer and the importer read. Private to src/io.

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/float.h"

namespace lowbit::gguf {

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
inline float load_f16(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/// E2M1 times two; the block's scale is halved in turn.
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// 2^(e - 128): the scale that goes with kMxfp4Values.
inline float e8m0_half(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

/// codes[0..32) of 16 bytes: low nibbles, then high nibbles.
inline void nibbles32(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + 16] = qs[j] >> 4;
  }
}

/// Q5_0 and Q5_1: a fifth bit from `qh`.
inline void codes_q5(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  nibbles32(qs, codes);
  const uint32_t high = load_u32(qh);
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((high >> j) & 1) << 4);
}

/// 64 bytes of 2-bit codes as Q2_K, Q3_K and TQ2_0 hold them: per 32 bytes, bits 2 n belong to elements 32 n...
inline void codes_2bit(const uint8_t* qs, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int n = 0; n < 4; ++n)
      for (int m = 0; m < 32; ++m) codes[half * 128 + n * 32 + m] = (qs[half * 32 + m] >> (2 * n)) & 3;
}

/// Q3_K: 0..7 (value + 4) and the 16 scales -32..31.
inline void codes_q3k(const uint8_t* block, uint8_t* codes, int8_t* scales) {
  const uint8_t *hmask = block, *packed = block + 96;
  codes_2bit(block + 32, codes);
  for (int j = 0; j < 256; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((hmask[j % 32] >> (j / 32)) & 1) << 2);
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    const int high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
    scales[j] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

/// Q4_K and Q5_K: 8 six-bit scales and 8 six-bit minima in 12 bytes.
inline void scales_q4k(const uint8_t* p, uint8_t* scales, uint8_t* mins) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = p[j] & 63;
    mins[j] = p[4 + j] & 63;
    scales[4 + j] = static_cast<uint8_t>((p[8 + j] & 15) | ((p[j] >> 2) & 0x30));
    mins[4 + j] = static_cast<uint8_t>((p[8 + j] >> 4) | ((p[4 + j] >> 2) & 0x30));
  }
}

/// 128 bytes: per 32 bytes, low nibbles of 32 elements, then high nibbles.
inline void codes_q4k(const uint8_t* qs, uint8_t* codes) {
  for (int c = 0; c < 4; ++c)
    for (int m = 0; m < 32; ++m) {
      codes[c * 64 + m] = qs[c * 32 + m] & 15;
      codes[c * 64 + 32 + m] = qs[c * 32 + m] >> 4;
    }
}

inline void codes_q5k(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  codes_q4k(qs, codes);
  for (int j = 0; j < 256; ++j) codes[j] = static_cast<uint8_t>(codes[j] | ((qh[j % 32] >> (j / 32)) & 1) << 4);
}

/// Q6_K: 0..63 (value + 32).
inline void codes_q6k(const uint8_t* ql, const uint8_t* qh, uint8_t* codes) {
  for (int half = 0; half < 2; ++half)
    for (int m = 0; m < 128; ++m) {
      const int low = (ql[half * 64 + m % 64] >> (m < 64 ? 0 : 4)) & 15;
      const int high = (qh[half * 32 + m % 32] >> (2 * (m / 32))) & 3;
      codes[half * 128 + m] = static_cast<uint8_t>(low | high << 4);
    }
}

/// IQ4_XS: the 8 scales -32..31 of a block.
inline void scales_iq4xs(const uint8_t* block, int8_t* scales) {
  const uint16_t high = load_u16(block + 2);
  const uint8_t* low = block + 4;
  for (int j = 0; j < 8; ++j)
    scales[j] = static_cast<int8_t>((((low[j / 2] >> (4 * (j % 2))) & 15) | ((high >> (2 * j)) & 3) << 4) - 32);
}

inline constexpr uint8_t kPow3[5] = {1, 3, 9, 27, 81};

/// TQ1_0: 0..2 (value + 1).
inline void codes_tq1(const uint8_t* block, uint8_t* codes) {
  const auto digit = [](uint8_t byte, int n) {
    return static_cast<uint8_t>((static_cast<uint16_t>(static_cast<uint8_t>(byte * kPow3[n])) * 3) >> 8);
  };
  for (int n = 0; n < 5; ++n) {
    for (int m = 0; m < 32; ++m) codes[n * 32 + m] = digit(block[m], n);
    for (int m = 0; m < 16; ++m) codes[160 + n * 16 + m] = digit(block[32 + m], n);
  }
  for (int n = 0; n < 4; ++n)
    for (int m = 0; m < 4; ++m) codes[240 + n * 4 + m] = digit(block[48 + m], n);
}

}  // namespace lowbit::gguf
