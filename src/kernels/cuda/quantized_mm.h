#pragma once
// Launchers of quantized_mm<BITS>, explicitly instantiated for 1, 2, 4 and 8 bits.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda_operands.h"

namespace lowbit::cuda {

struct QuantizedConfig {
  int64_t m, n, k;
  int64_t input_stride, weight_stride, output_stride;  // elements, bytes, elements
  float scale;
  const float* scales;
  int64_t group, groups;  // groups of a row; group == k when there is one
  const int32_t* row_ends;
  int ranges;
  const float* bias;
  Element input_element, output_element;
};

template <int BITS>
cudaError_t launch_quantized_mm(const void* input, const uint8_t* weight, void* output, const QuantizedConfig& p,
                                bool overlap, cudaStream_t stream);

}  // namespace lowbit::cuda
