#pragma once
// Kernels that take every format, derived from the format list alone: the fallback matmul, and the re-ordering of
// weights for the integer GEMV. One launcher per FormatId; nothing branches on the bit width.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda_operands.h"

namespace lowbit::cuda {

struct GenericArgs {
  Weight w;
  const float* bias;
  const void* x;  // f32, f16, bf16; or int8 codes
  Element x_element;
  const float* x_scales;
  bool x_groups;
  int64_t m, ldx;
  void* y;
  Element y_element;
  int64_t ldy;
};

/// One warp per row of w, in the order of docs/numerics.md#matmul for integer sums and over groups.
cudaError_t launch_generic(FormatId format, bool int8, const GenericArgs& args, cudaStream_t stream);

/// Canonical rows -> the order of integer_gemv.h with `bits` bits, value = mul * code + add. Integer formats.
/// `counted`: instead of the code so many set bits.
cudaError_t launch_relayout(FormatId format, int bits, int mul, int add, bool counted, const uint8_t* from,
                            int64_t stride, int64_t rows, int64_t k, uint8_t* to, int64_t row_bytes,
                            cudaStream_t stream);

/// x [m, ldx] -> codes [m, ldq], zeros from k on; scales [m] or, with group > 0, [m, groups]. Lets the next kernel
/// start at once.
cudaError_t launch_quantize(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, int64_t group,
                            bool exact_scales, int8_t* codes, int64_t ldq, float* scales, bool overlap,
                            cudaStream_t stream);

}  // namespace lowbit::cuda
