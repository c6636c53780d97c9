#pragma once
// The product of FP8 codes on tensor cores that know f16 alone: every GPU from compute capability 8.0 on.

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/fp8_groups.h"

namespace lowbit::cuda {

/// groups: none where count is 0. False where scales of b are not of whole multiples of 64 rows: nothing was enqueued
/// then. `error` else.
bool gemm_fp8_mma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error);

}  // namespace lowbit::cuda
