#pragma once
// Loops of a pool that may be missing. Internal to src/quantize.

#include <cstdint>

#include "base/threads.h"

namespace lowbit {

/// pool->parallel_for(); without a pool the caller's thread does all of it.
inline void parallel_for(ThreadPool* pool, int64_t n, int64_t grain, RangeFn fn) {
  if (pool != nullptr)
    pool->parallel_for(n, grain, fn);
  else if (n > 0)
    fn(0, n, 0);
}

}  // namespace lowbit
