#pragma once
// The contract between backend/cuda/ and the kernel that reads rows of an embedding as it is stored.
// kernels/cuda/block/ implements it, kernels/cuda_stub/ stands in for it.

#include <cstdint>

#include "lowbit/error.h"
#include "lowbit/format_id.h"

namespace lowbit::cuda {

/// y[r] = row index[r] of a weight, as dequantize_rows() has it: value, or value * scale, or value * scale + offset.
/// Device memory; enqueues work on `stream` and returns.
struct TableRows {
  FormatId format = FormatId::kF32;                   // that expands to itself
  const uint8_t* codes = nullptr;                     // canonical rows
  int64_t row_bytes = 0, n = 0;                       // bytes and columns of a row
  const float *scales = nullptr, *offsets = nullptr;  // [rows of the weight, ceil(n / group)], or null
  const float* values = nullptr;                      // of a codebook
  int64_t group = 0;
  const int32_t* index = nullptr;
  int64_t rows = 0;
  float* y = nullptr;  // [rows, n]
  void* stream = nullptr;
};
Status table_rows(const TableRows& call);

}  // namespace lowbit::cuda
