#pragma once
// The vector vocabulary of the panel kernels (kernels/cpu/panel.h) on 256-bit vectors, but for dot products: 32-bit
// lanes are weight rows. Shared by AVX2 and AVX-VNNI.

#include <immintrin.h>

#include <cstdint>

#include "base/isa.h"

#define LOWBIT_INLINE static inline __attribute__((always_inline))

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Vectors256 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 6;        // tokens, at most, whose sums stay in registers
  static constexpr int kScaledTileRows = 6;  // tokens of a tile that leaves registers for scales
  static constexpr int kFloatTileRows = 6;   // tokens of a tile of f32

  LOWBIT_INLINE Int load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const Int*>(p)); }
  LOWBIT_INLINE void store(uint8_t* p, Int v) { _mm256_storeu_si256(reinterpret_cast<Int*>(p), v); }
  LOWBIT_INLINE Int zero() { return _mm256_setzero_si256(); }
  LOWBIT_INLINE Int set8(int v) { return _mm256_set1_epi8(char(v)); }
  LOWBIT_INLINE Int set32(int v) { return _mm256_set1_epi32(v); }
  LOWBIT_INLINE Int broadcast4(const int8_t* p) {  // four bytes into every lane
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  LOWBIT_INLINE Int broadcast32(const int32_t* p) { return _mm256_set1_epi32(*p); }
  LOWBIT_INLINE Int and_(Int a, Int b) { return _mm256_and_si256(a, b); }
  LOWBIT_INLINE Int or_(Int a, Int b) { return _mm256_or_si256(a, b); }
  LOWBIT_INLINE Int xor_(Int a, Int b) { return _mm256_xor_si256(a, b); }
  LOWBIT_INLINE Int add8(Int a, Int b) { return _mm256_add_epi8(a, b); }
  LOWBIT_INLINE Int add32(Int a, Int b) { return _mm256_add_epi32(a, b); }
  LOWBIT_INLINE Int add16(Int a, Int b) { return _mm256_add_epi16(a, b); }
  LOWBIT_INLINE Int sub32(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  LOWBIT_INLINE Int shift_right_signed32(Int a, int n) { return _mm256_srai_epi32(a, n); }
  LOWBIT_INLINE Int shift_right_signed16(Int a, int n) { return _mm256_srai_epi16(a, n); }
  LOWBIT_INLINE Int shift_right16(Int a, int n) { return _mm256_srli_epi16(a, n); }
  LOWBIT_INLINE Int shift_left16(Int a, int n) { return _mm256_slli_epi16(a, n); }
  LOWBIT_INLINE Int shift_right32(Int a, int n) { return _mm256_srli_epi32(a, n); }
  LOWBIT_INLINE Int shift_left32(Int a, int n) { return _mm256_slli_epi32(a, n); }
  /// Pins two running sums here: else GCC 12 loads every token first and spills the sums.
  template <class V>
  LOWBIT_INLINE void pin(V& a, V& b) {
    __asm__ volatile("" : "+x"(a), "+x"(b));
  }
  static constexpr int64_t kAhead = 8192;
  LOWBIT_INLINE void prefetch(const uint8_t* p) {  // a step of two vectors
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  LOWBIT_INLINE void prefetch_ahead(const uint8_t* p) { prefetch(p); }

  /// A table of 16 bytes. A look-up wants bytes below 16.
  static constexpr bool kMaskedLookUp = true;
  LOWBIT_INLINE Int load_table8(const int8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE Int look_up8(Int table, Int codes) { return _mm256_shuffle_epi8(table, codes); }

  /// floor(3 v / 256) of each byte, 0, 1 or 2: of w = max(v - 1, 0), the rounded averages of w and 0, and of w and
  /// that, are below 64, 128 and 256 for just these v.
  LOWBIT_INLINE Int base3_digit(Int v) {
    const Int w = _mm256_subs_epu8(v, set8(1));
    return and_(shift_right16(_mm256_avg_epu8(w, _mm256_avg_epu8(w, zero())), 6), set8(3));
  }

  LOWBIT_INLINE Float zero_f() { return _mm256_setzero_ps(); }
  LOWBIT_INLINE Float set_f(float v) { return _mm256_set1_ps(v); }
  LOWBIT_INLINE Float load_f(const float* p) { return _mm256_loadu_ps(p); }
  LOWBIT_INLINE void store_f(float* p, Float v) { _mm256_storeu_ps(p, v); }
  LOWBIT_INLINE Float load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LOWBIT_INLINE Float load_bf16(const uint16_t* p) {
    const Int wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  LOWBIT_INLINE Float load_i8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  LOWBIT_INLINE Float add_f(Float a, Float b) { return _mm256_add_ps(a, b); }
  LOWBIT_INLINE Float mul_f(Float a, Float b) { return _mm256_mul_ps(a, b); }
  LOWBIT_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  LOWBIT_INLINE Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }

  /// A table of up to 16 floats; `idx` lanes below 16. Tables of 2^kTableBits are one instruction that ignores higher
  /// bits.
  static constexpr int kTableBits = 3;
  struct Table {
    Float low, high;
  };
  LOWBIT_INLINE Table load_table(const float* p) { return {load_f(p), load_f(p + 8)}; }
  LOWBIT_INLINE Float look_up(const Table& t, Int idx) {
    const Float a = _mm256_permutevar8x32_ps(t.low, idx), b = _mm256_permutevar8x32_ps(t.high, idx);
    return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(idx, 28)));  // by bit 3
  }
  /// A table whose entries repeat after 2^kTableBits.
  LOWBIT_INLINE Float look_up_short(const Table& t, Int idx) { return _mm256_permutevar8x32_ps(t.low, idx); }
  /// The four E4M3 codes of each lane as four vectors of floats. A code's bits moved to f32's place, the sign's copies
  /// between masked away, are the value * 2^-120, subnormals included.
  struct E4m3Table {};
  LOWBIT_INLINE E4m3Table e4m3_table() { return {}; }
  LOWBIT_INLINE void e4m3(E4m3Table, Int codes, Float (&columns)[4]) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Int top = c == 3 ? codes : shift_left32(codes, 24 - 8 * c);
      const Int bits = and_(shift_right_signed32(top, 4), set32(int(0x87f00000u)));
      columns[c] = mul_f(_mm256_castsi256_ps(bits), set_f(0x1p120f));
    }
  }
  LOWBIT_INLINE Int e4m3_order(Int codes) { return codes; }
  static constexpr const char* kPairsTileName = "";  // no such instruction

  /// The first `rows` lanes.
  LOWBIT_INLINE void store_rows(float* p, Float v, int rows) {
    if (rows >= kLanes) return store_f(p, v);
    const Int lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(set32(rows), lane), v);
  }
  LOWBIT_INLINE Float load_rows(const float* p, int rows) {
    if (rows >= kLanes) return load_f(p);
    const Int lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(set32(rows), lane));
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
