#pragma once
// Checks FitOptions and prepares what all blocks share. Internal to src/quantize.

#include "base/threads.h"
#include "quantize/block_fit.h"

namespace lowbit {

/// Reads the sample rows of a k-means table through `rows`. Errors: as fit() documents.
Result<FitPlan> make_plan(const RowReader& rows, int64_t n, int64_t k, const FitOptions& options,
                          const float* importance, ThreadPool& pool);

}  // namespace lowbit
