#pragma once
// Exponentials for sums of probabilities: docs/numerics.md#log-probabilities.

#include <bit>
#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// exp(x) = 2^n * exp(r), n = round(x / ln 2), by Taylor's terms up to r^9: 1e-11 of it at most, for x <= 0. Each
/// operation is rounded by itself, so that every device has the same bits. Below -700 that of -700, NaN for NaN.
constexpr LOWBIT_HD double exp_f64(double x) {
  constexpr double kMagic = 0x1.8p52;  // leaves no fraction bits: the lowest of the sum are n
  constexpr double kLn2Hi = 0x1.62e42fefap-1, kLn2Lo = 0x1.cf79abc9e3b39p-40;  // n * hi is exact
  constexpr double kTerms[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
  x = x < -700.0 ? -700.0 : x;
  const double shifted = x * 0x1.71547652b82fep0 + kMagic, n = shifted - kMagic;
  const double r = (x - n * kLn2Hi) - n * kLn2Lo;
  double p = 1.0 / 362880;
  for (const double term : kTerms) p = p * r + term;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

/// Exponentials are added in blocks of so many tokens, zeros behind the last: s[i] += s[i + width], width = half of the
/// block, a quarter, .. 1. Then blocks in their order.
inline constexpr int kSumBlock = 1024;

}  // namespace LOWBIT_ISA
}  // namespace lowbit
