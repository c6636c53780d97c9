#pragma once
// Rotation of queries and keys, and the cache's new rows, in one pass over a block's rows.

#include <cstdint>
#include <span>

#include "ops/kv_cache.h"

namespace lowbit {

/// q, k and v of one layer for the rows of a batch: rotated and stored.
struct NewRows {
  int64_t layer = 0, heads = 0;
  float* q = nullptr;                          // [m, heads * head_dim], changed in place
  float* k = nullptr;                          // [m, kv_heads * head_dim], changed in place
  float* v = nullptr;                          // as k
  const float *cos = nullptr, *sin = nullptr;  // [m, head_dim / 2]
};

/// Elements of a head that pass a Hadamard transform together in a group whose pages are packed; 0: none do.
int64_t transform_block(const KvGroup& group);

/// q = rope(q); the caches' rows = f16(rope(k)), f16(v); in groups whose pages are packed a Hadamard transform of each
/// transform_block() elements follows rope, and v passes one as well, which leaves q . k as it is and spreads outliers.
/// The sequences' rows follow each other from row 0 to m; their caches have reserved the positions. Numerics: those of
/// rope_rows(), VectorOps::hadamard and KvCache::store() one after the other, the same bits for any thread count and
/// ISA.
void rotate_and_store(const VectorOps& ops, const NewRows& rows, std::span<const SequenceRows> sequences,
                      ThreadPool& pool);

/// Turns attention's results over transformed values, out [rows, width], into those over the values themselves: the
/// transform is its own inverse. Does nothing in groups without one. Numerics: VectorOps::hadamard, once, after the
/// division by the sum of weights.
void transform_back(const VectorOps& ops, const KvGroup& group, int64_t rows, int64_t width, float* out,
                    ThreadPool& pool);

}  // namespace lowbit
