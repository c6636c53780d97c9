#pragma once
// Arguments of GEMM kernels: a GemmProblem with its sizes worked out, and how tiles are dealt to blocks.

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
  const float* x_sums;               // [m, groups]
  const int32_t *w_terms, *x_terms;  // bits of x: add_bit_terms()
  const float* bias;
  void* y;
  int64_t ldy;
  int m, n, k, n_padded;
  int output;           // GemmOutput
  int pairs;            // y may be written two neighbours at a time
  int boxes;            // y may be written in boxes of a tensor map: whole, aligned 16 bytes of 16-bit elements
  int group, groups;    // columns per scale, and how many
  uint32_t half_zero;   // f16, bf16: both halves hold the number that magic + code exceeds the value by
  int packs, k_blocks;  // ceil(n / 64), ceil(k / pack's columns)
  int m_tiles, n_tiles, band;
  int tile_count, wide_columns,
      narrow_m_tiles;       // wgmma: in all; n tiles of full height; m tiles of each n tile behind them
  int split, split_blocks;  // blocks of a cluster that share a tile's K; blocks of K of each
  int x_aligned;            // tokens begin at multiples of 16 bytes
  // gemm_skinny.cuh: blocks; 16-row tiles of one and how many warps share their K; batches of a warp, of a scale, of a
  // slot of sums; slots; tokens that have room
  int skinny_blocks, row_tiles, depth, warp_batches, scale_batches, slot_batches, slots;
  int half_batches, lane_words;  // of half a warp's pipeline of weights; words of a lane in a batch
  // gemv.cuh: blocks of K of a step; steps and groups of a warp; byte positions in shared memory
  int step_blocks, warp_steps, warp_groups, sums_at, x_at, weights_at;
  // gemm_split_k.cuh: blocks of K of a warpgroup and of a group; byte positions, beside weights_at
  int depth_blocks, group_blocks, scales_at, parts_at, barriers_at;
  uint32_t table[4];  // kTable, kTrellis: the bytes
};

}  // namespace lowbit::cuda
