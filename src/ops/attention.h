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
  int64_t heads = 0, kv_heads = 0,
          head_dim = 0;  // heads % kv_heads == 0; head h reads kv head h / (heads / kv_heads)
  float scale = 0;       // usually 1 / sqrt(head_dim)
};

/// Scores and converted pages of every worker. Enough for a few thousand positions from the start;
/// reserve() grows it (doubling, so that decoding does not allocate step by step).
class AttentionWorkspace {
 public:
  static Result<AttentionWorkspace> make(const AttentionShape& shape, int threads);
  /// Room for contexts of `positions`. Errors: kOutOfMemory.
  Status reserve(int64_t positions);
  int64_t bytes() const { return buffer_.size(); }

 private:
  friend void attend(const VectorOps&, const AttentionShape&, const KvCache&, int64_t, int64_t, int64_t, const float*,
                     int64_t, float*, int64_t, AttentionWorkspace&, ThreadPool&, const ReadAhead&);
  int threads_ = 1;
  int64_t group_ = 1, page_elems_ = 0;
  int64_t scores_elems_ = 0, worker_elems_ = 0;
  Buffer buffer_;  // f32 [threads, worker_elems_]: scores, then one page of keys or values
};

/// out[m,h] = sum_t softmax_t(scale * q[m,h] . k[t]) v[t],  t <= first_position + m.
/// Shapes:   q, out [M, heads * head_dim], row strides ldq, ldo in elements; the cache holds
/// (stored, not necessarily
///           committed) positions [0, first_position + M), as many as the workspace has reserved.
/// Numerics: f32. Two passes over all t in ascending order: scores, their maximum and the sum of
/// exp; then the weighted
///           sum, divided at the end. A row's bits depend on nothing but its position, its query
///           and the cache: not on M, the thread count, the ISA or the blocking. Reference: a loop
///           in ops/attention_test.cc. `next`: what the loop behind it reads.
void attend(const VectorOps& ops, const AttentionShape& shape, const KvCache& cache, int64_t layer,
            int64_t first_position, int64_t m, const float* q, int64_t ldq, float* out, int64_t ldo,
            AttentionWorkspace& workspace, ThreadPool& pool, const ReadAhead& next = {});

}  // namespace lowbit
