#pragma once
// Arguments of a sequence kernel, its configuration, and the layout of its shared memory.

#include "kernels/cuda/gru/device_cell.h"

namespace lowbit::cuda::gru {

struct SequenceArgs {
  Cell cell;
  Call call;
  int32_t blocks, at_once;
};

/// Copies of h in shared memory: one where all of a block is done with it before the next one comes.
constexpr LOWBIT_HD int halves_of_h(GruPath path, int split) { return path == GruPath::kGrid && split == 1 ? 1 : 2; }

/// Bytes of a warp's sums for the other warp of its group: of three gates, 16 units and half of the tile.
constexpr LOWBIT_HD int bytes_of_sums(int tile, int split) {
  return split == 1 ? 0 : (3 * kGroup * tile / split * 4 + 511) / 512 * 512;
}

/// In a cluster a warp's codes go to a block at once, not 16 bytes at a time: that takes longer, but not much longer
/// for many.
constexpr LOWBIT_HD bool sends_bulk(GruPath path, int tile, int split) {
  return path == GruPath::kCluster && split > 1 && tile > 16;
}

template <class N_, int NT_, GruPath P_, bool Resident_, bool Single_, int KT_, int S_>
struct Config {
  using N = N_;
  using T = typename N::T;
  static constexpr bool kF32 = N::kNumber == Number::kF32, kResident = Resident_, kSingle = Single_;
  static constexpr int L = kF32 ? 1 : 2, NT = NT_, KT = KT_, S = S_;
  static constexpr GruPath P = P_;
  static constexpr int kTile = 8 * NT;  // sequences
  static constexpr int kHalves = halves_of_h(P, S);
  static constexpr int kChains = NT == 1 ? 2 : 1;  // sums per output, to hide the matrix unit's latency
  // Of a lane: units 2 i and 2 i + 1 of sequences 2 j and 2 j + 1. kSingle: one of the two units, of the first
  // sequence; every column of the matrix unit's right side is that sequence, so that four lanes have the same sums. Two
  // warps of a group (S): either the first and the second half of the sequences, or (interleaved) the even and the odd
  // ones.
  static constexpr bool kInterleaved = NT % S != 0;
  static constexpr int kUnits = kSingle ? 1 : 2, kSequences = kSingle || kInterleaved ? 1 : 2;
  static constexpr int kPerTile = kUnits * kSequences;
  static constexpr int kSent = kSingle ? 1 : kTile;  // sequences whose h goes to the other blocks
  static constexpr int kOwn = kTile / S;             // sequences whose gates a warp computes
  static constexpr int kOwnTiles = kInterleaved ? NT : NT / S, kOwnEach = kOwn / kOwnTiles, kOwnSent = kSent / S;
  static constexpr int kElements = kOwnTiles * kPerTile;  // of a lane
  static constexpr int kCopies = (kOwn + 7) / 8;          // rows of ih that a lane copies
  static constexpr int kGroupBytes = kTile * kGroup;      // of a group's codes
  static constexpr int kSumBytes = bytes_of_sums(kTile, S);
  static constexpr bool kBulk = sends_bulk(P, kTile, S);
  // Independent work of a step follows its sending, while codes of h are under way.
  static constexpr bool kWorksBehind = P == GruPath::kCluster && !kSingle;
  static constexpr bool kPartsAhead = P == GruPath::kCluster && NT == 1;  // more have no registers for them
  static constexpr int kItems = L * kOwnSent,
                       kSenders = 32 / kItems * kItems;  // rows that a warp sends to a block; lanes
  static_assert(kItems <= 32);
  static_assert(!kSingle || NT == 1);
  static_assert(S == 1 || (!kSingle && L == 1 && P != GruPath::kBlock));
};

constexpr int kIhSlots = 4;  // steps of ih in shared memory, a power of two

/// Where things lie in shared memory, in bytes.
struct SharedLayout {
  int weights, h, ih, stage, sums, tables, barriers, bytes;
};
/// The first pair of K steps of warp `part` of a group's `split` warps; the first warp has the most.
inline LOWBIT_HD int first_pair(int ksteps, int split, int part) { return (ksteps / 2 * part + split - 1) / split; }
inline LOWBIT_HD int align_up(int v, int to) { return (v + to - 1) / to * to; }
inline LOWBIT_HD int stride_of_h(int hidden) { return align_up(hidden, 64) + 16; }  // fused.cuh
inline LOWBIT_HD int width_of_h(int hidden) { return align_up(hidden, 64); }
/// K steps of a group's weights that lie in shared memory.
inline LOWBIT_HD int shared_ksteps(const Cell& c, int in_registers, bool resident, int split) {
  const int most = split == 1 ? c.r.ksteps : 2 * first_pair(c.r.ksteps, split, 1);
  return resident && most > in_registers ? most - in_registers : 0;
}
inline LOWBIT_HD SharedLayout shared_layout(const Cell& c, int warps, int tile, int ksteps, GruPath path, bool f32,
                                            int split) {
  SharedLayout s{};
  const int planes = f32 ? 1 : 2;
  int at = 0;
  s.weights = at;
  at += warps * ksteps * 3 * kTileBytes;
  s.h = at;
  at += halves_of_h(path, split) * planes * tile * width_of_h(c.h);
  s.ih = at;
  at += warps * kIhSlots * tile / split * 3 * kGroup * c.ih_bytes;
  s.stage = at;
  // Two stages for bulk copies: one may still read what the step before has staged.
  if (path != GruPath::kBlock) at += (sends_bulk(path, tile, split) ? 2 : 1) * warps * planes * tile / split * kGroup;
  s.sums = at;
  at += warps * bytes_of_sums(tile, split);
  s.tables = at;
  if (f32)
    for (int i = 0; i < 3; ++i) at += align_up(4 * c.table[i].entries, 16);
  s.barriers = at;
  at += 16;
  s.bytes = at;
  return s;
}

}  // namespace lowbit::cuda::gru
