#include "ops/hadamard.h"

#include <algorithm>

namespace lowbit {

int64_t hadamard_block(int64_t k) { return std::min(k & -k, kLargestHadamard); }

void hadamard_rows(const VectorOps& ops, float* x, int64_t m, int64_t k, int64_t block, ThreadPool& pool) {
  constexpr int64_t kElementsPerChunk = 16384;
  pool.parallel_for(m, std::max<int64_t>(1, kElementsPerChunk / std::max<int64_t>(1, k)),
                    [&](int64_t begin, int64_t end, int) { ops.hadamard(x + begin * k, (end - begin) * k, block); });
}

}  // namespace lowbit
