#pragma once
// Byte pair encoding: the merges of a vocabulary and the loop that applies them, O(n log n) in the word's length; long
// words go to text/long_word.h.

#include <cstdint>
#include <vector>

#include "lowbit/tokenizer.h"

namespace lowbit::text {

/// (left id, right id) -> (rank, merged id). The merge with the smallest rank comes first, then the leftmost.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank;
    TokenId merged;
  };

  explicit MergeTable(std::size_t expected = 0);
  /// A pair given twice keeps the later entry.
  void insert(TokenId left, TokenId right, Merge merge);
  const Merge* find(TokenId left, TokenId right) const;
  std::size_t size() const { return size_; }
  /// All ranks are below it.
  std::int32_t rank_end() const { return rank_end_; }

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  std::size_t slot_of(std::uint64_t key) const;
  void grow();

  std::vector<Slot> slots_;  // open addressing, a power of two
  std::size_t size_ = 0;
  std::int32_t rank_end_ = 0;
};

/// Working memory of merge_word; one per thread.
class BpeScratch {
 public:
  /// Merges the symbols of one word as far as the table goes; the result replaces `symbols`.
  /// Symbols below 0 never merge; none is below -2^30. Ranks are not negative.
  void merge_word(const MergeTable& table, std::vector<TokenId>& symbols);
  /// merge_word with a heap, whatever the word's length.
  void merge_by_heap(const MergeTable& table, std::vector<TokenId>& symbols);

 private:
  struct Candidate {
    std::uint64_t priority;  // rank << 32 | position of the left symbol
    TokenId left, right;
    bool operator>(const Candidate& other) const { return priority > other.priority; }
  };
  void consider(const MergeTable& table, const std::vector<TokenId>& symbols, std::int32_t left);

  std::vector<std::int32_t> previous_, next_;
  std::vector<Candidate> heap_;
};

}  // namespace lowbit::text
