#pragma once
// For tests only.

#include <cstring>
#include <span>

namespace lowbit {

/// As many, and the same bits: NaN equals itself, 0 is not -0. None equal none.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace lowbit
