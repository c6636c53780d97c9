#include "evaluate/prefix_tree.h"

#include <algorithm>

namespace lowbit {
namespace {

using Sequences = std::span<const std::span<const int32_t>>;

/// Members that have `depth` tokens in common, parted by the next one, in the order in which they come. Those that end
/// here stand alone.
std::vector<std::vector<size_t>> part(Sequences sequences, std::span<const size_t> members, int64_t depth) {
  const auto at = static_cast<size_t>(depth);
  std::vector<std::vector<size_t>> parts;
  for (const size_t m : members) {
    const auto& own = sequences[m];
    const auto same = [&](const std::vector<size_t>& other) {
      const auto& tokens = sequences[other.front()];
      return own.size() > at && tokens.size() > at && own[at] == tokens[at];
    };
    auto found = std::ranges::find_if(parts, same);
    if (found == parts.end()) found = parts.insert(found, std::vector<size_t>());
    found->push_back(m);
  }
  return parts;
}

void append_segments(Sequences sequences, std::span<const size_t> members, int64_t first, int64_t depth,
                     std::vector<PrefixSegment>& out) {
  for (std::vector<size_t>& some : part(sequences, members, depth)) {
    auto last = static_cast<int64_t>(sequences[some.front()].size());
    for (const size_t m : some) last = std::min(last, common_prefix(sequences[m], sequences[some.front()]));
    if (last == first) continue;  // it has ended
    const auto others = static_cast<int64_t>(some.size()) - 1;
    if (others == 0 || others * (last - first) >= kWorthSharing)
      out.push_back({first, last, std::move(some)});
    else
      append_segments(sequences, some, first, last, out);
  }
}

}  // namespace

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::vector<PrefixSegment> next_segments(Sequences sequences, std::span<const size_t> members, int64_t first) {
  std::vector<PrefixSegment> out;
  append_segments(sequences, members, first, first, out);
  return out;
}

}  // namespace lowbit
