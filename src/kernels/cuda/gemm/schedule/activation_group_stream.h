#pragma once
// Arguments of gemm_activation_groups_stream(), and how its shared memory is laid out.

#include "kernels/cuda/gemm/schedule/activation_groups.h"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"

namespace lowbit::cuda {

inline constexpr int kStreamWarps = 8, kStreamSumWarps = 4, kMostStreamXSlots = 12, kMostStreamParts = 3;

/// Weights of one launch: those of q, k and v, say.
struct ActivationGroupStreamPart {
  const uint8_t* tiles;
  const float *scales, *bias;
  void* y;
  int64_t ldy;
  uint32_t table[2][4];         // table_in_order(), and split_table() for kTable
  int n, n_padded, first_tile;  // of all parts' tiles
};

/// GemmArgs of the first part, whose x is that of all.
struct ActivationGroupStreamArgs : ActivationGroupArgs {
  ActivationGroupStreamPart parts[kMostStreamParts];
  int part_count, tile_count;
  int x_slots;  // of a warp: blocks of K, all that it has, or some that are refilled
};

/// 16 * RowTiles rows of weights by 16 * Pairs tokens; eight warps share K, block by block of 128 columns. PerScale:
/// activation groups that share a scale of the weights; 0: any number, whose sums are scaled where they are added.
/// Whole: GemmProblem::whole_sums.
template <int Bits_, int PerScale_, int RowTiles_, int Pairs_, bool Whole_ = false>
struct ActivationGroupStreamOf {
  static constexpr int kBits = Bits_, kPerScale = PerScale_, kRowTiles = RowTiles_, kPairs = Pairs_;
  static constexpr bool kWhole = Whole_;
  static constexpr int kParts = kBits == kTable && kPairs == 1 ? 2 : 1;  // decode_int8_parts(), for few tokens
  static_assert(!kWhole || kPerScale > 1);
  static constexpr int kThreads = 32 * (kStreamWarps + kStreamSumWarps);
  static constexpr int kRows = 16 * kRowTiles, kTokens = 16 * kPairs;
  static constexpr int kGroups = kPerScale == 0 ? 4 : 4 / kPerScale;  // sums of an output in a block of K
  static_assert(kPerScale == 0 ? kRowTiles == 1 : 4 % kPerScale == 0);

  // Weights: blocks of K of a warp. A lane copies and reads the same bytes, kCopy at once and kLaneBytes of a batch.
  // Behind them are the words of a trellis that the block's first codes follow, of each quad.
  static constexpr int kLaneBytes = 4 * stored_width(kBits), kCopy = kLaneBytes < 16 ? kLaneBytes : 16;
  static constexpr int kWordBytes = 2 * kRowTiles * 32 * kLaneBytes,
                       kWeightBytes = kWordBytes + (kBits == kTrellis ? kRowTiles * 8 * kLaneBytes : 0);
  static constexpr int kWide = kBits == 8 ? 2 : 1;
  static constexpr int kWeightSlots = (kRowTiles * kPairs == 1   ? (kPerScale == 0 && stored_width(kBits) == 4 ? 8 : 12)
                                       : kRowTiles * kPairs == 4 ? 4
                                                                 : (kPerScale == 4 ? 6 : 4)) /
                                      kWide;
  // Parts: what groups of eight blocks of K come to, [warp][group][row tile][column tile][lane] of four floats, and,
  // where they are scaled later, the scales of x, [group][token].
  static constexpr int kPartSlots = kRowTiles * kPairs == 1 && kPerScale == 4 ? 4 : 2;
  static constexpr int kSumBytes = kGroups * kRowTiles * 2 * 512,
                       kPartBytes = kSumBytes + (kPerScale == 0 ? kGroups * 16 * 4 : 0),
                       kPartSlot = kStreamWarps * kPartBytes;
  // Scales of the weights: read when the parts are, so they stay longer than the weights.
  static constexpr int kScaleSlots = kWeightSlots + kPartSlots, kScaleBytes = kGroups * kRows * 4;
  // Of a block of K of x: boxes of the tensor maps.
  static constexpr int kXBytes = kTokens * 128, kXScaleBytes = kTokens * 16;

  static constexpr int kPartsAt = kStreamWarps * kWeightSlots * kWeightBytes,
                       kScalesAt = kPartsAt + kPartSlots * kPartSlot,
                       kBarriersAt = kScalesAt + kScaleSlots * kStreamWarps * kScaleBytes,
                       kXAt =
                           (kBarriersAt + 8 * (kStreamWarps * kMostStreamXSlots + 2 * kPartSlots) + 1023) / 1024 * 1024;
  static_assert(kXAt + 2 * kStreamWarps * (kXBytes + kXScaleBytes) <= 227 << 10, "x is refilled in two slots");
};
/// Of x and its scales, in a slot of all warps.
inline constexpr int stream_x_bytes(int tokens) { return kStreamWarps * tokens * (128 + 16); }

struct ActivationGroupStreamKernel {
  int bits;
  bool whole;
  ActivationGroupKernel kernel;
};
inline constexpr int kStreamInstances = 14;  // of a stored width
extern const ActivationGroupStreamKernel kActivationGroupStreams[4 * kStreamInstances],
    kTrellisStreams[kStreamInstances];

}  // namespace lowbit::cuda
