#pragma once
// The product of FP8 codes by mma.sync: every GPU from compute capability 8.0 on. E4M3 cores where wgmma is not, f16's
// else.

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/fp8_groups.h"

namespace lowbit::cuda {

/// groups: none where count is 0. False where scales of b are not of whole multiples of 64 rows: nothing was enqueued
/// then. `error` else.
inline constexpr int kMmaScaleRows = 64;
bool gemm_fp8_mma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error);

namespace fp8 {
/// On compute capability 8.9 and higher, with such scales.
cudaError_t launch_mma_e4m3(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream);
}  // namespace fp8

}  // namespace lowbit::cuda
