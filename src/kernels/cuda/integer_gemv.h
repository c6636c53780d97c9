#pragma once
// The order of weights that the integer GEMV reads, and the numbers its launch is made of.
//
// A row is cut into blocks of 64 bytes: 4 lanes t of 4 words j. A byte of a word holds 8 / B fields of B bits. Field f of
// word j is slot s = j * (8 / B) + f; a slot is 16 consecutive columns, four to a lane:
//
//     column 16 s + 4 t + b of the block  ->  bits B f .. B f + B - 1 of byte b of word j of lane t
//
// Lane t's four words are one 16-byte load, `word & (mask << B f)` is an operand of four codes as it stands, and two
// neighbouring slots are the 32 columns of one mma.m16n8k32. Codes are unsigned: value = mul * code + add.

#include <cstdint>

#include "kernels/cuda_api.h"

namespace lowbit::cuda {

inline constexpr int kBlockBytes = 64, kTileRows = 16, kMaxGemvRows = 8;

template <int B>
struct GemvOrder {
  static constexpr int kFields = 8 / B;           // of a byte
  static constexpr int kColumns = 512 / B;        // of a block
  static constexpr int kSlots = 4 * kFields;      // of a block
  static constexpr uint32_t kMask = 0x01010101u * ((1u << B) - 1u);
};

struct GemvArgs {
  const uint8_t* codes;
  int64_t row_bytes;
  const float *scales, *offsets, *bias;  // scales and offsets [groups, n]
  const void* x;
  const float* x_scales;
  void* y;
  int64_t ldx, ldy;
  int n, k, m, groups;
  int group_shift;  // grouped: a group is 32 << group_shift columns
  int mul, add;
  bool x_groups;
  Element x_element, y_element;
  // How the work is cut (gemv_launch.h).
  int tiles, blocks_of_row;         // tiles of 16 rows; blocks of 64 bytes
  int segment, segments;            // blocks of a unit; units of a tile
  int unit_stride, unit_bytes;      // bytes of a row of a unit in shared memory, and of a unit
  int buffers;                      // units in flight
  int batch;                        // tiles between two epilogues
  int x_stride;                     // bytes of a row of x in shared memory
  int x_at, sums_at, x_sums_at, x_scales_at, largest_at, barriers_at, scales_at;  // byte positions in shared memory
};

}  // namespace lowbit::cuda
