// Instances for int8 activations and codes stored in 2 bits.
#include "kernels/cuda/gemm/mainloop/gemm_split_k.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups, int Packs, ScaleAt F>
using Tile = WgmmaTile<GemmActivation::kInt8, 2, Bm, Warpgroups, Packs, F>;
const WgmmaKernel kKernels[] = {
    split_k_kernel<SplitKTile<GemmActivation::kInt8, 2, 1, SplitKSums::kAdded>>("sm90_64x16_slice"),
    wgmma_kernel<Tile<16, 2, 1, ScaleAt::kBlocks>>("sm90_128x16"),
    wgmma_kernel<Tile<32, 1, 1, ScaleAt::kBlocks>>("sm90_64x32"),
    wgmma_kernel<Tile<32, 1, 1, ScaleAt::kBatches>>("sm90_64x32"),
    wgmma_kernel<Tile<64, 1, 1, ScaleAt::kBlocks>>("sm90_64x64"),
    wgmma_kernel<Tile<64, 2, 1, ScaleAt::kBlocks>>("sm90_128x64"),
    wgmma_kernel<Tile<64, 2, 1, ScaleAt::kBatches>>("sm90_128x64"),
    wgmma_kernel<Tile<128, 2, 1, ScaleAt::kBlocks>>("sm90_128x128"),
    wgmma_kernel<Tile<128, 2, 1, ScaleAt::kBatches>>("sm90_128x128"),
    wgmma_kernel<Tile<128, 2, 2, ScaleAt::kTile>>("sm90_256x128"),
};
}  // namespace
const WgmmaTable kWgmmaInt8Bits2{GemmActivation::kInt8, 2, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
