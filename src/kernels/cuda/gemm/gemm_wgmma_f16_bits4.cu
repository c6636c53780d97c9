// Instances for f16 activations and codes stored in 4 bits.
#include "kernels/cuda/gemm/gemm_slice.cuh"
#include "kernels/cuda/gemm/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups>
using Tile = WgmmaTile<GemmActivation::kF16, 4, Bm, Warpgroups, 1, Fold::kEveryBlock>;
const WgmmaKernel kKernels[] = {
    slice_kernel<SliceTile<GemmActivation::kF16, 4, 2, SliceSums::kScaled>>("sm90_128x16_slice"),
    wgmma_kernel<Tile<16, 2>>("sm90_128x16"),
    wgmma_kernel<Tile<64, 1>>("sm90_64x64"),
    wgmma_kernel<Tile<64, 2>>("sm90_128x64"),
    wgmma_kernel<Tile<128, 2>>("sm90_128x128"),
};
}  // namespace
const WgmmaTable kWgmmaF16Bits4{GemmActivation::kF16, 4, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
