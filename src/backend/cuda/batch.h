#pragma once
// A batch as kernels see it: the sequence and position of each row, and the pages of its sequence.

#include <span>
#include <vector>

#include "backend/cuda/device_lists.h"
#include "backend/cuda/logit_changes.h"
#include "backend/step.h"
#include "kernels/cuda_packed_api.h"
#include "kernels/cuda_sample_api.h"
#include "kernels/cuda_step_api.h"
#include "tensor/buffer.h"

namespace lowbit {

class CudaBatch {
 public:
  /// `shares`: numbers of heads that share a kv head, each once.
  Status reserve(int64_t rows, int64_t context, std::span<const int64_t> shares);
  int64_t bytes() const;
  /// Sends the batch, of a later pass all but what feed_tokens() fetches. Its lists lie where those of any batch of up
  /// to kFewRows rows do, or of as many rows. The copy may go on: wait for the stream before the next one of the same
  /// `pass`, of kPasses. Errors: kInvalidArgument (pages in the host's memory, more of them than a context, caches of
  /// different forms), kOutOfMemory, what CUDA says. `exact`: attention is to have the CPU's bits.
  Status set(const Batch& batch, int64_t pass, bool exact, void* stream);
  static constexpr int64_t kPasses = 16;
  static constexpr int64_t kFewRows = 64;

  const int32_t* tokens() const { return lists_.on_device<int32_t>(tokens_); }
  /// The lists' part in feed_tokens(), the same for all passes.
  cuda::FeedTokens lists_to_feed() const;
  const int32_t* wanted() const { return lists_.on_device<int32_t>(wanted_); }
  int64_t wanted_rows() const { return wanted_rows_; }
  /// How their tokens are chosen; a negative temperature where logits are wanted.
  const TokenRule* rules() const { return lists_.on_device<TokenRule>(rules_); }
  /// Changes of their logits before that.
  const CudaLogitChanges& changes() const { return changes_; }
  const cuda::RowChanges* row_changes() const { return lists_.on_device<cuda::RowChanges>(row_changes_); }
  /// How many of the likeliest tokens they want beside log-probabilities of the chosen one; negative: neither.
  const int32_t* logprobs_wanted() const { return lists_.on_device<int32_t>(logprobs_); }
  bool wants_logprobs() const { return wants_logprobs_; }
  /// Some row has a choice, some choice is a draw, some row wants logits.
  bool chooses() const { return chooses_; }
  bool draws() const { return draws_; }
  bool wants_logits() const { return wants_logits_; }
  /// Whether the wanted rows are the first of the batch, in their order.
  bool wanted_in_front() const { return wanted_in_front_; }
  /// Whether every sequence has one row.
  bool single_rows() const { return single_rows_; }
  const cuda::BatchRow* rows() const { return lists_.on_device<cuda::BatchRow>(rows_); }
  const cuda::BatchSequence* sequences() const { return lists_.on_device<cuda::BatchSequence>(sequences_); }
  struct Tiles {
    const cuda::QueryTile* tiles = nullptr;
    int64_t count = 0;
    int queries = 0;
  };
  /// Tiles of sequences with few rows, and of those with so many that their tiles have kPromptQueries, for layers of
  /// one kind (is_packed()): those with packed pages have no tiles of many.
  Tiles tiles(int64_t share, bool packed) const { return list_of(share, packed, &TilesOf::few); }
  Tiles prompt_tiles(int64_t share, bool packed) const { return list_of(share, packed, &TilesOf::many); }
  /// The most spans that a sequence's rows see.
  int64_t most_spans(int64_t window) const;
  cuda::PagedKv pages(int64_t layer) const;
  /// Whether the layer's pages are packed when they are old, and how it finds itself in them.
  bool is_packed(int64_t layer) const;
  cuda::PackedKv packed_pages(int64_t layer) const;
  /// Pages that rows of the batch read packed, or demoted, and that are not so yet, in every packed layer.
  const cuda::PackTask* pack_tasks() const { return tasks_on_device_.as<cuda::PackTask>(); }
  int64_t pack_count() const { return pack_count_; }
  const cuda::PackTask* demote_tasks() const { return pack_tasks() + pack_count_; }
  int64_t demote_count() const { return int64_t(tasks_.size()) - pack_count_; }

 private:
  struct TileList {
    int queries = 0;
    int64_t at = 0, count = 0;  // in the lists
  };
  struct TilesOf {
    int64_t share = 0;
    bool packed = false;
    TileList few, many;
  };
  Tiles list_of(int64_t share, bool packed, TileList TilesOf::*list) const;
  /// Addresses of pages of one group of layers: [sequences, most_pages_].
  struct Table {
    Buffer on_device;
    std::vector<uint64_t> sent;
  };
  Status set_pages(std::span<const SequenceRows> sequences, void* stream);
  Status send_table(Table& table, size_t sequence, std::span<const KvPool::Page> pages, void* stream);
  void cut(std::span<const SequenceRows> sequences, TilesOf& to);
  Status send_pack_tasks(std::span<const SequenceRows> sequences, void* stream);
  /// Where lists of so many rows lie.
  void place(int64_t rows);

  int64_t most_rows_ = 0, most_pages_ = 0;
  DeviceLists lists_;
  int64_t pass_ = 0, tokens_ = 0, wanted_ = 0, rows_ = 0, sequences_ = 0, rules_ = 0;  // places in the lists
  int64_t logprobs_ = 0, row_changes_ = 0;                                             // the last one
  int64_t list_bytes_ = 0, wanted_rows_ = 0, pack_count_ = 0;
  std::vector<cuda::PackTask> tasks_;  // to be packed, then to be demoted
  Buffer tasks_on_device_;
  CudaLogitChanges changes_;
  std::vector<TilesOf> tiles_;
  std::vector<Table> tables_;  // by store of the pool
  bool wants_logprobs_ = false, exact_ = true;
  bool wanted_in_front_ = false, single_rows_ = false, chooses_ = false, draws_ = false, wants_logits_ = false;
  std::span<const SequenceRows> of_;  // the batch that was set
};

}  // namespace lowbit
