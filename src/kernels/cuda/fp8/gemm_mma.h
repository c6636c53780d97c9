#pragma once
// The product of FP8 codes by mma.sync: on E4M3 on compute capability 8.9, on f16 from 8.0 on.

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/fp8_groups.h"

namespace lowbit::cuda {

/// groups: none where count is 0. False where scales of b are not of whole multiples of 64 rows: nothing was enqueued
/// then. `error` else.
inline constexpr int kMmaScaleRows = 64, kFirstWithE4m3 = 89;
bool gemm_fp8_mma(const DeviceGemm& g, const Fp8Groups& groups, cudaStream_t stream, cudaError_t* error);

namespace fp8 {
cudaError_t launch_mma_halves(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream);
/// On compute capability 8.9 and higher.
cudaError_t launch_mma_e4m3(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream);
}  // namespace fp8

}  // namespace lowbit::cuda
