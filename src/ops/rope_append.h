#pragma once
// Rotation of queries and keys, and the cache's new rows, in one pass over a block's rows.

#include <cstdint>
#include <span>

#include "ops/kv_cache.h"

namespace lowbit {

/// q, k and v of one layer for the rows of a batch: rotated and stored.
struct NewRows {
  int64_t layer = 0, heads = 0;
  float* q = nullptr;                          // [m, heads * head_dim], rotated in place
  float* k = nullptr;                          // [m, kv_heads * head_dim], rotated in place
  const float* v = nullptr;                    // as k
  const float *cos = nullptr, *sin = nullptr;  // [m, head_dim / 2]
};

/// q = rope(q); the caches' rows = f16(rope(k)), f16(v); in groups whose pages are packed a Hadamard transform of each
/// hadamard_block(head_dim) elements follows rope, which leaves q . k as it is and spreads outliers. The sequences'
/// rows follow each other from row 0 to m; their caches have reserved the positions. Numerics: those of rope_rows() and
/// KvCache::store() one after the other, the same bits for any thread count and ISA.
void rotate_and_store(const VectorOps& ops, const NewRows& rows, std::span<const SequenceRows> sequences,
                      ThreadPool& pool);

}  // namespace lowbit
