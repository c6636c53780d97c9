#pragma once
// Causal attention of a block of queries against the KV cache.

#include <cstdint>

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

/// One layer's call.
struct AttentionCall {
  int64_t layer = 0, position = 0, m = 0;  // of the cache; position of the first of m queries
  const float* q = nullptr;                // [m, heads * head_dim]
  float* out = nullptr;                    // [m, heads * head_dim]
};

/// Attention of one shape, with room for the scores and converted pages of every thread. Enough for a few thousand positions from
/// the start; reserve() grows it (doubling, so that decoding does not allocate step by step).
class Attention {
 public:
  /// Keeps references to both. Errors: kOutOfMemory.
  static Result<Attention> make(const VectorOps& ops, const AttentionShape& shape, ThreadPool& pool);
  /// Room for contexts of `positions`. Errors: kOutOfMemory.
  Status reserve(int64_t positions);
  int64_t bytes() const { return buffer_.size(); }

  /// out[r,h] = sum_t softmax_t(scale * q[r,h] . k[t]) v[t],  t <= position + r.
  /// The cache holds (stored, not necessarily committed) positions [0, position + m), as many as reserve() was told.
  /// Numerics: f32. Two passes over all t in ascending order: scores, their maximum and the sum of exp; then the weighted sum, divided
  ///           at the end. A row's bits depend on nothing but its position, its query and the cache: not on m, the thread count, the
  ///           ISA or the blocking. Reference: a loop in ops/attention_test.cc.
  /// `next`: what the loop behind it reads.
  void run(const AttentionCall& call, const KvCache& cache, const ReadAhead& next = {});

 private:
  const VectorOps* ops_ = nullptr;
  AttentionShape shape_;
  ThreadPool* pool_ = nullptr;
  int64_t page_elems_ = 0, scores_elems_ = 0, worker_elems_ = 0;
  Buffer buffer_;  // f32 [threads, worker_elems_]: scores, then one page of keys or values
};

}  // namespace lowbit
