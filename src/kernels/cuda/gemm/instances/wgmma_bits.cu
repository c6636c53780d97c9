// Instances for bits of x and binary weights, eight columns in a byte.
#include "kernels/cuda/gemm/mainloop/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups, int Packs, ScaleAt F>
using Tile = WgmmaTile<GemmActivation::kBit, 8, Bm, Warpgroups, Packs, F>;
const WgmmaKernel kKernels[] = {
    wgmma_kernel<Tile<32, 1, 1, ScaleAt::kBlocks>>("sm90_64x32"),
    wgmma_kernel<Tile<64, 2, 1, ScaleAt::kBlocks>>("sm90_128x64"),
    wgmma_kernel<Tile<128, 2, 2, ScaleAt::kTile>>("sm90_256x128"),
};
}  // namespace
const WgmmaTable kWgmmaBits{GemmActivation::kBit, 8, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
