#pragma once
// AVX-VNNI's dot products on the vectors of kernels/cpu/avx2/vectors.h.

#include "kernels/cpu/avx2/vectors.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct Simd : Vectors256 {
  template <int M>
  static constexpr int kChains = M <= 2 ? 2 : 1;  // vpdpbusd takes 4 or 5 cycles
  static constexpr int64_t kDirectRows = 18;      // tokens for which unpacking to scratch does not pay
  static constexpr const char* kTileName = "avxvnni_16x6";

  /// Dot products of four unsigned codes with four int8 in each lane, straight into int32: vpdpbusd does not saturate.
  /// Of codes of any width: kernels that differ in nothing else are compiled once.
  struct AnyDot {
    static constexpr bool kSigned = false, kWidens = false;
    static constexpr int kSteps = 1 << 30;
    LOWBIT_INLINE Int add(Int sum, Int codes, Int x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
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
