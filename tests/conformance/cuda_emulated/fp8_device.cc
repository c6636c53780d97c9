// FP8 in blocks of the GPU that is the host: device.cc has the rest.

#include "tests/conformance/cuda_emulated/block_fibers.h"
// Behind it: the kernels' translation units as they are; kernels/cuda/elements.cuh is this folder's.
#include "kernels/cuda/fp8/gemm_mma.h"
#include "kernels/cuda/fp8/quantize.cu"

namespace lowbit::cuda {
/// No tensor cores on fibers.
bool gemm_fp8_wgmma(const DeviceGemm&, const Fp8Groups&, cudaStream_t, cudaError_t*) { return false; }
bool gemm_fp8_mma(const DeviceGemm&, const Fp8Groups&, cudaStream_t, cudaError_t*) { return false; }
cudaError_t fp8::launch_mma_halves(const DeviceGemm&, const Fp8Groups&, const Device&, cudaStream_t) {
  return cudaErrorInvalidConfiguration;
}
cudaError_t fp8::launch_mma_e4m3(const DeviceGemm&, const Fp8Groups&, const Device&, cudaStream_t) {
  return cudaErrorInvalidConfiguration;
}
}  // namespace lowbit::cuda

// One after the other: both have an unnamed namespace with the same names.
#include "kernels/cuda/fp8/gemm.cu"
