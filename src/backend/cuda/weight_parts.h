#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/error.h"

namespace lowbit {

/// A weight of any format in floats, its scales apart, as the sums of docs/numerics.md#matmul want it.
struct WeightParts {
  std::vector<float> values;   // [n, k] what each code means; dense formats: the weights
  std::vector<float> scales;   // [groups, n]; empty for dense formats
  std::vector<float> offsets;  // likewise; empty without zeros
  int64_t group = 1;           // columns that share a scale
};
/// Errors: kOutOfMemory.
Result<WeightParts> split_weight(const QTensor& w, ThreadPool& pool);

}  // namespace lowbit
