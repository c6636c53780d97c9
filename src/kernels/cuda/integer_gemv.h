#pragma once
// The order of weights that the integer GEMV reads, and the numbers its launch is made of.
//
// Tiles of 16 rows. A row is cut into blocks of 64 bytes; a tile holds its blocks one after the other, each as 16 rows
// of 64 bytes, so that a run of blocks is one copy and a warp's 16-byte loads meet every bank once. A row of a block is
// 4 lanes t of 4 words j. A byte of a word holds 8 / B fields of B bits. Field f of word j is slot s = j * (8 / B) + f;
// a slot is 16 consecutive columns, four to a lane:
//
//     column 16 s + 4 t + b of the block  ->  bits B f .. B f + B - 1 of byte b of word j of lane t
//
// Lane t's four words are one 16-byte load, `word & (mask << B f)` is an operand of four codes as it stands, and two
// neighbouring slots are the 32 columns of one mma.m16n8k32. Codes are unsigned: value = mul * code + add.

#include <cstdint>

#include "kernels/cuda_operands.h"

namespace lowbit::cuda {

inline constexpr int kBlockBytes = 64, kTileRows = 16, kTileBlockBytes = kTileRows * kBlockBytes, kMaxGemvRows = 8;

template <int B>
struct GemvOrder {
  static constexpr int kFields = 8 / B;       // of a byte
  static constexpr int kColumns = 512 / B;    // of a block
  static constexpr int kSlots = 4 * kFields;  // of a block
  static constexpr uint32_t kMask = 0x01010101u * ((1u << B) - 1u);
};

/// bit_gemv.cuh: tiles and warps of a thread block, at most, and where its weights begin in shared memory.
inline constexpr int kMostBitTiles = 8, kBitWeightsAt = 640;
template <int kPer>
inline constexpr int kBitWarps = kPer == 2 ? 16 : 20;

struct GemvArgs {
  const uint8_t* codes;
  const float *scales, *offsets, *bias;  // scales and offsets [groups, factor_rows]
  const void* x;
  const float* x_scales;
  void* y;
  int64_t ldx, ldy;
  int n, factor_rows, k, m, groups, groups_per_scale;
  int group_shift;  // grouped: a group is 32 << group_shift columns
  int mul, add;
  bool x_groups;
  bool plain;  // y is f32; no offsets, no bias, one scale of x
  Element x_element, y_element;
  // How the work is cut (integer_gemv.cu).
  int least_tiles, longer;  // tiles of a thread block; the first `longer` ones have one more
  int blocks_of_row;        // blocks of 64 bytes
  int blocks_of_chunk, chunks_of_tile;
  int buffers, chunk_bytes;  // chunks in flight, and bytes of one
  int teams, team_warps;     // teams work on chunks of their own; warps of one share a chunk's blocks
  int team_inverse;          // warp / team_warps == warp * team_inverse >> 16
  int batch;                 // tiles between two epilogues
  int x_stride;              // bytes of a token's row in shared memory
  // Byte positions in shared memory.
  int x_at, planes_at, sums_at, x_sums_at, x_scales_at, largest_at, barriers_at, scales_at;
};

}  // namespace lowbit::cuda
