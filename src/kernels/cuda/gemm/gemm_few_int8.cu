// Instances of the pipeline for few rows of x: int8 activations, and bits.
#include "kernels/cuda/gemm/gemm_one_row.cuh"

namespace lowbit::cuda {
namespace {
template <int Bits, int Columns>
constexpr FewKernel int8() {
  return few_kernel<GemmActivation::kInt8, Bits, Columns>();
}
}  // namespace
extern const FewKernel kFewInt8[] = {int8<2, 0>(),
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
                                     few_kernel<GemmActivation::kBit, 8, 0>(),
                                     few_kernel<GemmActivation::kBit, 8, 2>()};
extern const int kFewInt8Count = int(sizeof kFewInt8 / sizeof *kFewInt8);
}  // namespace lowbit::cuda
