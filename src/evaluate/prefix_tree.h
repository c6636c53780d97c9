#pragma once
// Sequences that begin alike, as a tree: what they have in common is run once.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lowbit {

/// Tokens [first, last) of each member, behind `first` tokens that they have in common, too.
struct PrefixSegment {
  int64_t first = 0, last = 0;
  std::vector<size_t> members;  // indices of sequences
};

/// Tokens that must be saved for a segment to be shared: it costs its readers a copy of a page each, and a pass that
/// waits for it.
inline constexpr int64_t kWorthSharing = 8;

/// The next tokens of members that have tokens [0, first) in common: segments that begin there, one for each member
/// that has more. A segment has as many members as is worth it and ends where they part, or where the shortest of them
/// ends.
std::vector<PrefixSegment> next_segments(std::span<const std::span<const int32_t>> sequences,
                                         std::span<const size_t> members, int64_t first);

/// Tokens at the start of both.
int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace lowbit
