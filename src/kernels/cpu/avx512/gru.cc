#include <immintrin.h>

#include "kernels/cpu/gru_cell.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Four columns a lane: vpdpbusd multiplies unsigned limbs by signed weights and adds four products into int32.
struct GruSimd {
  using Int = __m512i;
  using Element = uint8_t;  // of x
  static constexpr int kLanes = 16, kColumns = 4, kRows = 4;

  static inline __attribute__((always_inline)) Int zero() { return _mm512_setzero_si512(); }
  static inline __attribute__((always_inline)) Int broadcast(const uint8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
  }
  static inline __attribute__((always_inline)) Int load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
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
};

}  // namespace LOWBIT_ISA

constinit const GruKernel kAvx512Gru = {
    "gru_cell__avx512_64x4",    "avx512",           gru_packed_bytes<GruSimd>, gru_pack<GruSimd>,
    gru_scratch_bytes<GruSimd>, gru_input<GruSimd>, gru_step<GruSimd>};

}  // namespace lowbit
