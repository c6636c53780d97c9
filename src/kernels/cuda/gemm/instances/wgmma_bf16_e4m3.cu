// Instances for bf16 activations and weights in E4M3.
#include "kernels/cuda/gemm/mainloop/gemm_wgmma.cuh"

namespace lowbit::cuda {
namespace {
template <int Bm, int Warpgroups>
using Tile = WgmmaTile<GemmActivation::kBf16, kE4m3, Bm, Warpgroups, 1, ScaleAt::kEveryBlock>;
const WgmmaKernel kKernels[] = {
    wgmma_kernel<Tile<16, 2>>("sm90_128x16"),
    wgmma_kernel<Tile<64, 2>>("sm90_128x64"),
    wgmma_kernel<Tile<128, 2>>("sm90_128x128"),
};
}  // namespace
const WgmmaTable kWgmmaBf16E4m3{GemmActivation::kBf16, kE4m3, kKernels, int(sizeof kKernels / sizeof *kKernels)};
}  // namespace lowbit::cuda
