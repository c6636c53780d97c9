#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/cuda_matmul_api.h"
#include "lowbit/error.h"

namespace lowbit {

/// A weight of any format as values, its scales apart, as the sums of docs/numerics.md#matmul want it.
struct WeightParts {
  std::vector<uint8_t> values;  // [n, cuda::value_row_bytes(type, k)] what each code means; dense: the weights
  cuda::ValueType type = cuda::ValueType::kF32;  // the least that holds them all
  std::vector<float> scales;                     // [groups, n]; empty for dense formats
  std::vector<float> offsets;                    // likewise; empty without zeros
  int64_t group = 1;                             // columns that share a scale
};
/// Errors: kOutOfMemory.
Result<WeightParts> split_weight(const QTensor& w, ThreadPool& pool);

}  // namespace lowbit
