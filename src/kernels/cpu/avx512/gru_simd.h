#pragma once
// The vectors of kernels/cpu/gru_cell.h with AVX-512 (VNNI, VBMI); with Tiles_, batches run on a matrix unit.

#include <immintrin.h>

#include "kernels/cpu/gru_cell.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Four columns a lane: vpdpbusd multiplies unsigned limbs by signed weights and adds four products into int32.
struct GruSimd {
  using Int = __m512i;
  using Element = uint8_t;  // of x
  static constexpr int kLanes = 16, kColumns = 4, kRows = 4, kDepth = 4, kTileRows = 0;
  static constexpr bool kUnpacks = true, kByteTables = true, kCentred = false, kInterleaves = true;

  static inline __attribute__((always_inline)) Int zero() { return _mm512_setzero_si512(); }
  static inline __attribute__((always_inline)) Int start(const uint8_t*, int64_t) { return zero(); }
  static inline __attribute__((always_inline)) Int broadcast(const uint8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  static inline __attribute__((always_inline)) Int load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static inline __attribute__((always_inline)) void store_bytes(uint8_t* p, Int v) { _mm512_storeu_si512(p, v); }
  /// Field f of each byte, at the byte's top: the value times 2^(8 - Bits).
  template <int Bits>
  static inline __attribute__((always_inline)) Int field(Int v, int f) {
    if constexpr (Bits == 8) return v;
    const Int mask = _mm512_set1_epi8(int8_t(uint8_t(0xff00 >> Bits)));
    return _mm512_and_si512(_mm512_slli_epi32(v, unsigned(f * Bits)), mask);
  }
  static inline __attribute__((always_inline)) Int repeat(int32_t v) { return _mm512_set1_epi32(v); }
  static inline __attribute__((always_inline)) Int load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
  /// clamp(rs(sum + bias, right)) for right >= 0; `round` is what a right shift adds.
  static inline __attribute__((always_inline)) Int finish(Int sum, Int bias, Int right, Int round, Int low, Int high) {
    const Int v = _mm512_add_epi32(sum, bias);
    const Int odd = _mm512_and_si512(_mm512_srav_epi32(v, right), _mm512_min_epi32(right, _mm512_set1_epi32(1)));
    const Int shifted = _mm512_srav_epi32(_mm512_add_epi32(_mm512_add_epi32(v, round), odd), right);
    return _mm512_min_epi32(_mm512_max_epi32(shifted, low), high);
  }
  static inline __attribute__((always_inline)) Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static inline __attribute__((always_inline)) Int dot(Int acc, Int x, Int w) { return _mm512_dpbusd_epi32(acc, x, w); }
  static inline __attribute__((always_inline)) void store(int32_t* p, Int v) { _mm512_storeu_si512(p, v); }
  static inline __attribute__((always_inline)) Int broadcast_pair(const int16_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  static inline __attribute__((always_inline)) Int load_words(const int16_t* p) { return _mm512_loadu_si512(p); }
  static inline __attribute__((always_inline)) Int dot_pairs(Int acc, Int x, Int w) {
    return _mm512_dpwssd_epi32(acc, x, w);
  }

  /// y[j] = table[q[j] - lo] + centre for 64 numbers, from 256 bytes in four registers.
  static inline __attribute__((always_inline)) void look_up_bytes(const uint8_t* table, const int32_t* q, int32_t lo,
                                                                  int32_t centre, int32_t* y) {
    const Int t0 = load_bytes(table), t1 = load_bytes(table + 64), t2 = load_bytes(table + 128),
              t3 = load_bytes(table + 192), first = _mm512_set1_epi32(lo), add_centre = _mm512_set1_epi32(centre);
    const auto part = [&](int i) __attribute__((always_inline)) {
      return _mm512_cvtepi32_epi8(_mm512_sub_epi32(_mm512_loadu_si512(q + 16 * i), first));
    };
    Int index = _mm512_castsi128_si512(part(0));
    index = _mm512_inserti32x4(index, part(1), 1);
    index = _mm512_inserti32x4(index, part(2), 2);
    index = _mm512_inserti32x4(index, part(3), 3);
    const Int low = _mm512_permutex2var_epi8(t0, index, t1), high = _mm512_permutex2var_epi8(t2, index, t3);
    const Int bytes = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
    const auto out = [&](int i, __m128i v) __attribute__((always_inline)) {
      _mm512_storeu_si512(y + 16 * i, _mm512_add_epi32(_mm512_cvtepu8_epi32(v), add_centre));
    };
    out(0, _mm512_castsi512_si128(bytes));
    out(1, _mm512_extracti32x4_epi32(bytes, 1));
    out(2, _mm512_extracti32x4_epi32(bytes, 2));
    out(3, _mm512_extracti32x4_epi32(bytes, 3));
  }
};

/// GruSimd with tile products for 16 and more sequences.
template <class Tiles_>
struct GruTileSimd : GruSimd {
  using Tiles = Tiles_;
  static constexpr int kDepth = 64, kTileRows = 16;
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
