#pragma once
// Where blocks run in batches of whole sequences, or of parts of one: a workspace, and pages for the batch's keys and
// values.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "calibrate/block_program.h"

namespace lowbit {

/// Rows [first, first + rows) of all sequences' rows, one sequence behind the other.
struct RowRange {
  int64_t first = 0, rows = 0;
};

class BatchRoom {
 public:
  /// For sequences of `context` rows, at most `sequences` of them, through any of the blocks. `size`: of a batch, but
  /// 16 rows at least.
  /// Errors: kOutOfMemory.
  static Result<std::unique_ptr<BatchRoom>> make(Backend& backend,
                                                 std::span<const std::shared_ptr<const SourceBlock>> blocks,
                                                 int64_t context, int64_t sequences, const BatchSize& size);

  Workspace& work() { return *work_; }
  int64_t context() const { return context_; }
  /// Columns of a slot, which are also those of its rows in a buffer.
  int64_t width(Slot slot) const { return widths_[slot]; }

  /// How the rows of so many sequences are cut into batches.
  std::vector<RowRange> batches(int64_t sequences) const;
  /// The batch of some rows. `attends`: its sequences get pages for them, those that begin without what was there
  /// before. The batches of a sequence come in order; the batch is valid until the next.
  Result<Batch> begin(const SourceBlock& block, const RowRange& range, bool attends);
  /// Its rows have attended.
  void end();

 private:
  BatchRoom() = default;
  /// Caches for a block's keys and values.
  Status fit_caches(const AttentionSpec& attention);

  Backend* backend_ = nullptr;
  std::unique_ptr<Workspace> work_;
  std::vector<int64_t> widths_;
  int64_t context_ = 0, rows_ = 0;  // rows_: of a batch
  KvGroup group_;                   // what the caches hold
  std::vector<KvCache> caches_;     // of the sequences of a batch
  std::vector<SequenceRows> sequences_;
};

}  // namespace lowbit
