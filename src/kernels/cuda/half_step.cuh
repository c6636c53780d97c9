#pragma once
// Products of one to eight tokens with x in 16 bits, with the norm before and the gate or sum after them in a decoding
// step.
//
// Shapes:   a thread block has every gridDim'th tile of 16 rows of weights, or pair of a gate's tile and its factor's,
//           one after the other. Its warps share K: a warp takes up to four batches of 32 columns at a time.
// Memory:   a warp copies its weights and their scales to shared memory some rounds ahead, over tiles, too, the first
//           ones before the previous kernel has ended. x becomes halves in shared memory, in the order of the tensor
//           cores' operand: a lane's words of a batch are one load.
// Numerics: docs/numerics.md#activations-in-16-bits: products are exact; a tensor core adds those of up to 128 columns
//           that share a scale, a lane adds these sums times their scales, one thread adds the warps' sums in order.
// Limits:   memory, where there are weights enough; else the chain read x - norm - round - products - add.

#include "kernels/cuda/gemm/weight_order/fragment_order.h"
#include "kernels/cuda/half_matrices.cuh"
#include "kernels/cuda/half_operands.cuh"
#include "kernels/cuda/product_end.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/step_norm.cuh"

namespace lowbit::cuda {

inline constexpr int kHalfStepWarps = 8, kHalfStepThreads = 32 * kHalfStepWarps, kHalfStepBlocks = 2;  // of a processor
inline constexpr int kHalfBatches = 4;                   // of 32 columns, of a warp at a time
inline constexpr int kHalfSpanBytes = 16 * 4;            // scales of a tile's rows
inline constexpr int kHalfResults = 16 * kMostStepRows;  // of a warp and tile

/// Rounds that are under way.
template <int Bits, int kTiles>
inline constexpr int kHalfStages = (Bits == 2   ? 6
                                    : Bits == 4 ? 4
                                                : 3) -
                                   (kTiles == 2 ? 1 : 0);

struct HalfPart {
  const uint8_t* tiles;
  const float* scales;  // [groups, n_padded]
  const float* bias;
  float* y;
  int64_t ldy;
  int n, n_padded, first_tile;
};

struct HalfStepArgs {
  HalfPart part[kMostStepProducts];
  int parts, tiles;
  const float* rows;       // [m, k], or
  const uint16_t* halves;  // [m, ldx]
  int64_t ldx;
  const float* norm;
  float eps;
  uint32_t half_zero;
  ProductEnd end;
  int m, k, batches, k_blocks;
  int rounds;  // until a tile is done
  // A span is as many columns as share a scale: span_steps steps of 16, 2^span_shift of them, at most a warp's in a
  // round, which has round_spans. group_spans have a scale, 2^group_shift if that is not negative.
  int span_steps, span_shift, round_spans, group_spans, group_shift, groups;
  // Byte positions in shared memory; a warp's stage of a tile.
  int stage_bytes, x_at, results_at, norm_at, factors_at;
};

/// A tile of the launch, or tile `half` of a pair: the part that it belongs to, and its number there.
template <int kTiles>
struct HalfTile {
  int part, tile;
  __device__ __forceinline__ HalfTile(const HalfStepArgs& a, int of_launch, int half)
      : part(kTiles == 1 ? 0 : half), tile(of_launch) {
    if constexpr (kTiles == 1) {
      while (part + 1 < a.parts && of_launch >= a.part[part + 1].first_tile) ++part;
      tile -= a.part[part].first_tile;
    }
  }
};

/// Bytes of a batch of a tile; of the 64 rows that lie together, and of the panel that two batches of 128 rows are.
template <int Bits>
struct HalfBatch {
  static constexpr int kLaneWords = FragmentOrder<Bits, 2>::kLaneWords, kBytes = 32 * kLaneWords * 4,
                       kOfPack = 4 * kBytes, kPanel = 4 * kOfPack;
  static_assert(kPanel == kPanelPacks * FragmentOrder<Bits, 2>::kPackBytes);
};

/// A warp's copies, round by round over the tiles of its block.
template <int Bits, int kTiles>
struct HalfCopies {
  using Batch = HalfBatch<Bits>;
  static constexpr int kPieces = Batch::kBytes / 16, kCopies = kHalfBatches * kPieces / 32;  // of a batch, of a lane
  /// Where copy i is from, seen from the first one.
  static __device__ constexpr int copy_from(int i) {
    constexpr int kBatches = 32 / kPieces;
    return i * kBatches / 2 * Batch::kPanel + i * kBatches % 2 * Batch::kOfPack;
  }
  int tile = static_cast<int>(blockIdx.x), round = 0, stage = 0;
  int left = 0, span = 0;  // batches from the warp's first of the round on; the lane's scale
  const uint8_t* from[kTiles];
  const float* scales[kTiles];

  __device__ __forceinline__ void begin_tile(const HalfStepArgs& a) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int in_round = lane / kPieces;  // batch of the lane's first piece
    left = a.batches - warp * kHalfBatches;
    span = warp * a.round_spans + lane / 4;
#pragma unroll
    for (int half = 0; half < kTiles; ++half) {
      const HalfTile<kTiles> at(a, tile, half);
      const HalfPart& part = a.part[at.part];
      from[half] = part.tiles + pack_index(at.tile / 4, 0, a.k_blocks) * (Batch::kPanel / 2) +
                   at.tile % 4 * Batch::kBytes + (warp * kHalfBatches + in_round) / 2 * Batch::kPanel +
                   in_round % 2 * Batch::kOfPack + lane % kPieces * 16;
      scales[half] = part.scales + 16 * at.tile + lane % 4 * 4;
    }
  }
  __device__ __forceinline__ void copy_scales(const HalfStepArgs& a, uint8_t* to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane / 4 >= a.round_spans || (lane / 4 << a.span_shift) >= 2 * left) return;
    // The last batch may have a span behind the last column.
    const int group = min(a.group_shift >= 0 ? span >> a.group_shift : span / a.group_spans, a.groups - 1);
#pragma unroll
    for (int half = 0; half < kTiles; ++half) {
      const HalfTile<kTiles> at(a, tile, half);
      copy_to_shared_16(to + half * a.stage_bytes + lane * 16,
                        scales[half] + int64_t{group} * a.part[at.part].n_padded);
    }
  }

  __device__ __forceinline__ void next(const HalfStepArgs& a, uint8_t* stages) {
    if (tile < a.tiles) {
      if (round == 0) begin_tile(a);
      const int lane = static_cast<int>(threadIdx.x) % 32;
      uint8_t* const to = stages + stage * kTiles * a.stage_bytes;
#pragma unroll
      for (int half = 0; half < kTiles; ++half) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
          if (i * (32 / kPieces) + lane / kPieces < left)
            copy_to_shared_16(to + half * a.stage_bytes + (i * 32 + lane) * 16, from[half] + copy_from(i));
        from[half] += kHalfStepWarps * kHalfBatches / 2 * Batch::kPanel;
      }
      copy_scales(a, to + kHalfBatches * Batch::kBytes);
      left -= kHalfStepWarps * kHalfBatches;
      span += kHalfStepWarps * a.round_spans;
      stage = stage + 1 == kHalfStages<Bits, kTiles> ? 0 : stage + 1;
      if (++round == a.rounds) {
        round = 0;
        tile += static_cast<int>(gridDim.x);
      }
    }
    end_copies();
  }
};

// ---- x: [batch][token][4 lanes][4 words], word r of lane t: columns 2 t and 2 t + 1 of the batch's eighth r

template <bool kBf16>
__device__ __forceinline__ uint32_t rounded_pair(float first, float second) {
  if constexpr (kBf16) {
    return uint32_t{f32_to_bf16(first)} | uint32_t{f32_to_bf16(second)} << 16;
  } else {
    return uint32_t{f16_nearest(first)} | uint32_t{f16_nearest(second)} << 16;
  }
}
/// The word of columns `column` and `column` + 1 of token `row`.
__device__ __forceinline__ uint32_t* half_word(const HalfStepArgs& a, uint8_t* shared, int row, int column) {
  return reinterpret_cast<uint32_t*>(shared + a.x_at) + ((column / 32 * a.m + row) * 4 + column % 8 / 2) * 4 +
         column % 32 / 8;
}

/// The rows' factors of their norms. All threads.
__device__ __forceinline__ void half_norm_factors(const HalfStepArgs& a, uint8_t* shared, float* factors) {
  const int thread = static_cast<int>(threadIdx.x), quads = a.m * a.k / 4;
  auto* const rows = reinterpret_cast<float4*>(shared + a.results_at);  // until there are results
#pragma unroll 4
  for (int i = thread; i < quads; i += kHalfStepThreads) rows[i] = reinterpret_cast<const float4*>(a.rows)[i];
  __syncthreads();
  if (const int row = thread / 32; row < a.m) {
    const float factor = warp_inverse_rms(reinterpret_cast<const float*>(rows) + row * a.k, a.k, a.eps);
    if (thread % 32 == 0) factors[row] = factor;
  }
  __syncthreads();
}

/// Halves of f32 rows, normed if there is a norm. All threads; they meet afterwards.
template <bool kBf16>
__device__ __forceinline__ void round_half_rows(const HalfStepArgs& a, uint8_t* shared) {
  auto* const factors = reinterpret_cast<float*>(shared + a.factors_at);
  const auto* const by = reinterpret_cast<const float*>(shared + a.norm_at);
  if (a.norm != nullptr) half_norm_factors(a, shared, factors);
  const int quads = 8 * a.batches;
  for (int row = 0; row < a.m; ++row) {
    const float factor = a.norm != nullptr ? factors[row] : 1.0f;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < quads; i += kHalfStepThreads) {
      const int column = 4 * i;
      float4 v{0, 0, 0, 0};
      if (column < a.k) {
        v = *reinterpret_cast<const float4*>(a.rows + int64_t{row} * a.k + column);
        if (a.norm != nullptr) v = normed(v, factor, *reinterpret_cast<const float4*>(by + column));
      }
      uint32_t* const to = half_word(a, shared, row, column);
      to[0] = rounded_pair<kBf16>(v.x, v.y), to[4] = rounded_pair<kBf16>(v.z, v.w);
    }
  }
}
__device__ __forceinline__ void copy_half_rows(const HalfStepArgs& a, uint8_t* shared) {
  for (int row = 0; row < a.m; ++row)
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < 4 * a.batches; i += kHalfStepThreads) {
      const uint4 v = *reinterpret_cast<const uint4*>(a.halves + row * a.ldx + 8 * i);
      uint32_t* const to = half_word(a, shared, row, 8 * i);
      to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
    }
}

// ---- Products

template <int kWords>
__device__ __forceinline__ void load_half_words(const uint8_t* from, uint32_t (&words)[kWords]) {
  if constexpr (kWords == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if constexpr (kWords == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    words[0] = v.x, words[1] = v.y;
  } else {
    words[0] = *reinterpret_cast<const uint32_t*>(from);
  }
}

/// Adds the products of a warp's `count` batches times their scales: sums of rows 2 g and 2 g + 1, tokens 2 t and 2 t +
/// 1. `x`: the lane's words of the first batch. kSpan: a.span_steps, and all batches are there; 0: any.
template <int Bits, bool kBf16, int kTiles, int kSpan>
__device__ __forceinline__ void multiply_half_round(const HalfStepArgs& a, const uint8_t* stage, int count,
                                                    const uint4* x, float (&sums)[kTiles][4]) {
  using Batch = HalfBatch<Bits>;
  const int lane = static_cast<int>(threadIdx.x) % 32, span_steps = kSpan == 0 ? a.span_steps : kSpan;
  float d[kTiles][4] = {};
  const auto end_step = [&](int half, int steps, bool last) {  // so many are done
    if (steps % span_steps != 0 && !last) return;
    const int span = (steps - 1) / span_steps;
    const float2 by = *reinterpret_cast<const float2*>(stage + half * a.stage_bytes + kHalfBatches * Batch::kBytes +
                                                       span * kHalfSpanBytes + lane / 4 * 8);
    float(&sum)[4] = sums[half], (&of)[4] = d[half];
    sum[0] = __fmaf_rn(of[0], by.x, sum[0]), sum[1] = __fmaf_rn(of[1], by.x, sum[1]);
    sum[2] = __fmaf_rn(of[2], by.y, sum[2]), sum[3] = __fmaf_rn(of[3], by.y, sum[3]);
    of[0] = of[1] = of[2] = of[3] = 0;
  };
#pragma unroll
  for (int i = 0; i < kHalfBatches; ++i) {
    if (kSpan == 0 && i >= count) break;
    const bool last = kSpan == 0 && i + 1 == count;
    const uint4 b = x[i * 4 * a.m];
#pragma unroll
    for (int half = 0; half < kTiles; ++half) {
      uint32_t words[Batch::kLaneWords], values[8];
      load_half_words(stage + half * a.stage_bytes + i * Batch::kBytes + lane * Batch::kLaneWords * 4, words);
      half_values<Bits, kBf16>(words, a.half_zero, values);
      multiply_halves<kBf16>(d[half], values, b.x, b.y);
      end_step(half, 2 * i + 1, false);
      multiply_halves<kBf16>(d[half], values + 4, b.z, b.w);
      end_step(half, 2 * i + 2, last);
    }
  }
}
template <int Bits, bool kBf16, int kTiles>
__device__ __forceinline__ void multiply_any_half_round(const HalfStepArgs& a, const uint8_t* stage, int count,
                                                        const uint4* x, float (&sums)[kTiles][4]) {
  if (count < kHalfBatches || a.span_steps == 1) {
    multiply_half_round<Bits, kBf16, kTiles, 0>(a, stage, count, x, sums);
  } else if (a.span_steps == 2) {
    multiply_half_round<Bits, kBf16, kTiles, 2>(a, stage, count, x, sums);
  } else if (a.span_steps == 4) {
    multiply_half_round<Bits, kBf16, kTiles, 4>(a, stage, count, x, sums);
  } else {
    multiply_half_round<Bits, kBf16, kTiles, 8>(a, stage, count, x, sums);
  }
}

/// A thread's output of a tile, as known before there are sums: row thread % 16 of the tile, token thread / 16, of
/// threads that begin with another warp for each tile.
template <int kTiles>
struct HalfOutput {
  int of_warp;  // among a warp's results
  float* to = nullptr;
  float bias = 0, second_bias = 0, before = 0;
  __device__ __forceinline__ HalfOutput(const HalfStepArgs& a, int of_launch, int ordinal) {
    of_warp = (static_cast<int>(threadIdx.x) + 32 * (kHalfStepWarps - ordinal % kHalfStepWarps)) % kHalfStepThreads;
    const int m = of_warp / 16;
    if (m >= a.m) return;
    const HalfTile<kTiles> at(a, of_launch, 0);
    const HalfPart& part = a.part[at.part];
    const int n = 16 * at.tile + of_warp % 16;
    if (n >= part.n) return;
    to = part.y + m * part.ldy + n;
    if (part.bias != nullptr) bias = part.bias[n];
    if (kTiles == 2 && a.part[1].bias != nullptr) second_bias = a.part[1].bias[n];
    if (a.end == ProductEnd::kAdd) before = *to;
  }
  /// results [warps][tiles][tokens][16].
  __device__ __forceinline__ void store(const HalfStepArgs& a, const float* results) const {
    if (to == nullptr) return;
    float sums[kTiles] = {};
#pragma unroll
    for (int warp = 0; warp < kHalfStepWarps; ++warp)
#pragma unroll
      for (int half = 0; half < kTiles; ++half)
        sums[half] = __fadd_rn(sums[half], results[(warp * kTiles + half) * kHalfResults + of_warp]);
    float y = __fadd_rn(sums[0], bias);
    if constexpr (kTiles == 2) y = gated(y, __fadd_rn(sums[1], second_bias), a.end);
    *to = a.end == ProductEnd::kAdd ? __fadd_rn(before, y) : y;
  }
};

/// kTiles 2: the tiles are those of parts 0 and 1, and become one output.
template <int Bits, bool kBf16, int kTiles>
__global__ void __launch_bounds__(kHalfStepThreads, kHalfStepBlocks)
    multiply_half_step(const __grid_constant__ HalfStepArgs a) {
  LOWBIT_DYNAMIC_SHARED(shared);
  constexpr int kStages = kHalfStages<Bits, kTiles>;
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  uint8_t* const stages = shared + warp * kStages * kTiles * a.stage_bytes;
  HalfCopies<Bits, kTiles> copies;
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) copies.next(a, stages);
  if (a.norm != nullptr)
#pragma unroll 4
    for (int i = 4 * thread; i < a.k; i += 4 * kHalfStepThreads)
      *reinterpret_cast<float4*>(shared + a.norm_at + 4 * i) = *reinterpret_cast<const float4*>(a.norm + i);
  wait_for_predecessor();
  if (a.rows != nullptr) {
    round_half_rows<kBf16>(a, shared);
  } else {
    copy_half_rows(a, shared);
  }
  __syncthreads();
  const auto* const x =
      reinterpret_cast<const uint4*>(shared + a.x_at) + warp * kHalfBatches * 4 * a.m + min(g, a.m - 1) * 4 + t;
  auto* const results = reinterpret_cast<float*>(shared + a.results_at);
  int stage = 0, ordinal = 0;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < a.tiles; tile += static_cast<int>(gridDim.x), ++ordinal) {
    const HalfOutput<kTiles> out(a, tile, ordinal);
    float sums[kTiles][4] = {};
    int left = a.batches - warp * kHalfBatches;
    const uint4* of_round = x;
#pragma unroll 1
    for (int round = 0; round < a.rounds; ++round) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
      if (left > 0)
        multiply_any_half_round<Bits, kBf16, kTiles>(a, stages + stage * kTiles * a.stage_bytes,
                                                     min(left, kHalfBatches), of_round, sums);
      left -= kHalfStepWarps * kHalfBatches;
      of_round += kHalfStepWarps * kHalfBatches * 4 * a.m;
      stage = stage + 1 == kStages ? 0 : stage + 1;
      __syncwarp();
      copies.next(a, stages);
    }
    float* const of_tile = results + (ordinal & 1) * kHalfStepWarps * kTiles * kHalfResults;
#pragma unroll
    for (int half = 0; half < kTiles; ++half) {
      float* const to = of_tile + (warp * kTiles + half) * kHalfResults + 2 * g;
      const float(&of)[4] = sums[half];
      if (2 * t < a.m) *reinterpret_cast<float2*>(to + 2 * t * 16) = {of[0], of[2]};
      if (2 * t + 1 < a.m) *reinterpret_cast<float2*>(to + (2 * t + 1) * 16) = {of[1], of[3]};
    }
    __syncthreads();
    out.store(a, of_tile);  // these results are written again behind the next tile's barrier
  }
}

}  // namespace lowbit::cuda
