#include "kernels/cpu/fp8.h"
#include "kernels/cpu/avx512/e4m3.h"
#include "kernels/cpu/avx512/fp8_vectors.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

// ---- Codes of a block, 32 rows by 128 columns: vector 2 s + v has columns [4 s, 4 s + 4) of rows 16 v and on, in the
// order of Bf16OfE4m3.

/// Rows [16 v, 16 v + 16) of it. kSwapped: each column before its neighbour. No NaN is told apart: Bf16OfE4m3 gives it.
template <bool kSwapped>
__m128i transpose_rows(const uint8_t* const (&rows)[16], int v, uint8_t* codes) {
  using I = __m512i;
  const I swap = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  for (int half = 0; half < 2; ++half) {
    I four[4][4];  // rows [4 q, 4 q + 4): quarter l of [q][i] has columns 16 l + 4 i and on
    for (int q = 0; q < 4; ++q) {
      I row[4];
      for (int i = 0; i < 4; ++i) {
        row[i] = _mm512_loadu_si512(rows[4 * q + i] + 64 * half);
        if (kSwapped) row[i] = _mm512_shuffle_epi8(row[i], swap);
      }
      const I low01 = _mm512_unpacklo_epi16(row[0], row[1]), high01 = _mm512_unpackhi_epi16(row[0], row[1]);
      const I low23 = _mm512_unpacklo_epi16(row[2], row[3]), high23 = _mm512_unpackhi_epi16(row[2], row[3]);
      four[q][0] = _mm512_unpacklo_epi32(low01, low23);
      four[q][1] = _mm512_unpackhi_epi32(low01, low23);
      four[q][2] = _mm512_unpacklo_epi32(high01, high23);
      four[q][3] = _mm512_unpackhi_epi32(high01, high23);
    }
    for (int i = 0; i < 4; ++i) {
      const auto store = [&](int l, I quarters) {
        _mm512_store_si512(codes + 64 * (2 * (16 * half + 4 * l + i) + v), quarters);
      };
      const I even01 = _mm512_shuffle_i32x4(four[0][i], four[1][i], 0x88);
      const I even23 = _mm512_shuffle_i32x4(four[2][i], four[3][i], 0x88);
      store(0, _mm512_shuffle_i32x4(even01, even23, 0x88));
      store(2, _mm512_shuffle_i32x4(even01, even23, 0xdd));
      const I odd01 = _mm512_shuffle_i32x4(four[0][i], four[1][i], 0xdd);
      const I odd23 = _mm512_shuffle_i32x4(four[2][i], four[3][i], 0xdd);
      store(1, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
      store(3, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
  }
  return _mm_setzero_si128();
}

struct Fp8Floats512 : Fp8Vectors512 {
  static constexpr bool kReadsLinesOnce = true;
  static constexpr int kColumns = 1;
  static constexpr float kAFactor = 1.0f;

  static __m128i transpose(const uint8_t* const (&rows)[16], int v, uint8_t* codes) {
    return transpose_rows<false>(rows, v, codes);
  }
  static F add_product(F w, F x, F sum) { return fma(w, x, sum); }

  struct Codes {
    static constexpr int kStep = 4;
    Bf16OfE4m3 table;
    const uint8_t* codes;
    static Codes of(const uint8_t* codes) { return {Bf16OfE4m3::load(), codes}; }
    void words(int64_t k, F (&out)[4][2]) const {
      for (int v = 0; v < 2; ++v) {
        I pairs[2];
        table.pairs(_mm512_load_si512(codes + 32 * k + 64 * v), pairs);
        for (int i = 0; i < 2; ++i) {
          out[2 * i][v] = Bf16OfE4m3::lower(pairs[i]);
          out[2 * i + 1][v] = Bf16OfE4m3::upper(pairs[i]);
        }
      }
    }
  };
};

/// With two columns in a word, for CPUs that have AVX-512 BF16.
struct Fp8Pairs512 : Fp8Floats512 {
  static constexpr int kColumns = 2;

  static __m128i transpose(const uint8_t* const (&rows)[16], int v, uint8_t* codes) {
    return transpose_rows<true>(rows, v, codes);
  }
  static F add_product(F w, F x, F sum) { return add_bf16_pairs(w, x, sum); }

  struct Codes {
    static constexpr int kStep = 2;
    Bf16OfE4m3 table;
    const uint8_t* codes;
    static Codes of(const uint8_t* codes) { return {Bf16OfE4m3::load(), codes}; }
    void words(int64_t p, F (&out)[2][2]) const {
      for (int v = 0; v < 2; ++v) {
        I pairs[2];
        table.pairs(_mm512_load_si512(codes + 64 * p + 64 * v), pairs);
        for (int i = 0; i < 2; ++i) out[i][v] = _mm512_castsi512_ps(pairs[i]);
      }
    }
  };
};

}  // namespace LOWBIT_ISA

constinit const Fp8Kernels kAvx512Fp8 = Fp8Panels<Fp8Floats512>::kernels("fp8__avx512_32x12", "avx512");
constinit const Fp8Kernels kAvx512PairsFp8 = Fp8Panels<Fp8Pairs512>::kernels("fp8__avx512_bf16_32x12", "avx512");

}  // namespace lowbit
