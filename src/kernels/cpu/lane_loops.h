#pragma once
// Loops over 16 elements at a time and their exp, for kernels/cpu/vector_ops.h and kernels/cpu/attention.h. `L` is an
// instruction set's vocabulary: kernels/cpu/avx2/lanes.h, kernels/cpu/avx512/lanes.h.

#include <cstdint>

#include "base/isa.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct LaneLoops {
  using F = typename L::F;
  static_assert(kLanes == 16);

  /// Calls body(i, count) for the elements [i, i + count) of 0..n, count = 16 but for the last.
  template <class Body>
  __attribute__((always_inline)) static void each(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
    if (i < n) body(i, int(n - i));
  }

  static F load(const float* p, int count) { return count == kLanes ? L::load(p) : L::load_first(p, count); }
  static void store(float* p, F v, int count) {
    if (count == kLanes) return L::store(p, v);
    L::store_first(p, v, count);
  }

  /// exp_f32 of 16 elements; without kAny of none above 0, and a NaN gives another one.
  template <bool kAny = true>
  static F exp(F x) {
    F v = L::max(L::set(kExpMin), x);  // of a NaN pair the second comes out
    if constexpr (kAny) v = L::min(L::set(kExpMax), v);
    const F n = L::round(L::mul(v, L::set(kLog2E)));  // ties to even
    F r = L::fma(n, L::set(-kLn2Hi), v);
    r = L::fma(n, L::set(-kLn2Lo), r);
    F p = L::set(kExpPoly[0]);
    for (int i = 1; i < 6; ++i) p = L::fma(p, r, L::set(kExpPoly[i]));
    p = L::add(L::fma(p, L::mul(r, r), r), L::set(1.0f));
    const F y = L::times_pow2(p, n);
    return kAny ? L::nan_or(x, y) : y;
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
