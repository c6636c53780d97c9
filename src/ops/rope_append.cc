#include "ops/rope_append.h"

#include <algorithm>

#include "ops/hadamard.h"

namespace lowbit {

int64_t transform_block(const KvGroup& group) { return group.format.packed() ? hadamard_block(group.head_dim) : 0; }

void rotate_and_store(const VectorOps& ops, const NewRows& rows, std::span<const SequenceRows> sequences,
                      ThreadPool& pool) {
  const KvGroup& group = sequences.front().cache->group_of(rows.layer);
  const int64_t d = group.head_dim, half = d / 2, kv_heads = group.kv_heads;
  const int64_t ldq = rows.heads * d, ldk = kv_heads * d, m = sequences.back().row + sequences.back().rows;
  const int64_t grain = std::max<int64_t>(1, 16384 / (ldq + 2 * ldk)), block = transform_block(group);
  pool.parallel_for(m, grain, [&](int64_t begin, int64_t end, int) {
    const SequenceRows* s = &sequences.front();
    for (int64_t r = begin; r < end; ++r) {
      while (r >= s->row + s->rows) ++s;
      const int64_t position = s->position + r - s->row;
      const float *cos = rows.cos + r * half, *sin = rows.sin + r * half;
      for (int64_t h = 0; h < rows.heads; ++h) ops.rope(rows.q + r * ldq + h * d, cos, sin, half);
      if (block > 0) ops.hadamard(rows.q + r * ldq, ldq, block);
      for (int64_t h = 0; h < kv_heads; ++h) {
        float* key = rows.k + r * ldk + h * d;
        ops.rope(key, cos, sin, half);
        float* value = rows.v + r * ldk + h * d;
        if (block > 0) {
          ops.hadamard(key, d, block);
          ops.hadamard(value, d, block);
        }
        s->cache->store_head(ops, rows.layer, h, position, key, value);
      }
    }
  });
}

void transform_back(const VectorOps& ops, const KvGroup& group, int64_t rows, int64_t width, float* out,
                    ThreadPool& pool) {
  if (const int64_t block = transform_block(group); block > 0) hadamard_rows(ops, out, rows, width, block, pool);
}

}  // namespace lowbit
