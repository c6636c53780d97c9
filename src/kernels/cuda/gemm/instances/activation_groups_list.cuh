#pragma once
// The instances of a stored width.

#include "kernels/cuda/gemm/mainloop/gemm_activation_groups.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_skinny.cuh"

namespace lowbit::cuda {

template <int Bits, int PerScale, int RowWarps, int XWarps>
ActivationGroupKernel activation_group_kernel() {
  return {
      RowWarps == 4 ? ActivationGroupTile::k128x64 : ActivationGroupTile::k64x32, PerScale, RowWarps, XWarps,
      reinterpret_cast<const void*>(&gemm_activation_groups<ActivationGroupTileOf<Bits, PerScale, RowWarps, XWarps>>)};
}
template <int Bits, bool Whole>
ActivationGroupKernel activation_group_skinny_kernel() {
  return {ActivationGroupTile::kSkinny, Whole ? 1 : 0, 0, 0,
          reinterpret_cast<const void*>(&gemm_activation_groups_skinny<Bits, Whole>)};
}

#define LOWBIT_ACTIVATION_GROUP_KERNELS(BITS)                                                       \
  {                                                                                                 \
    activation_group_kernel<BITS, 1, 4, 2>(), activation_group_kernel<BITS, 2, 4, 2>(),             \
        activation_group_kernel<BITS, 0, 4, 2>(), activation_group_kernel<BITS, 1, 2, 1>(),         \
        activation_group_kernel<BITS, 2, 2, 1>(), activation_group_kernel<BITS, 0, 2, 1>(),         \
        activation_group_skinny_kernel<BITS, true>(), activation_group_skinny_kernel<BITS, false>() \
  }

}  // namespace lowbit::cuda
