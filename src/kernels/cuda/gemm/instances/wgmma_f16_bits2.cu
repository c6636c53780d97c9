// Instances for f16 activations and codes stored in 2 bits.
#include "kernels/cuda/gemm/mainloop/gemm_split_k_half.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_warp_specialized.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups>
using Tile = WgmmaTile<GemmActivation::kF16, 2, Bm, Warpgroups, 1, ScaleAt::kEveryBlock>;
template <int Bm, int Packs, int Split>
using Specialized = SpecializedTile<GemmActivation::kF16, 2, Bm, Packs, 2, Split, true>;
const WgmmaKernel kKernels[] = {
    split_k_half_kernel<SplitKHalfTile<GemmActivation::kF16, 2>>("sm90_64x16_slice"),
    wgmma_kernel<Tile<16, 2>>("sm90_128x16"),
    specialized_kernel<Specialized<64, 1, 2>>("sm90_64x64_deep"),
    wgmma_kernel<Tile<64, 2>>("sm90_128x64"),
    wgmma_kernel<Tile<128, 2>>("sm90_128x128"),
};
}  // namespace
const WgmmaTable kWgmmaF16Bits2{GemmActivation::kF16, 2, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
