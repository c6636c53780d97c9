#include "text/long_word.h"

#include <algorithm>
#include <limits>

namespace lowbit::text {
namespace {

// A symbol that was merged stands in the first of the positions that it covers. The second and the last say how many
// those are, as a number that no symbol has, so that both neighbours are found without lists of their own.
constexpr TokenId kCovered = std::numeric_limits<TokenId>::min();
constexpr TokenId kMostCovered = kCovered + (TokenId{1} << 30);

std::uint64_t priority_of(std::int32_t rank, std::int32_t position) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32) | static_cast<std::uint32_t>(position);
}

}  // namespace

LongWord::LongWord(const MergeTable& table, std::vector<TokenId>& symbols)
    : table_(table),
      symbols_(symbols),
      size_(static_cast<std::int32_t>(symbols.size())),
      links_(symbols.size()),
      heads_(static_cast<std::size_t>(table.rank_end()), kNone) {}

bool LongWord::covered(std::int32_t position) const { return symbols_[position] <= kMostCovered; }
std::int32_t LongWord::covered_length(std::int32_t position) const { return symbols_[position] - kCovered; }

std::int32_t LongWord::next(std::int32_t position) const {
  const std::int32_t behind = position + 1;
  return behind < size_ && covered(behind) ? position + covered_length(behind) : behind;
}

std::int32_t LongWord::previous(std::int32_t position) const {
  const std::int32_t before = position - 1;
  return before >= 0 && covered(before) ? position - covered_length(before) : before;
}

const MergeTable::Merge* LongWord::pair_at(std::int32_t position) {
  const std::int32_t right = next(position);
  ++work_;
  return right < size_ ? table_.find(symbols_[position], symbols_[right]) : nullptr;
}

void LongWord::list(std::int32_t position) {
  const MergeTable::Merge* pair = pair_at(position);
  if (pair == nullptr) return;
  ++work_;
  if (pair->rank <= rank_) {
    late_.push(priority_of(pair->rank, position));
    return;
  }
  std::int32_t& head = heads_[pair->rank];
  links_[position] = {-2 - pair->rank, head};
  if (head != kNone) links_[head].before = position;
  head = position;
}

void LongWord::unlist(std::int32_t position) {
  const Link link = links_[position];
  if (link.before == kNone) return;
  if (link.before < kNone) {
    heads_[-2 - link.before] = link.after;
  } else {
    links_[link.before].after = link.after;
  }
  if (link.after != kNone) links_[link.after].before = link.before;
  links_[position] = {};
}

// The positions of a rank from left to right.
void LongWord::take_list(std::int32_t rank) {
  rank_ = rank;
  taken_.clear();
  for (std::int32_t position = heads_[rank]; position != kNone;) {
    taken_.push_back(position);
    const std::int32_t after = links_[position].after;
    links_[position] = {};
    position = after;
  }
  heads_[rank] = kNone;
  if (!std::is_sorted(taken_.begin(), taken_.end())) std::sort(taken_.begin(), taken_.end());
}

// Nothing, where a neighbour took one of both symbols meanwhile.
void LongWord::merge_at(std::int32_t position, std::int32_t rank) {
  if (covered(position)) return;
  const MergeTable::Merge* pair = pair_at(position);
  if (pair == nullptr || pair->rank != rank) return;
  const std::int32_t right = next(position), end = next(right), left = previous(position);
  unlist(right);
  if (left >= 0) unlist(left);
  const TokenId length = kCovered + (end - position);
  symbols_[position] = pair->merged;
  symbols_[right] = symbols_[position + 1] = symbols_[end - 1] = length;
  list(position);
  if (left >= 0) list(left);
}

std::size_t LongWord::merge() {
  for (std::int32_t position = size_ - 2; position >= 0; --position)
    list(position);  // so that lists go from left to right
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(heads_.size()); ++rank) {
    if (heads_[rank] == kNone) continue;
    take_list(rank);
    for (std::size_t i = 0; i < taken_.size() || !late_.empty();) {
      if (late_.empty() || (i < taken_.size() && priority_of(rank, taken_[i]) < late_.top())) {
        merge_at(taken_[i++], rank);
        continue;
      }
      const std::uint64_t top = late_.top();
      late_.pop();
      merge_at(static_cast<std::int32_t>(top & 0xFFFFFFFFu), static_cast<std::int32_t>(top >> 32));
    }
  }
  std::erase_if(symbols_, [](TokenId symbol) { return symbol <= kMostCovered; });
  return work_;
}

}  // namespace lowbit::text
