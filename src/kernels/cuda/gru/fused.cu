// One sequence in one block.

#include "kernels/cuda/gru/fused.cuh"

namespace lowbit::cuda::gru {

std::span<const FusedKernel> fused_kernels() {
  static constexpr FusedKernel kList[] = {{2, run_fused<2>}, {4, run_fused<4>}};
  return kList;
}

}  // namespace lowbit::cuda::gru
