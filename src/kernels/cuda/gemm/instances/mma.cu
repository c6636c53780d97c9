// Instances of the mma.sync pipeline.
#include "kernels/cuda/gemm/mainloop/gemm_mma.cuh"

namespace lowbit::cuda {
namespace {
template <GemmActivation X, int Bits>
constexpr MmaKernel kernel() {
  return {X, Bits, reinterpret_cast<const void*>(&gemm_mma<X, Bits>), "sm80_128x64"};
}
const MmaKernel kKernels[] = {kernel<GemmActivation::kInt8, 2>(),    kernel<GemmActivation::kInt8, 4>(),
                              kernel<GemmActivation::kInt8, 8>(),    kernel<GemmActivation::kInt8, kTwoPlanes>(),
                              kernel<GemmActivation::kBit, 8>(),     kernel<GemmActivation::kF16, 2>(),
                              kernel<GemmActivation::kF16, 4>(),     kernel<GemmActivation::kF16, 8>(),
                              kernel<GemmActivation::kBf16, 2>(),    kernel<GemmActivation::kBf16, 4>(),
                              kernel<GemmActivation::kBf16, 8>(),    kernel<GemmActivation::kF16, kE4m3>(),
                              kernel<GemmActivation::kBf16, kE4m3>()};
}  // namespace

const MmaKernel* find_mma_kernel(GemmActivation activation, int bits) {
  for (const MmaKernel& k : kKernels)
    if (k.activation == activation && k.bits == bits) return &k;
  return nullptr;
}
}  // namespace lowbit::cuda
