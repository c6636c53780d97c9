// Instances of the pipeline for few rows of x: f16 and bf16 activations.
#include "kernels/cuda/gemm/gemm_one_row.cuh"

namespace lowbit::cuda {
namespace {
template <GemmActivation X, int Bits, int Columns>
constexpr FewKernel of() {
  return few_kernel<X, Bits, Columns>();
}
constexpr GemmActivation kF = GemmActivation::kF16, kB = GemmActivation::kBf16;
}  // namespace
extern const FewKernel kFewHalf[] = {of<kF, 2, 0>(), of<kF, 2, 2>(), of<kF, 4, 0>(), of<kF, 4, 2>(),
                                     of<kB, 2, 0>(), of<kB, 2, 2>(), of<kB, 4, 0>(), of<kB, 4, 2>()};
extern const int kFewHalfCount = int(sizeof kFewHalf / sizeof *kFewHalf);
}  // namespace lowbit::cuda
