#pragma once
// The instances of a stored width.

#include "kernels/cuda/gemm/mainloop/gemm_activation_groups.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_skinny.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_split.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_wgmma.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_activation_groups_whole.cuh"

namespace lowbit::cuda {

template <class Tile>
ActivationGroupKernel activation_group_kernel(ActivationGroupTile name, const void* function) {
  return {name, Tile::kPerScale, Tile::kRows, Tile::kTokens, Tile::kThreads, Tile::kSharedBytes, function};
}
template <int Bits, int PerScale, int RowWarps, int XWarps>
ActivationGroupKernel activation_group_many(ActivationGroupTile name) {
  using Tile = ActivationGroupTileOf<Bits, PerScale, 2, 4, RowWarps, XWarps, 1>;
  return activation_group_kernel<Tile>(name, reinterpret_cast<const void*>(&gemm_activation_groups<Tile>));
}
template <int Bits, int PerScale, int ColumnTiles>
ActivationGroupKernel activation_group_wgmma(ActivationGroupTile name) {
  using Tile = ActivationGroupTileOf<Bits, PerScale, 1, ColumnTiles, 8, 1, 1>;
  return activation_group_kernel<Tile>(name, reinterpret_cast<const void*>(&gemm_activation_groups_wgmma<Tile>));
}
template <int Bits, int ColumnTiles>
ActivationGroupKernel activation_group_whole(ActivationGroupTile name) {
  using Tile = ActivationGroupTileOf<Bits, 4, 1, ColumnTiles, 8, 1, 1>;
  return activation_group_kernel<Tile>(name, reinterpret_cast<const void*>(&gemm_activation_groups_whole<Tile>));
}
template <int Bits, int PerScale, int RowTiles, int ColumnTiles, int RowWarps, int KWarps>
ActivationGroupKernel activation_group_split(ActivationGroupTile name) {
  using Tile = ActivationGroupTileOf<Bits, PerScale, RowTiles, ColumnTiles, RowWarps, 1, KWarps>;
  return activation_group_kernel<Tile>(name, reinterpret_cast<const void*>(&gemm_activation_groups_split<Tile>));
}
template <int Bits, bool Whole>
ActivationGroupKernel activation_group_skinny() {
  return {ActivationGroupTile::kSkinny,
          Whole ? 1 : 0,
          0,
          0,
          0,
          0,
          reinterpret_cast<const void*>(&gemm_activation_groups_skinny<Bits, Whole>)};
}

#define LOWBIT_ACTIVATION_GROUP_SPLIT(BITS, PER_SCALE)                                       \
  activation_group_split<BITS, PER_SCALE, 1, 2, 2, 4>(ActivationGroupTile::kSplit32x16),     \
      activation_group_split<BITS, PER_SCALE, 2, 2, 2, 4>(ActivationGroupTile::kSplit64x16), \
      activation_group_split<BITS, PER_SCALE, 1, 4, 2, 4>(ActivationGroupTile::kSplit32x32), \
      activation_group_split<BITS, PER_SCALE, 1, 4, 4, 2>(ActivationGroupTile::kSplit64x32)
#define LOWBIT_ACTIVATION_GROUP_MANY(BITS, PER_SCALE)                                \
  activation_group_many<BITS, PER_SCALE, 4, 2>(ActivationGroupTile::k128x64),        \
      activation_group_many<BITS, PER_SCALE, 2, 1>(ActivationGroupTile::k64x32),     \
      activation_group_wgmma<BITS, PER_SCALE, 8>(ActivationGroupTile::kWgmma128x64), \
      activation_group_wgmma<BITS, PER_SCALE, 16>(ActivationGroupTile::kWgmma128x128)
#define LOWBIT_ACTIVATION_GROUP_KERNELS(BITS)                                                                          \
  LOWBIT_ACTIVATION_GROUP_MANY(BITS, 0), LOWBIT_ACTIVATION_GROUP_MANY(BITS, 2), LOWBIT_ACTIVATION_GROUP_MANY(BITS, 4), \
      LOWBIT_ACTIVATION_GROUP_SPLIT(BITS, 1), LOWBIT_ACTIVATION_GROUP_SPLIT(BITS, 2),                                  \
      LOWBIT_ACTIVATION_GROUP_SPLIT(BITS, 4), activation_group_skinny<BITS, true>(),                                   \
      activation_group_skinny<BITS, false>()
#define LOWBIT_ACTIVATION_GROUP_WHOLE(BITS)                           \
  activation_group_whole<BITS, 8>(ActivationGroupTile::kWhole128x64), \
      activation_group_whole<BITS, 16>(ActivationGroupTile::kWhole128x128)

}  // namespace lowbit::cuda
