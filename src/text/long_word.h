#pragma once
// The merges of one long word: the ids that BpeScratch's heap gives, in time and memory that grow with the word alone.

#include <cstdint>
#include <queue>
#include <vector>

#include "text/bpe.h"

namespace lowbit::text {

/// Pairs that merge with the same rank form a list of positions, and lists are done in the order of ranks. A merge
/// makes pairs of later ranks in nearly every table that was learned; those of ranks that have passed wait in a heap.
/// Why: docs/adr/0197-texts-word-by-word.md.
class LongWord {
 public:
  /// Memory: 8 bytes for each symbol and at most 4 for those of one rank, and 4 for each rank of the table.
  LongWord(const MergeTable& table, std::vector<TokenId>& symbols);

  /// As BpeScratch::merge_word; no symbol is below -2^30. Returns the work: pairs that were looked up, and positions
  /// that were listed.
  std::size_t merge();

 private:
  // Where a position is listed: its neighbours. `before` is below -1 for the first: -2 - rank.
  struct Link {
    std::int32_t before = kNone, after = kNone;
  };
  static constexpr std::int32_t kNone = -1;

  bool covered(std::int32_t position) const;
  std::int32_t covered_length(std::int32_t position) const;
  std::int32_t next(std::int32_t position) const;
  std::int32_t previous(std::int32_t position) const;
  const MergeTable::Merge* pair_at(std::int32_t position);
  void list(std::int32_t position);
  void unlist(std::int32_t position);
  void take_list(std::int32_t rank);
  void merge_at(std::int32_t position, std::int32_t rank);

  const MergeTable& table_;
  std::vector<TokenId>& symbols_;
  std::int32_t size_;
  std::int32_t rank_ = -1;  // of the list that is being done
  std::size_t work_ = 0;
  std::vector<Link> links_;
  std::vector<std::int32_t> heads_, taken_;
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> late_;  // rank << 32 | position
};

}  // namespace lowbit::text
