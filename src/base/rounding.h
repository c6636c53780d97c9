#pragma once
// The two roundings every integer path uses. Both: to nearest, ties to even.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// x / 2^k rounded to nearest, ties to even, for 1 <= k <= 62; exact x * 2^-k for -62 <= k <= 0
/// (the caller proves that a left shift cannot overflow); 0 for k >= 63. Source: seed 001,
/// "rshift_round"; design: half to even everywhere.
constexpr LOWBIT_HD int64_t rounding_shift(int64_t x, int k) {
  if (k <= 0) return int64_t(uint64_t(x) << -k);
  if (k >= 63) return 0;
  const int64_t half_minus_one = (int64_t{1} << (k - 1)) - 1;
  return (x + half_minus_one + ((x >> k) & 1)) >> k;
}

/// v rounded to an integer, ties to even, for |v| < 2^22, without the rounding mode of the machine:
/// adding 1.5 * 2^23 leaves no fraction bits.
constexpr LOWBIT_HD float round_half_even(float v) {
  const float magic = 12582912.0f;
  if (!(v > -4194304.0f && v < 4194304.0f)) return v;
  return (v + magic) - magic;
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
