#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "text/long_word.h"

namespace lowbit::text {
namespace {

// From here on a heap's misses of the cache cost more than a list for each rank.
constexpr std::size_t kLongWord = 8192, kRanksPerSymbol = 16;
constexpr std::uint64_t kFree = ~std::uint64_t{0};  // ids are not negative, so no pair has this key

std::uint64_t key_of(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t expected) : slots_(std::bit_ceil(expected * 2 + 16), Slot{kFree, {0, 0}}) {}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  std::uint64_t h = key * 0x9E3779B97F4A7C15u;
  h ^= h >> 32;
  std::size_t at = h & (slots_.size() - 1);
  while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{kFree, {0, 0}});
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  if (size_ * 2 >= slots_.size()) grow();
  Slot& slot = slots_[slot_of(key_of(left, right))];
  size_ += slot.key == kFree;
  rank_end_ = std::max(rank_end_, merge.rank + 1);
  slot = {key_of(left, right), merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  if (left < 0 || right < 0) return nullptr;
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.key == kFree ? nullptr : &slot.merge;
}

void BpeScratch::consider(const MergeTable& table, const std::vector<TokenId>& symbols, std::int32_t left) {
  const std::int32_t right = next_[left];
  if (right < 0) return;
  const MergeTable::Merge* merge = table.find(symbols[left], symbols[right]);
  if (merge == nullptr) return;
  const std::uint64_t priority =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(merge->rank)) << 32) | static_cast<std::uint32_t>(left);
  heap_.push_back({priority, symbols[left], symbols[right]});
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeScratch::merge_word(const MergeTable& table, std::vector<TokenId>& symbols) {
  const std::size_t n = symbols.size();
  if (n >= kLongWord && n >= static_cast<std::size_t>(table.rank_end()) / kRanksPerSymbol) {
    LongWord(table, symbols).merge();
  } else {
    merge_by_heap(table, symbols);
  }
}

void BpeScratch::merge_by_heap(const MergeTable& table, std::vector<TokenId>& symbols) {
  const auto n = static_cast<std::int32_t>(symbols.size());
  if (n < 2) return;
  constexpr TokenId kGone = -2;
  previous_.resize(n);
  next_.resize(n);
  heap_.clear();
  for (std::int32_t i = 0; i < n; ++i) {
    previous_[i] = i - 1;
    next_[i] = i + 1 < n ? i + 1 : -1;
  }
  for (std::int32_t i = 0; i + 1 < n; ++i) consider(table, symbols, i);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate top = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<std::int32_t>(top.priority & 0xFFFFFFFFu);
    const std::int32_t right = next_[left];
    // Stale when one side has been merged since.
    if (right < 0 || symbols[left] != top.left || symbols[right] != top.right) continue;
    symbols[left] = table.find(top.left, top.right)->merged;
    symbols[right] = kGone;
    next_[left] = next_[right];
    if (next_[right] >= 0) previous_[next_[right]] = left;
    consider(table, symbols, left);
    if (previous_[left] >= 0) consider(table, symbols, previous_[left]);
  }
  std::erase(symbols, kGone);
}

}  // namespace lowbit::text
