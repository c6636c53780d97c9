#pragma once
// Which tile a number is: the order in which blocks take tiles.

#include "kernels/cuda/gemm/schedule/device_args.h"

namespace lowbit::cuda {

/// Tile number -> (m tile, n tile of n_tiles): bands of `band` m tiles, n slowest inside, so that blocks that run
/// together share both x and weights in the L2.
struct TileAt {
  int m, n;
};
__device__ __forceinline__ TileAt tile_at(const GemmArgs& p, int n_tiles, int tile) {
  const int per_band = p.band * n_tiles, b = tile / per_band, rest = tile - b * per_band;
  const int height = min(p.band, p.m_tiles - b * p.band);
  return {b * p.band + rest % height, rest / height};
}

}  // namespace lowbit::cuda
