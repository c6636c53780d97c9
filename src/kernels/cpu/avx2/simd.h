#pragma once
// AVX2's dot products on the vectors of kernels/cpu/avx2/vectors.h.

#include "kernels/cpu/avx2/vectors.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Simd : Vectors256 {
  template <int M>
  static constexpr int kChains = 1;  // additions of 16 bits take one cycle
  /// Rows of x for which unpacking to scratch does not pay: shifts and masks take ports that vpmaddubsw needs.
  static constexpr int64_t kDirectRows = 12;
  static constexpr const char* kTileName = "avx2_16x6";
  static constexpr const char* kFloatTileName = kTileName;

  /// Dot products of four codes (0..MaxCode, unsigned) with four int8 in each lane. vpmaddubsw gives pairs of at most
  /// 2 * MaxCode * 128 in int16, so kSteps of them may be added before widen(): kSteps * 256 * MaxCode <= 32767.
  template <int MaxCode>
  struct Dot {
    static constexpr bool kSigned = false, kWidens = true;
    static constexpr int kSteps = 32767 / (256 * MaxCode);
    static_assert(kSteps >= 1);
    LOWBIT_INLINE Int first(Int codes, Int x) { return _mm256_maddubs_epi16(codes, x); }
    LOWBIT_INLINE Int add(Int sum, Int codes, Int x) { return _mm256_add_epi16(sum, first(codes, x)); }
    /// add() in place, for the sums of several rows: GCC 12 copies most of them once a step, which no port does for
    /// nothing.
    LOWBIT_INLINE void add_to(Int& sum, Int codes, Int x) {
      Int products;
      __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(codes), "x"(x));
    }
    /// Ones from memory: in a register they would cost the loop before two sums, which then go through memory in every
    /// step.
    LOWBIT_INLINE Int widen(Int sum) {
      static constexpr int64_t kOnes = 0x0001000100010001;
      alignas(32) static constexpr int64_t kFourTimes[4] = {kOnes, kOnes, kOnes, kOnes};
      Int wide;
      __asm__("vpmaddwd %2, %1, %0" : "=x"(wide) : "x"(sum), "m"(kFourTimes));
      return wide;
    }
    LOWBIT_INLINE Int add_sums(Int a, Int b) { return add16(a, b); }
    LOWBIT_INLINE Int shift_sums(Int sum, int n) { return shift_right_signed16(sum, n); }
  };
};

/// Eight bits: the codes are the signed values. |w| * (x with w's sign): a pair is at most 2 * 128 * 127 = 32512, so
/// one vpmaddubsw never saturates (x is -127..127), and sums are int32 from the start.
template <>
struct Simd::Dot<255> {
  static constexpr bool kSigned = true, kWidens = false;
  static constexpr int kSteps = 1 << 30;
  LOWBIT_INLINE Int add(Int sum, Int w, Int x) {
    const Int pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  LOWBIT_INLINE void add_to(Int& sum, Int w, Int x) { sum = add(sum, w, x); }
  LOWBIT_INLINE Int widen(Int sum) { return sum; }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
