#pragma once
// What a GEMM kernel is told: a GemmProblem with its sizes worked out, and how tiles are dealt to blocks.

#include <cstdint>

namespace lowbit::cuda {

struct GemmArgs {
  const uint8_t* tiles;
  const float* scales;   // [groups, n_padded]
  const float* offsets;  // [groups, n_padded] or null
  const void* x;         // for kernels without a tensor map; row stride in bytes
  int64_t x_row_bytes;
  const float* x_scale;  // int8
  int64_t x_scale_row, x_scale_group;
  const float* x_sums;  // [m, groups]
  const float* bias;
  void* y;
  int64_t ldy;
  int m, n, k, n_padded;
  int output;              // GemmOutput
  int pairs;               // y may be written two neighbours at a time
  int bulk_rows;           // rows of y begin at multiples of 16 bytes and its elements have 2
  int group, groups;       // columns per scale, and how many
  uint32_t half_zero;      // f16, bf16: both halves hold the number that magic + code exceeds the value by
  int units, unit_blocks;  // ceil(n / 64), ceil(k / unit's columns)
  int m_tiles, n_tiles, band;
  int split, split_blocks;  // blocks of a cluster that share a tile's K; unit blocks of each
  int x_aligned;            // rows of x begin at multiples of 16 bytes
};

/// Tile number -> (m tile, n tile): bands of `band` m tiles, n slowest inside, so that blocks that run together share both x
/// and weights in the second-level cache.
struct TileAt {
  int m, n;
};
__device__ __forceinline__ TileAt tile_at(const GemmArgs& p, int tile) {
  const int per_band = p.band * p.n_tiles, b = tile / per_band, rest = tile - b * per_band;
  const int height = min(p.band, p.m_tiles - b * p.band);
  return {b * p.band + rest % height, rest / height};
}

}  // namespace lowbit::cuda
