#pragma once
// The vector vocabulary of the panel kernels (kernels/cpu/panel.h) in AVX-512 with VNNI: 32-bit lanes are weight rows.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"
#include "kernels/cpu/avx512/e4m3.h"

#define LOWBIT_INLINE static inline __attribute__((always_inline))

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Simd {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 8;         // tokens, at most, whose sums stay in registers
  static constexpr int kScaledTileRows = 6;   // tokens of a tile that leaves registers for scales
  static constexpr int kFloatTileRows = 12;   // of a tile of f32: 24 sums, two weights, one element of x
  static constexpr int64_t kDirectRows = 32;  // tokens for which unpacking to scratch does not pay
  template <int M>
  static constexpr int kChains = M <= 2 ? 2 : 1;  // vpdpbusd takes 4 or 5 cycles
  static constexpr const char* kTileName = "avx512_32x8";
  static constexpr const char* kFloatTileName = "avx512_32x12";

  LOWBIT_INLINE Int load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  LOWBIT_INLINE void store(uint8_t* p, Int v) { _mm512_storeu_si512(p, v); }
  LOWBIT_INLINE Int zero() { return _mm512_setzero_si512(); }
  LOWBIT_INLINE Int set8(int v) { return _mm512_set1_epi8(char(v)); }
  LOWBIT_INLINE Int set32(int v) { return _mm512_set1_epi32(v); }
  LOWBIT_INLINE Int broadcast4(const int8_t* p) {  // four bytes into every lane
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  LOWBIT_INLINE Int broadcast32(const int32_t* p) { return _mm512_set1_epi32(*p); }
  LOWBIT_INLINE Int and_(Int a, Int b) { return _mm512_and_si512(a, b); }
  LOWBIT_INLINE Int or_(Int a, Int b) { return _mm512_or_si512(a, b); }
  LOWBIT_INLINE Int choose(Int mask, Int ones, Int zeros) { return _mm512_ternarylogic_epi32(mask, ones, zeros, 0xca); }
  LOWBIT_INLINE Int xor_(Int a, Int b) { return _mm512_xor_si512(a, b); }
  LOWBIT_INLINE Int add8(Int a, Int b) { return _mm512_add_epi8(a, b); }
  LOWBIT_INLINE Int add32(Int a, Int b) { return _mm512_add_epi32(a, b); }
  LOWBIT_INLINE Int sub32(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  LOWBIT_INLINE Int shift_right_signed32(Int a, int n) { return _mm512_srai_epi32(a, unsigned(n)); }
  LOWBIT_INLINE Int shift_right16(Int a, int n) { return _mm512_srli_epi16(a, unsigned(n)); }
  LOWBIT_INLINE Int shift_left16(Int a, int n) { return _mm512_slli_epi16(a, unsigned(n)); }
  LOWBIT_INLINE Int shift_right32(Int a, int n) { return _mm512_srli_epi32(a, unsigned(n)); }
  LOWBIT_INLINE Int shift_left32(Int a, int n) { return _mm512_slli_epi32(a, unsigned(n)); }
  /// Pins two running sums here: else GCC 12 loads every token first and spills the sums.
  template <class V>
  LOWBIT_INLINE void pin(V& a, V& b) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
  }
  static constexpr int64_t kAhead = 8192;
  LOWBIT_INLINE void prefetch_to_write(float* p) {  // two vectors, to be written soon
    __asm__ volatile("prefetchw %0\n\tprefetchw %1" : : "m"(p[0]), "m"(p[16]));
  }
  LOWBIT_INLINE void prefetch(const uint8_t* p) {  // a step of two vectors
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p) + 64, _MM_HINT_T0);
  }
  LOWBIT_INLINE void prefetch_ahead(const uint8_t* p) { prefetch(p); }

  /// A table of 16 bytes. A look-up reads the low four bits of each byte.
  static constexpr bool kMaskedLookUp = false;
  LOWBIT_INLINE Int load_table8(const int8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE Int look_up8(Int table, Int codes) { return _mm512_permutexvar_epi8(codes, table); }

  /// Each lane moved up by a byte, below it the last byte of the same lane of `before`.
  LOWBIT_INLINE Int with_last_byte_of(Int before, Int v) { return _mm512_shldi_epi32(v, before, 8); }
  /// Byte b of each lane: the lane's bits from `first` + 2 b on.
  LOWBIT_INLINE Int bits_of_bytes(Int v, int first) {
    const Int from = _mm512_set1_epi64(0x2624222006040200 + first * 0x0101010101010101);
    return _mm512_multishift_epi64_epi8(from, v);
  }
  /// Bit i of each byte: the parity of the bits that byte 7 - i of `rows` picks from it.
  LOWBIT_INLINE Int parities(Int v, uint64_t rows) {
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(int64_t(rows)), 0);
  }

  /// floor(3 v / 256) of each byte: 0, 1 or 2.
  LOWBIT_INLINE Int base3_digit(Int v) {
    const Int one = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(v, set8(86)), set8(1));
    return _mm512_mask_mov_epi8(one, _mm512_cmpge_epu8_mask(v, set8(171)), set8(2));
  }

  LOWBIT_INLINE Float zero_f() { return _mm512_setzero_ps(); }
  LOWBIT_INLINE Float set_f(float v) { return _mm512_set1_ps(v); }
  LOWBIT_INLINE Float load_f(const float* p) { return _mm512_loadu_ps(p); }
  LOWBIT_INLINE void store_f(float* p, Float v) { _mm512_storeu_ps(p, v); }
  LOWBIT_INLINE Float load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  LOWBIT_INLINE Float load_bf16(const uint16_t* p) {
    const Int wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  LOWBIT_INLINE Float load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  LOWBIT_INLINE Float add_f(Float a, Float b) { return _mm512_add_ps(a, b); }
  LOWBIT_INLINE Float mul_f(Float a, Float b) { return _mm512_mul_ps(a, b); }
  LOWBIT_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  LOWBIT_INLINE Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }

  /// A table of up to 16 floats; `idx` lanes below 16. Tables of 2^kTableBits are one instruction that ignores higher
  /// bits.
  static constexpr int kTableBits = 4;
  struct Table {
    Float all;
  };
  LOWBIT_INLINE Table load_table(const float* p) { return {load_f(p)}; }
  LOWBIT_INLINE Float look_up(const Table& t, Int idx) { return _mm512_permutexvar_ps(idx, t.all); }
  /// A table whose entries repeat after 2^kTableBits.
  LOWBIT_INLINE Float look_up_short(const Table& t, Int idx) { return look_up(t, idx); }
  /// The four E4M3 codes of each lane, in the order of e4m3_order(), as four vectors of floats.
  using E4m3Table = Bf16OfE4m3;
  LOWBIT_INLINE E4m3Table e4m3_table() { return Bf16OfE4m3::load(); }
  LOWBIT_INLINE void e4m3(const E4m3Table& table, Int codes, Float (&columns)[4]) {
    Int pairs[2];
    table.pairs(codes, pairs);
    for (int i = 0; i < 2; ++i) {
      columns[2 * i] = Bf16OfE4m3::upper(pairs[i]);
      columns[2 * i + 1] = Bf16OfE4m3::lower(pairs[i]);
    }
  }
  LOWBIT_INLINE Int e4m3_order(Int codes) {
    return _mm512_shuffle_epi8(codes, _mm512_broadcast_i32x4(_mm_setr_epi8(1, 0, 5, 4, 9, 8, 13, 12,  // columns 1, 0
                                                                           3, 2, 7, 6, 11, 10, 15, 14)));
  }
  /// Codes as bf16, two columns in a lane, the first one in its upper half.
  LOWBIT_INLINE void e4m3_pairs(const E4m3Table& table, Int codes, Float (&columns)[2]) {
    Int pairs[2];
    table.pairs(codes, pairs);
    for (int i = 0; i < 2; ++i) columns[i] = _mm512_castsi512_ps(pairs[i]);
  }
  LOWBIT_INLINE Float add_pairs(Float w, Float x, Float sum) { return add_bf16_pairs(w, x, sum); }
  static constexpr const char* kPairsTileName = "avx512_bf16_32x12";

  /// The first `rows` lanes.
  LOWBIT_INLINE __mmask16 row_mask(int rows) {
    return __mmask16(rows >= kLanes ? 0xffffu : rows <= 0 ? 0u : (1u << rows) - 1u);
  }
  LOWBIT_INLINE void store_rows(float* p, Float v, int rows) { _mm512_mask_storeu_ps(p, row_mask(rows), v); }
  LOWBIT_INLINE Float load_rows(const float* p, int rows) { return _mm512_maskz_loadu_ps(row_mask(rows), p); }

  /// Dot products of four unsigned codes with four int8 in each lane, straight into int32: vpdpbusd does not saturate.
  /// Of codes of any width: kernels that differ in nothing else are compiled once.
  struct AnyDot {
    static constexpr bool kSigned = false, kWidens = false;
    static constexpr int kSteps = 1 << 30;
    LOWBIT_INLINE Int add(Int sum, Int codes, Int x) { return _mm512_dpbusd_epi32(sum, codes, x); }
    LOWBIT_INLINE void add_to(Int& sum, Int codes, Int x) { sum = add(sum, codes, x); }
    LOWBIT_INLINE Int widen(Int sum) { return sum; }
    LOWBIT_INLINE Int add_sums(Int a, Int b) { return add32(a, b); }
    LOWBIT_INLINE Int shift_sums(Int sum, int n) { return shift_right_signed32(sum, n); }
  };
  template <int MaxCode>
  using Dot = AnyDot;
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
