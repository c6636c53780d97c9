#pragma once
// int8 x with a scale per group of 32 columns (an activation group): what the kernels for many and for few tokens
// share. Weights, their scales, x and its scales go through a pipeline of stages in shared memory (cp.async); a warp
// multiplies one activation group by one step of mma.sync.
//
// Numerics: docs/numerics.md#matmul. Sums start from the bits of 1.5 * 2^(23 - shift), so that they are floats above
// that number when they end: one subtraction, exact, in place of a conversion.
// Tokens:   lane 4 g + t has tokens 16 J + 4 t + {0, 1, 2, 3} of two column tiles (J: the pair), so that their scales
//           are one load of 16 bytes.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/schedule/activation_groups.h"

namespace lowbit::cuda {

/// d = a b + start, start in each element: mma() would take four moves.
__device__ __forceinline__ void mma_from(int (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1, int start) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, int valid = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}

/// A warp has 16 * RowTiles rows of weights by 8 * ColumnTiles tokens; RowWarps by XWarps of them are the tile. KWarps
/// times as many share K: each has a block of 128 columns of a stage.
template <int Bits_, int PerScale_, int RowTiles_, int ColumnTiles_, int RowWarps_, int XWarps_, int KWarps_>
struct ActivationGroupTileOf {
  static constexpr int kBits = Bits_, kPerScale = PerScale_, kRowTiles = RowTiles_, kColumnTiles = ColumnTiles_;
  static constexpr int kRowWarps = RowWarps_, kXWarps = XWarps_, kKWarps = KWarps_;
  static constexpr int kThreads = 32 * kRowWarps * kXWarps * kKWarps;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps, kTokens = 8 * kColumnTiles * kXWarps;
  static constexpr int kSums = 4 * kColumnTiles;  // of a lane and row tile
  using Order = FragmentOrder<kBits, 1>;
  static_assert(kColumnTiles % 2 == 0 && kPanelRows % kRows == 0);

  // A stage: weights, x, scales of x [activation group][token]. Scales of the weights have places of their own.
  static constexpr int kStages = 4, kGroups = 4 * kKWarps;
  static constexpr int kWeightBlock = kRows * 16 * kBits, kXBlock = kTokens * 128, kXScaleRow = kTokens + 4;
  static constexpr int kXAt = kKWarps * kWeightBlock, kXScalesAt = kXAt + kKWarps * kXBlock;
  static constexpr int kStageBytes = (kXScalesAt + kGroups * kXScaleRow * 4 + 127) / 128 * 128;
  // Scales of the groups that end in a stage, at most; one more than stages may be in use.
  static constexpr int kScaleRows = kPerScale == 0 ? kGroups : kGroups / kPerScale, kScaleSlots = 8;
  static constexpr int kScalesAt = kStages * kStageBytes, kScaleSlot = kScaleRows * kRows * 4;
  static constexpr int kEnd = kScalesAt + kScaleSlots * kScaleSlot;
  // Few tokens: parts of groups [group][token][row], of two stages.
  static constexpr int kPartRow = kRows + 2, kPartGroup = kTokens * kPartRow * 4, kPartsOfStage = kScaleRows * kPartGroup;
  static constexpr int kSharedBytes = kEnd + (kKWarps > 1 ? 2 * kPartsOfStage : 0);
};

/// Brings a tile's operands; all threads of the block take part.
template <class Tile>
struct ActivationGroupCopies {
  using Order = typename Tile::Order;
  const ActivationGroupArgs& p;
  uint8_t* shared;
  uint32_t base;
  int m0, row0;  // of the tile

  __device__ uint32_t stage(int s) const { return base + s % Tile::kStages * Tile::kStageBytes; }
  __device__ int scale_slot(int s) const {
    return Tile::kScalesAt + s % Tile::kScaleSlots * Tile::kScaleSlot;
  }

  /// In a pack lie runs of 128 lanes, each lane with up to 16 bytes; a tile of 32 rows has half of each.
  __device__ __forceinline__ void weights(int s) const {
    constexpr int kLaneBytes = Order::kLaneWords < 4 ? Order::kLaneWords * 4 : 16, kRun = kPackLanes * kLaneBytes;
    constexpr int kPacks = Tile::kRows < kPackRows ? 1 : Tile::kRows / kPackRows;
    constexpr int kTileRun = Tile::kRows < kPackRows ? kRun * Tile::kRows / kPackRows : kRun;
    constexpr int kChunks = Tile::kWeightBlock / 16;
    const uint32_t to = stage(s);
#pragma unroll
    for (int i = threadIdx.x; i < Tile::kKWarps * kChunks; i += Tile::kThreads) {
      const int block = s * Tile::kKWarps + i / kChunks, at = i % kChunks * 16;
      const int in_pack = Tile::kRows < kPackRows
                              ? at / kTileRun * kRun + row0 % kPackRows / Tile::kRows * kTileRun + at % kTileRun
                              : at;
      static_assert(kPacks <= kPanelPacks);  // two packs of a panel lie side by side
      if (block < p.k_blocks)
        copy_16(to + i * 16, p.tiles + pack_index(row0 / kPackRows, block, p.k_blocks) * Order::kPackBytes + in_pack);
    }
  }
  /// The first group that ends in stage s or behind it.
  __device__ int first_group(int s) const {
    return Tile::kPerScale == 0 ? Tile::kGroups * s / p.per_scale : Tile::kScaleRows * s;
  }
  __device__ __forceinline__ void scales(int s) const {
    constexpr int kChunks = Tile::kRows / 4;
    const int first = first_group(s);
#pragma unroll
    for (int i = threadIdx.x; i < Tile::kScaleRows * kChunks; i += Tile::kThreads) {
      const int group = first + i / kChunks;
      if (group < p.weight_groups)
        copy_16(base + scale_slot(s) + i * 16,
                p.scales + int64_t(group) * p.per_scale * p.n_padded + row0 + i % kChunks * 4);
    }
  }
  /// Tokens of a stage and their scales; zeros outside of x.
  __device__ __forceinline__ void x(int s) const {
    const uint32_t to = stage(s);
#pragma unroll
    for (int i = threadIdx.x; i < Tile::kKWarps * Tile::kTokens * 8; i += Tile::kThreads) {
      const int row = i / 8 % Tile::kTokens, chunk = i % 8, block = i / 8 / Tile::kTokens;
      const int at = 128 * (s * Tile::kKWarps + block) + 16 * chunk, left = m0 + row < p.m ? p.k - at : 0;
      const int valid = left < 0 ? 0 : left > 16 ? 16 : left;
      const uint8_t* from = static_cast<const uint8_t*>(p.x) + (valid > 0 ? (m0 + row) * p.x_row_bytes + at : 0);
      const uint32_t place = Tile::kXAt + block * Tile::kXBlock + row * 128 + ((chunk ^ swizzle(row)) << 4);
      if (p.x_aligned) {
        copy_16(to + place, from, valid);
      } else {
        for (int b = 0; b < 16; ++b) shared[to - base + place + b] = b < valid ? from[b] : uint8_t(0);
      }
    }
#pragma unroll
    for (int i = threadIdx.x; i < Tile::kTokens * Tile::kGroups; i += Tile::kThreads) {
      const int row = i / Tile::kGroups, x_group = i % Tile::kGroups, of_row = s * Tile::kGroups + x_group;
      const bool there = m0 + row < p.m && of_row < p.groups;
      const float* const from = p.x_scale + (there ? (m0 + row) * p.x_scale_row + of_row : 0);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                       to + Tile::kXScalesAt + (x_group * Tile::kXScaleRow + row) * 4),
                   "l"(from), "r"(there ? 4 : 0)
                   : "memory");
    }
  }
  /// The eight rows of a matrix are tokens 0, 1, 4, 5, 8, 9, 12, 13 (or two further): different banks.
  static __device__ __forceinline__ int swizzle(int token) { return (token & 1) | (token >> 1 & 6); }
};

/// A warp's place in a tile, and where its operands lie.
template <class Tile>
struct ActivationGroupLane {
  using Order = typename Tile::Order;
  int lane, row_tile, x_row, k_warp;  // first row tile and first token of the warp
  uint32_t x_at, x_swizzle;           // of ldmatrix, inside a stage

  __device__ ActivationGroupLane() {
    lane = threadIdx.x & 31;
    const int warp = threadIdx.x / 32, r = lane % 8;
    row_tile = warp % Tile::kRowWarps * Tile::kRowTiles;
    x_row = warp / Tile::kRowWarps % Tile::kXWarps * 8 * Tile::kColumnTiles;
    k_warp = warp / (Tile::kRowWarps * Tile::kXWarps);
    const int token = x_row + 4 * (r / 2) + 2 * (lane / 16) + r % 2;
    x_at = Tile::kXAt + k_warp * Tile::kXBlock + token * 128;
    x_swizzle = uint32_t((lane / 8 % 2) ^ ActivationGroupCopies<Tile>::swizzle(token)) << 4;
  }
  __device__ int first_token() const { return x_row + 4 * (lane & 3); }
  __device__ int first_row() const { return 16 * row_tile + lane / 4 * 2; }

  /// Operands of batch `batch` of this warp's block.
  __device__ __forceinline__ void decode_batch(const uint8_t* stage, int batch, uint32_t (&a)[Tile::kRowTiles][8]) const {
    constexpr int kWords = Order::kLaneWords, kLanes = 2 * Tile::kRows < kPackLanes ? 2 * Tile::kRows : kPackLanes;
    constexpr int kPackBytes = Tile::kRows < kPackRows ? Tile::kWeightBlock : Order::kPackBytes;
#pragma unroll
    for (int q = 0; q < Tile::kRowTiles; ++q) {
      const int tile = row_tile + q;
      const uint8_t* at = stage + k_warp * Tile::kWeightBlock + tile / 4 * kPackBytes + batch * (kLanes * kWords * 4);
      const int place = tile % 4 * 32 + lane;
      uint32_t w[kWords];
      if constexpr (kWords == 2) {
        const uint2 v = reinterpret_cast<const uint2*>(at)[place];
        w[0] = v.x, w[1] = v.y;
      } else {
#pragma unroll
        for (int c = 0; c < kWords / 4; ++c) {
          const uint4 v = reinterpret_cast<const uint4*>(at)[c * kLanes + place];
          w[4 * c] = v.x, w[4 * c + 1] = v.y, w[4 * c + 2] = v.z, w[4 * c + 3] = v.w;
        }
      }
      decode<GemmActivation::kInt8, Tile::kBits>(w, 0, a[q]);
    }
  }

  /// Activation group `step` of a block: part += products * scale of x; from zero where it begins a group of the
  /// weights. a: operands of its batch.
  template <bool Begins>
  __device__ __forceinline__ void multiply(const uint8_t* shared, uint32_t base, uint32_t stage, int step,
                                           const uint32_t (&a)[Tile::kRowTiles][8],
                                           float (&part)[Tile::kRowTiles][Tile::kSums]) const {
    constexpr int kMagic = (127 + 23 - kFactor<Tile::kBits>) << 23 | 0x400000;
    const uint32_t x = stage + x_at + (x_swizzle ^ (step << 5));
    const float* const x_scales = reinterpret_cast<const float*>(shared + (stage - base) + Tile::kXScalesAt) +
                                  (4 * k_warp + step) * Tile::kXScaleRow + first_token();
#pragma unroll
    for (int pair = 0; pair < Tile::kColumnTiles / 2; ++pair) {
      uint32_t b[4];
      load_matrices(b, x + pair * 2048);
      const float4 xs = *reinterpret_cast<const float4*>(x_scales + 16 * pair);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int q = 0; q < Tile::kRowTiles; ++q) {
          int d[4];
          mma_from(d, a[q] + 4 * (step % 2), b[2 * half], b[2 * half + 1], kMagic);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            float& t = part[q][8 * pair + 4 * half + c];
            const float v = __fadd_rn(__int_as_float(d[c]), -__int_as_float(kMagic));
            const float by = half == 0 ? (c & 1 ? xs.y : xs.x) : (c & 1 ? xs.w : xs.z);
            t = Begins ? __fmul_rn(v, by) : __fmaf_rn(v, by, t);  // no -0: v = +0 where xs = 0
          }
        }
      }
    }
  }
};

}  // namespace lowbit::cuda
