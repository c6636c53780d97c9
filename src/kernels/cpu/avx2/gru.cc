#include <immintrin.h>

#include "kernels/cpu/gru_cell.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Four columns a lane. Where the code x is negative the weight's bits are turned over: |x| ~w = x w - |x|, and the |x|
/// are in the sum from the start. vpmaddubsw adds two products of 0..127 and -128..127, or of 1..128 and -128..127:
/// from -32,768 to 32,512, so that nothing saturates.
struct GruSimd {
  using Int = __m256i;
  using Element = uint8_t;  // of x
  static constexpr int kLanes = 8, kColumns = 4, kRows = 2, kDepth = 4, kTileRows = 0;
  static constexpr bool kUnpacks = false, kByteTables = false, kCentred = true, kInterleaves = false;

  static inline __attribute__((always_inline)) Int zero() { return _mm256_setzero_si256(); }
  /// The first value of a sum of codes x.
  static inline __attribute__((always_inline)) Int start(const uint8_t* x, int64_t n) {
    int32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] > 127 ? 256 - x[i] : 0;
    return _mm256_set1_epi32(sum);
  }
  static inline __attribute__((always_inline)) Int broadcast(const uint8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
  }
  static inline __attribute__((always_inline)) Int load_bytes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static inline __attribute__((always_inline)) Int dot(Int acc, Int x, Int w) {
    const Int negative = _mm256_cmpgt_epi8(zero(), x);
    const Int pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_xor_si256(w, negative));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
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
