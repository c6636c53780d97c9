#pragma once
// Causal attention of a block of queries against the KV cache.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/error.h"
#include "ops/kv_cache.h"
#include "tensor/buffer.h"

namespace lowbit {

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;  // usually 1 / sqrt(head_dim)
  /// Heads that read one kv head: heads % kv_heads == 0, and head h reads kv head h / group().
  int64_t group() const { return heads / kv_heads; }
};

/// One layer's call for one sequence.
struct AttentionCall {
  int64_t layer = 0, position = 0, m = 0;  // of the cache; position of the first of m queries
  const float* q = nullptr;                // [m, heads * head_dim]
  float* out = nullptr;                    // [m, heads * head_dim]
  int64_t window = 0;  // a query sees so many positions, its own the last of them; 0: all up to its own
};

/// One layer's call for the rows of several sequences.
struct BatchAttention {
  int64_t layer = 0;
  std::span<const SequenceRows> sequences;
  const float* q = nullptr;  // [rows of all, heads * head_dim]
  float* out = nullptr;      // as q
  int64_t window = 0;        // as in AttentionCall
};

/// Attention of one shape, with scratch for every thread and room for the results of single spans. Enough for a few
/// thousand positions from the start; reserve() grows it (doubling, so that decoding does not allocate step by step).
class Attention {
 public:
  /// Keeps references to both. Errors: kOutOfMemory.
  static Result<Attention> make(const VectorOps& ops, const AttentionShape& shape, ThreadPool& pool);
  /// Room for contexts of `positions`; without it threads that share the spans of a row would have no place for them,
  /// and do not share them. Errors: kOutOfMemory.
  Status reserve(int64_t positions);
  int64_t bytes() const { return scratch_.size() + results_.size(); }

  /// out[r,h] = sum_t softmax_t(scale * q[r,h] . k[t]) v[t],  max(0, p + 1 - window) <= t <= p, the row's position.
  /// The caches hold (stored, not necessarily committed) all positions up to the last row's, packed where rows read
  /// them so. Numerics: f32, spans of 256 positions in ascending order (SpanArgs, VectorOps::merge_span;
  /// docs/numerics.md), at the end times
  ///           1 / L. A row's bits depend on nothing but its position, the window, its query and the cache: not on the
  ///             rows beside
  ///           it, the thread count, the ISA or the blocking. Reference: a loop in ops/attention_test.cc.
  /// `next`: what the loop behind it reads.
  void run(const BatchAttention& call, const ReadAhead& next = {});
  void run(const AttentionCall& call, KvCache& cache, const ReadAhead& next = {});

 private:
  /// Rows of a sequence that are computed together.
  struct Block {
    const KvCache* cache;
    int64_t row, rows, position;  // of q; position of the first
    int64_t first_span, spans;    // that any of them sees
    int64_t task, result;         // where spans are shared out: the first task, and where results begin
  };
  class Runner;

  void cut(const BatchAttention& call);
  bool share_spans();
  int64_t result_elems(int64_t rows) const { return shape_.group() * rows * (padded_dim_ + 2); }

  const VectorOps* ops_ = nullptr;
  AttentionShape shape_;
  ThreadPool* pool_ = nullptr;
  int64_t most_queries_ = 0, padded_dim_ = 0, worker_elems_ = 0;
  Buffer scratch_;                                // f32 [threads, worker_elems_]
  Buffer results_;                                // f32, of spans that are computed apart
  std::vector<Block> blocks_;                     // of a call
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // spans of a block and kv head that are not done
};

}  // namespace lowbit
