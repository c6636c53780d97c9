#pragma once
// Kernels that prepare x for the tensor-core matmuls and add up their results.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda_operands.h"

namespace lowbit::cuda {

inline constexpr int kPartsOfF32 = 3;

/// Scales of x per group, [m, groups], of which per_scale are added up; null: none.
struct SumScales {
  const float* scales = nullptr;
  int64_t per_scale = 1;
};
/// sums[m, g] = float(sum of the codes of group g of row m); exact. With scales sums[m, h] = T of
/// docs/numerics.md#matmul over the groups of h: T = fma(float(sum), scale, T).
cudaError_t launch_code_sums(const int8_t* codes, int64_t m, int64_t k, int64_t ldx, int64_t group, int64_t groups,
                             const SumScales& scales, float* sums, cudaStream_t stream);

/// Codes [m, k] and their scales [m, ceil(k / group)] as [m, wide_k] and [m, wide_k / 32]: the columns of a group come
/// in `wide` ones, zeros behind them.
struct SpreadCodes {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;
  int64_t m = 0, k = 0, ldx = 0, group = 0, wide = 0, wide_k = 0;
  int8_t* to = nullptr;
  float* to_scales = nullptr;
};
cudaError_t launch_spread_codes(const SpreadCodes& call, bool overlap, cudaStream_t stream);

/// x [m, k] f32 -> bf16 [3 m, ldp]: parts i of all rows at row i * m, adding up to x exactly
/// (docs/adr/0021-three-bf16-parts.md). Zeros from k to ldp. back [m]: what a row's sums are multiplied by, a power of
/// two.
cudaError_t launch_split(const float* x, int64_t m, int64_t k, int64_t ldx, uint16_t* parts, int64_t ldp, float* back,
                         cudaStream_t stream);

/// y[m0 + row] = sums of the three parts, small ones first, times back[row], + bias.
cudaError_t launch_add_parts(const float* sums, const float* back, int64_t m, int64_t n, const float* bias, void* y,
                             Element y_element, int64_t m0, int64_t ldy, cudaStream_t stream);

/// See binarize_activations().
cudaError_t launch_binarize(const void* x, Element element, int64_t m, int64_t k, int64_t ldx, uint8_t* bits,
                            int64_t row_bytes, float* scales, int32_t* ones, cudaStream_t stream);

}  // namespace lowbit::cuda
