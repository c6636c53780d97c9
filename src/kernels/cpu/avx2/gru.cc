#include <immintrin.h>

#include "kernels/cpu/gru_cell.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Two columns a lane, widened to 16 bits: vpmaddubsw would saturate on 8-bit weights.
struct GruSimd {
  using Int = __m256i;
  using Element = int16_t;  // of x
  static constexpr int kLanes = 8, kColumns = 2, kRows = 2, kDepth = 2, kTileRows = 0;
  static constexpr bool kUnpacks = false, kByteTables = false;

  static inline __attribute__((always_inline)) Int zero() { return _mm256_setzero_si256(); }
  static inline __attribute__((always_inline)) Int broadcast(const int16_t* p) { return broadcast_pair(p); }
  static inline __attribute__((always_inline)) Int load_bytes(const uint8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline __attribute__((always_inline)) Int dot(Int acc, Int x, Int w) { return dot_pairs(acc, x, w); }
  template <int Bits>
  static inline __attribute__((always_inline)) Int field(Int v, int) {
    return v;
  }
  static inline __attribute__((always_inline)) Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static inline __attribute__((always_inline)) void store(int32_t* p, Int v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
  static inline __attribute__((always_inline)) Int broadcast_pair(const int16_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  static inline __attribute__((always_inline)) Int load_words(const int16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static inline __attribute__((always_inline)) Int dot_pairs(Int acc, Int x, Int w) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(x, w));
  }
};

}  // namespace LOWBIT_ISA

constinit const GruKernel kAvx2Gru = {
    "gru_cell__avx2_32x2", "avx2",           gru_packed_bytes<GruSimd>, gru_pack<GruSimd>, gru_scratch_bytes<GruSimd>,
    gru_input<GruSimd>,    gru_step<GruSimd>};

}  // namespace lowbit
