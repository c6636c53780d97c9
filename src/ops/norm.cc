#include "ops/norm.h"

#include <algorithm>

namespace lowbit {

void rms_norm_rows(const VectorOps& ops, const float* x, int64_t ldx, const float* weight, int64_t m, int64_t n,
                   float eps, float* y, int64_t ldy, ThreadPool& pool) {
  const int64_t grain = std::max<int64_t>(1, 16384 / n);  // a chunk worth waking a thread for
  pool.parallel_for(m, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) ops.rms_norm(x + r * ldx, weight, n, eps, y + r * ldy);
  });
}

}  // namespace lowbit
