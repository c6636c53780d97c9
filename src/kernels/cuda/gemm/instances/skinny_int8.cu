// Instances of the skinny pipeline: int8 activations, and bits.
#include "kernels/cuda/gemm/mainloop/gemv.cuh"

namespace lowbit::cuda {
namespace {
template <int Bits, int Columns>
constexpr SkinnyKernel int8() {
  return skinny_kernel<GemmActivation::kInt8, Bits, Columns>();
}
}  // namespace
extern const SkinnyKernel kSkinnyInt8[] = {int8<2, 0>(),
                                           int8<2, 1>(),
                                           int8<2, 2>(),
                                           int8<kTwoPlanes, 0>(),
                                           int8<kTwoPlanes, 2>(),
                                           int8<4, 0>(),
                                           int8<4, 1>(),
                                           int8<4, 2>(),
                                           int8<8, 0>(),
                                           int8<8, 1>(),
                                           int8<8, 2>(),
                                           skinny_kernel<GemmActivation::kBit, 8, 0>(),
                                           skinny_kernel<GemmActivation::kBit, 8, 2>()};
extern const int kSkinnyInt8Count = int(sizeof kSkinnyInt8 / sizeof *kSkinnyInt8);
}  // namespace lowbit::cuda
