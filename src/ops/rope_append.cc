#include "ops/rope_append.h"

#include <algorithm>

namespace lowbit {

void rotate_and_store(const VectorOps& ops, const NewRows& rows, KvCache& cache, ThreadPool& pool) {
  const int64_t d = cache.shape().head_dim, half = d / 2, kv_heads = cache.shape().kv_heads;
  const int64_t ldq = rows.heads * d, ldk = kv_heads * d;
  const int64_t grain = std::max<int64_t>(1, 16384 / (ldq + 2 * ldk));
  pool.parallel_for(rows.m, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float *cos = rows.cos + r * half, *sin = rows.sin + r * half;
      for (int64_t h = 0; h < rows.heads; ++h) ops.rope(rows.q + r * ldq + h * d, cos, sin, half);
      for (int64_t h = 0; h < kv_heads; ++h) {
        float* key = rows.k + r * ldk + h * d;
        ops.rope(key, cos, sin, half);
        cache.store_head(ops, rows.layer, h, rows.position + r, key, rows.v + r * ldk + h * d);
      }
    }
  });
}

}  // namespace lowbit
