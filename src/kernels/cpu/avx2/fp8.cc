#include "kernels/cpu/fp8.h"
#include "kernels/cpu/avx2/fp8_vectors.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// 16 rows of 32 codes from column k on become 16 vectors: vector j has column k + j of all rows in its lower half,
/// column k + 16 + j in its upper one. Four rounds, each of which exchanges one bit of the row with one of the column.
static inline __attribute__((always_inline)) void transpose_codes(const uint8_t* const (&rows)[16], int64_t k,
                                                                  __m256i (&t)[16]) {
  __m256i s[16];
  for (int i = 0; i < 16; ++i) t[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + k));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      s[2 * i] = _mm256_unpacklo_epi8(t[i], t[i + 8]);
      s[2 * i + 1] = _mm256_unpackhi_epi8(t[i], t[i + 8]);
    }
    for (int i = 0; i < 16; ++i) t[i] = s[i];
  }
}

struct Fp8Floats256 : Fp8Vectors256 {
  // ---- Codes of a block, 16 rows by 128 columns: column by column ----

  static constexpr bool kReadsLinesOnce = false;
  static constexpr int kColumns = 1;
  static constexpr float kAFactor = 256.0f;  // values are theirs * 2^-8

  static F add_product(F w, F x, F sum) { return fma(w, x, sum); }

  /// Bytes of the result are ones for rows with a NaN.
  static __m128i transpose(const uint8_t* const (&rows)[16], int, uint8_t* codes) {
    const I all = _mm256_set1_epi8(0x7f);
    I any = zero_i();
    for (int64_t k = 0; k < kFp8Block; k += 32) {
      I t[16];
      transpose_codes(rows, k, t);
      for (int j = 0; j < 16; ++j) {
        any = or_(any, _mm256_cmpeq_epi8(and_(t[j], all), all));
        _mm_store_si128(reinterpret_cast<__m128i*>(codes + 16 * (k + j)), _mm256_castsi256_si128(t[j]));
        _mm_store_si128(reinterpret_cast<__m128i*>(codes + 16 * (k + 16 + j)), _mm256_extracti128_si256(t[j], 1));
      }
    }
    return _mm_or_si128(_mm256_castsi256_si128(any), _mm256_extracti128_si256(any, 1));
  }

  struct Codes {
    static constexpr int kStep = 1;
    const uint8_t* codes;
    static Codes of(const uint8_t* codes) { return {codes}; }
    void words(int64_t k, F (&out)[1][2]) const {
      widen(halves_of_codes(_mm_load_si128(reinterpret_cast<const __m128i*>(codes + 16 * k))), out[0]);
    }
  };
};

}  // namespace LOWBIT_ISA

constinit const Fp8Kernels kAvx2Fp8 = Fp8Panels<Fp8Floats256>::kernels("fp8__avx2_16x6", "avx2");

}  // namespace lowbit
