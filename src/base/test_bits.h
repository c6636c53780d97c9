#pragma once
// For tests only.

#include <cstring>
#include <span>

namespace lowbit {

/// Equal numbers of floats with equal bits: NaN equals itself, 0 is not -0.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace lowbit
