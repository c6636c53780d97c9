#pragma once
// int8 x with a scale per group of 32 columns (an activation group): what the kernels for many and for few tokens
// share. Weights, their scales, x and its scales go through a pipeline of stages in shared memory (cp.async); a warp
// multiplies one activation group by one step of mma.sync.
//
// Numerics: docs/numerics.md#matmul. Sums start from the bits of 1.5 * 2^(23 - shift), so that they are floats above
// that number when they end: one subtraction, exact, in place of a conversion.
// Scales of x lie in the order in which lanes want them: those of a lane's four tokens in a pair of column tiles are
// one load of 16 bytes.

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

  // A stage: x, weights, scales of x [activation group][token]. Scales of the weights have stages of their own.
  static constexpr int kStages = 4, kGroups = 4 * kKWarps;
  static constexpr int kWeightBlock = kRows * 16 * stored_width(kBits), kXBlock = kTokens * 128,
                       kXScaleRow = kTokens + 4;
  static constexpr int kWeightsAt = kKWarps * kXBlock, kXScalesAt = kWeightsAt + kKWarps * kWeightBlock;
  static constexpr int kStageBytes = (kXScalesAt + kGroups * kXScaleRow * 4 + 1023) / 1024 * 1024;
  // Scales of the groups that end in a stage, at most; one more than stages may be in use.
  static constexpr int kScaleRows = kPerScale == 0 ? kGroups : kGroups / kPerScale, kScaleSlots = 8;  // kStages + 1
  static constexpr int kScalesAt = kStages * kStageBytes, kScaleSlot = kScaleRows * kRows * 4;
  static constexpr int kEnd = kScalesAt + kScaleSlots * kScaleSlot;
  // Few tokens: parts of groups [group][token][row], of two stages.
  static constexpr int kPartRow = kRows + 4, kPartGroup = kTokens * kPartRow * 4,
                       kPartsOfStage = kScaleRows * kPartGroup;
  static constexpr int kSharedBytes = kEnd + (kKWarps > 1 ? 2 * kPartsOfStage : 16 * kStages);
};

/// Where stage s of a tile lies in shared memory, and the scales of the weights' groups that end in it.
template <class Tile>
struct ActivationGroupStages {
  uint32_t base;
  __device__ uint32_t stage(int s) const { return base + s % Tile::kStages * Tile::kStageBytes; }
  __device__ int scale_slot(int s) const { return Tile::kScalesAt + s % Tile::kScaleSlots * Tile::kScaleSlot; }
  /// The first group that ends in stage s of a tile or behind it.
  static __device__ int first_group(const ActivationGroupArgs& p, int s) {
    return Tile::kPerScale == 0 ? Tile::kGroups * s / p.per_scale : Tile::kScaleRows * s;
  }
};

/// Scales of x of a stage, by Threads threads: 4 bytes at a time, into the order in which lanes read them; 0 outside.
template <class Tile, int Threads>
struct ActivationGroupXScales {
  static constexpr int kRowStep = Threads / Tile::kGroups, kCopies = Tile::kTokens / kRowStep;
  static_assert(kCopies * kRowStep == Tile::kTokens);
  const float* from;
  int x_group, rows;  // of the thread's first scale; tokens from there on
  uint32_t to;

  __device__ ActivationGroupXScales(const ActivationGroupArgs& p, int thread, int m0) {
    const int row = thread / Tile::kGroups;
    x_group = thread % Tile::kGroups;
    from = p.x_scale + min(m0 + row, p.m - 1) * p.x_scale_row + x_group;
    rows = p.m - m0 - row;
    to = Tile::kXScalesAt + (x_group * Tile::kXScaleRow + place(row)) * 4;
  }
  static __device__ constexpr int place(int row) { return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2; }
  __device__ __forceinline__ void copy(const ActivationGroupArgs& p, uint32_t stage, int s) const {
    const int first = Tile::kGroups * s;
    const bool there = first + x_group < p.groups;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      // Rows that are multiples of 16 apart, or less than that from a multiple of 16.
      const uint32_t place_step = kRowStep % 16 == 0 ? i * kRowStep : place(i * kRowStep);
      const bool yes = there && rows > i * kRowStep;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(stage + to + place_step * 4),
                   "l"(yes ? from + i * kRowStep * p.x_scale_row + first : from), "r"(yes ? 4 : 0)
                   : "memory");
    }
  }
};

/// Brings a tile's operands; all threads of the block take part. What a thread copies is the same in all stages, so
/// that little is left to work out for each.
template <class Tile>
struct ActivationGroupCopies : ActivationGroupStages<Tile> {
  using Order = typename Tile::Order;
  const ActivationGroupArgs& p;
  int m0, row0;  // of the tile
  uint32_t thread;
  const uint8_t *weight_from, *x_from;
  int x_rows, x_left;  // tokens from the thread's first one on; columns from its first byte on
  ActivationGroupXScales<Tile, Tile::kThreads> x_scales;

  // In a pack lie runs of 128 lanes, each lane with up to 16 bytes; a tile of 32 rows has half of each.
  static constexpr int kLaneBytes = Order::kLaneWords < 4 ? Order::kLaneWords * 4 : 16, kRun = kPackLanes * kLaneBytes;
  static constexpr int kTileRun = Tile::kRows < kPackRows ? kRun * Tile::kRows / kPackRows : kRun;
  static constexpr int kBlockStep = kPanelPacks * Order::kPackBytes;  // to the next block of K
  static __device__ constexpr int in_pack(int at) {
    return Tile::kRows < kPackRows ? at / kTileRun * kRun + at % kTileRun : at;
  }

  __device__ ActivationGroupCopies(const ActivationGroupArgs& args, uint32_t base, int m0, int row0)
      : ActivationGroupStages<Tile>{base},
        p(args),
        m0(m0),
        row0(row0),
        thread(threadIdx.x),
        x_scales(args, threadIdx.x, m0) {
    constexpr uint32_t kChunks = Tile::kWeightBlock / 16;
    weight_from = p.tiles + pack_index(row0 / kPackRows, 0, p.k_blocks) * Order::kPackBytes +
                  (thread / kChunks) * kBlockStep + in_pack(thread % kChunks * 16) +
                  (Tile::kRows < kPackRows ? row0 % kPackRows / Tile::kRows * kTileRun : 0);
    const int row = thread / 8 % Tile::kTokens, at = thread / 8 / Tile::kTokens * 128 + thread % 8 * 16;
    x_from = static_cast<const uint8_t*>(p.x) + min(m0 + row, p.m - 1) * p.x_row_bytes + at;
    x_rows = p.m - m0 - row, x_left = p.k - at;
  }

  __device__ __forceinline__ void weights(int s) const {
    constexpr int kChunks = Tile::kWeightBlock / 16, kAll = Tile::kKWarps * kChunks;
    const uint32_t to = this->stage(s) + Tile::kWeightsAt + thread * 16;
    const uint8_t* const from = weight_from + int64_t(s) * (Tile::kKWarps * kBlockStep);
    const int left = p.k_blocks - s * Tile::kKWarps - static_cast<int>(thread / kChunks);
#pragma unroll
    for (int i = 0; i < kAll; i += Tile::kThreads) {
      const int block = i / kChunks;
      if ((kAll % Tile::kThreads == 0 || i + static_cast<int>(thread) < kAll) && block < left)
        copy_16(to + i * 16, from + block * kBlockStep + in_pack(i % kChunks * 16));
    }
  }
  __device__ __forceinline__ void scales(int s) const {
    constexpr uint32_t kChunks = Tile::kRows / 4, kAll = Tile::kScaleRows * kChunks;
    const int first = this->first_group(p, s);
#pragma unroll
    for (uint32_t i = 0; i < kAll; i += Tile::kThreads) {
      const int group = first + static_cast<int>((i + thread) / kChunks);
      if (i + thread < kAll && group < p.weight_groups)
        copy_16(this->base + this->scale_slot(s) + (i + thread) * 16,
                p.scales + int64_t(group * p.per_scale) * p.n_padded + row0 + (i + thread) % kChunks * 4);
    }
  }
  /// Tokens of a stage and their scales; zeros outside of x.
  __device__ __forceinline__ void x(int s) const {
    constexpr int kRowStep = Tile::kThreads / 8, kAll = Tile::kKWarps * Tile::kTokens;
    static_assert(kAll % kRowStep == 0 && (Tile::kTokens % kRowStep == 0 || kRowStep % Tile::kTokens == 0));
    const uint32_t row = thread / 8 % Tile::kTokens;
    const uint32_t to = this->stage(s) + thread / 8 * 128 + ((thread % 8 ^ (row & 7)) << 4);
    const int left = x_left - s * (Tile::kKWarps * 128);
#pragma unroll
    for (int i = 0; i < kAll; i += kRowStep) {
      const int block = i / Tile::kTokens, row_step = i % Tile::kTokens;
      const int valid = x_rows > row_step ? max(0, min(16, left - block * 128)) : 0;
      const uint8_t* const from =
          valid > 0 ? x_from + row_step * p.x_row_bytes + s * (Tile::kKWarps * 128) + block * 128 : x_from;
      if (p.x_aligned)
        copy_16(to + i * 128, from, valid);
      else
        copy_bytes(to + i * 128, from, valid);
    }
    x_scales.copy(p, this->stage(s), s);
  }
  static __device__ __noinline__ void copy_bytes(uint32_t to, const uint8_t* from, int valid) {
    for (int b = 0; b < 16; ++b)
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + b), "r"(b < valid ? uint32_t(from[b]) : 0u) : "memory");
  }
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
    x_at = k_warp * Tile::kXBlock + (x_row + 8 * (lane / 16) + r) * 128;
    x_swizzle = uint32_t((lane / 8 % 2) ^ r) << 4;
  }
  __device__ int first_token() const { return x_row + 2 * (lane & 3); }
  __device__ int first_row() const { return 16 * row_tile + lane / 4 * 2; }

  /// Operands of batch `batch` of this warp's block, which follows what `history` is of.
  __device__ __forceinline__ void decode_batch(const uint32_t (&table)[4], const uint8_t* stage, int batch,
                                               RowHistory<Tile::kBits> (&history)[Tile::kRowTiles],
                                               uint32_t (&a)[Tile::kRowTiles][8]) const {
    constexpr int kWords = Order::kLaneWords, kLanes = 2 * Tile::kRows < kPackLanes ? 2 * Tile::kRows : kPackLanes;
    constexpr int kPackBytes = Tile::kRows < kPackRows ? Tile::kWeightBlock : Order::kPackBytes;
#pragma unroll
    for (int q = 0; q < Tile::kRowTiles; ++q) {
      const int tile = row_tile + q;
      const uint8_t* at = stage + Tile::kWeightsAt + k_warp * Tile::kWeightBlock + tile / 4 * kPackBytes +
                          batch * (kLanes * kWords * 4);
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
      decode_int8<Tile::kBits>(w, table, history[q], a[q]);
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
                                  (4 * k_warp + step) * Tile::kXScaleRow + x_row + 4 * (lane & 3);
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
