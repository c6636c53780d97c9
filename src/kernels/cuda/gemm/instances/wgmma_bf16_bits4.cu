// Instances for bf16 activations and codes stored in 4 bits.
#include "kernels/cuda/gemm/mainloop/gemm_split_k_half.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_warp_specialized.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups>
using Tile = WgmmaTile<GemmActivation::kBf16, 4, Bm, Warpgroups, 1, ScaleAt::kEveryBlock>;
template <int Bm, int Packs, int Split, bool Ahead>
using Specialized = SpecializedTile<GemmActivation::kBf16, 4, Bm, Packs, 2, Split, Ahead>;
const WgmmaKernel kKernels[] = {
    split_k_half_kernel<SplitKHalfTile<GemmActivation::kBf16, 4>>("sm90_64x16_slice"),
    wgmma_kernel<Tile<16, 2>>("sm90_128x16"),
    specialized_kernel<Specialized<64, 1, 2, true>>("sm90_64x64_deep"),
    specialized_kernel<Specialized<64, 2, 1, false>>("sm90_128x64_deep"),
    wgmma_kernel<Tile<64, 2>>("sm90_128x64"),
    specialized_kernel<Specialized<128, 1, 1, true>>("sm90_64x128_deep"),
    wgmma_kernel<Tile<128, 2>>("sm90_128x128"),
};
}  // namespace
const WgmmaTable kWgmmaBf16Bits4{GemmActivation::kBf16, 4, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
