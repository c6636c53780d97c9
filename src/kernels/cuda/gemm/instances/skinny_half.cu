// Instances of the skinny pipeline: f16 and bf16 activations.
#include "kernels/cuda/gemm/mainloop/gemv.cuh"

namespace lowbit::cuda {
namespace {
template <GemmActivation X, int Bits, int Columns>
constexpr SkinnyKernel of() {
  return skinny_kernel<X, Bits, Columns>();
}
constexpr GemmActivation kF = GemmActivation::kF16, kB = GemmActivation::kBf16;
}  // namespace
extern const SkinnyKernel kSkinnyHalf[] = {
    of<kF, 2, 0>(),     of<kF, 2, 2>(),     of<kF, 4, 0>(),     of<kF, 4, 2>(),    of<kF, 8, 0>(), of<kF, 8, 2>(),
    of<kB, 2, 0>(),     of<kB, 2, 2>(),     of<kB, 4, 0>(),     of<kB, 4, 2>(),    of<kB, 8, 0>(), of<kB, 8, 2>(),
    of<kF, kE4m3, 0>(), of<kF, kE4m3, 2>(), of<kB, kE4m3, 0>(), of<kB, kE4m3, 2>()};
extern const int kSkinnyHalfCount = int(sizeof kSkinnyHalf / sizeof *kSkinnyHalf);
}  // namespace lowbit::cuda
