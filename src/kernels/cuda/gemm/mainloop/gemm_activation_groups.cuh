#pragma once
// Many tokens with a scale per group of 32 columns (an activation group), from sm_80 on. A warp has 32 rows of weights
// and 32 of x; weights go straight from global memory to registers, x and its scales through a pipeline of stages in
// shared memory (cp.async), 128 columns a stage.
//
// Numerics: docs/numerics.md#matmul. An activation group is one tensor-core step. Sums start from the bits of 1.5 *
// 2^(23 - shift), so that they
//           are floats above that number when they end: one subtraction, exact, in place of a conversion.
// Limits:   2 1/2 float operations per output and activation group (two activation groups to a scale), as many cycles
//           as the products.
// Shapes:   any; activation groups behind the last one have zeros for weights, x and scales of x.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_mma.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/schedule/activation_groups.h"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"

namespace lowbit::cuda {

inline constexpr int kActivationGroupStages = 3, kStageActivationGroups = 128 / kActivationGroupColumns;

/// d = a b + start, start in each element: mma() would take four moves.
__device__ __forceinline__ void mma_from(int (&d)[4], const uint32_t* a, uint32_t b0, uint32_t b1, int start) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}

template <int Bits_, int PerScale_, int RowWarps_, int XWarps_>
struct ActivationGroupTileOf {
  static constexpr int kBits = Bits_, kPerScale = PerScale_, kRowWarps = RowWarps_, kXWarps = XWarps_;
  static constexpr int kThreads = 32 * kRowWarps * kXWarps, kRows = 32 * kRowWarps, kXRows = 32 * kXWarps;
  static constexpr int kXBytes = kXRows * 128, kStageBytes = kXBytes + kStageActivationGroups * kXRows * 4;
  using Order = FragmentOrder<kBits, 1>;
};

/// Block `block` of K of the tile's tokens, and their scales [activation group][token], into a stage; zeros outside of
/// x.
template <class Tile>
__device__ __forceinline__ void load_activation_groups(const ActivationGroupArgs& p, uint8_t* shared, uint32_t base,
                                                       int block, int m0) {
  const int at_stage = block % kActivationGroupStages * Tile::kStageBytes;
  const uint32_t stage = base + at_stage;
  for (int i = threadIdx.x; i < Tile::kXRows * 8; i += Tile::kThreads) {
    const int row = i / 8, chunk = i % 8, at = 128 * block + 16 * chunk, left = m0 + row < p.m ? p.k - at : 0;
    const int valid = left < 0 ? 0 : left > 16 ? 16 : left;
    const uint8_t* x = static_cast<const uint8_t*>(p.x) + (valid > 0 ? (m0 + row) * p.x_row_bytes + at : 0);
    const uint32_t to = x_chunk(stage, row, chunk);
    if (p.x_aligned) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(x), "r"(valid) : "memory");
    } else {
      for (int b = 0; b < 16; ++b) shared[to - base + b] = b < valid ? x[b] : uint8_t(0);
    }
  }
  for (int i = threadIdx.x; i < Tile::kXRows * kStageActivationGroups; i += Tile::kThreads) {
    const int row = i / kStageActivationGroups, x_group = i % kStageActivationGroups,
              of_row = kStageActivationGroups * block + x_group;
    const bool there = m0 + row < p.m && of_row < p.groups;
    const float* const from = p.x_scale + (there ? (m0 + row) * p.x_scale_row + of_row : 0);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(stage + Tile::kXBytes +
                                                                      (x_group * Tile::kXRows + row) * 4),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Scales or offsets of a lane's rows in group g of the weights; n: the first of them.
struct ActivationGroupPairs {
  float2 of[2];
  __device__ __forceinline__ void load(const ActivationGroupArgs& p, const float* factors, int g, int n) {
    const float* const from = factors + int64_t(g) * p.per_scale * p.n_padded + n;
    of[0] = __ldg(reinterpret_cast<const float2*>(from));
    of[1] = __ldg(reinterpret_cast<const float2*>(from + 16));
  }
};

/// The offsets' terms of group g: acc = fma(T, o, acc), for each of a lane's outputs.
__device__ __forceinline__ void add_offsets(const ActivationGroupArgs& p, int g, int n, int m, float (&acc)[2][16]) {
  ActivationGroupPairs offsets;
  offsets.load(p, p.offsets, g, n);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = min(m + i / 4 * 8 + (i & 1), p.m - 1);
    const float sum = __ldg(p.x_sums + int64_t(row) * p.weight_groups + g);
#pragma unroll
    for (int q = 0; q < 2; ++q) acc[q][i] = __fmaf_rn(sum, i & 2 ? offsets.of[q].y : offsets.of[q].x, acc[q][i]);
  }
}

/// One activation group, a tensor-core step: part += products * scale of x for a warp's 32 x 32 outputs; from zero
/// where it begins a group of the weights. `chunk`: of the stage, where the step's x begins.
template <class Tile>
__device__ __forceinline__ void multiply_group(const uint32_t (&a)[2][8], int step, uint32_t stage, int x_row,
                                               int chunk, const float* x_scales, bool begins, float (&part)[2][16]) {
  constexpr int kMagic = (127 + 23 - kFactor<Tile::kBits>) << 23 | 0x400000;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    uint32_t b[4];
    load_matrices(b, x_chunk(stage, x_row + 8 * (j + lane / 16) + lane % 8, chunk + lane / 8 % 2));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 xs = *reinterpret_cast<const float2*>(x_scales + 8 * (j + half));
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        int d[4];
        mma_from(d, a[q] + 4 * step, b[2 * half], b[2 * half + 1], kMagic);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& t = part[q][4 * (j + half) + c];
          const float v = __fadd_rn(__int_as_float(d[c]), -__int_as_float(kMagic)), by = c & 1 ? xs.y : xs.x;
          t = begins ? __fmul_rn(v, by) : __fmaf_rn(v, by, t);  // no -0: v = +0 where xs = 0
        }
      }
    }
  }
}

/// A group of the weights ends: acc += part * its scales. Clear: the next group begins with part = 0.
template <bool Clear>
__device__ __forceinline__ void scale_accumulate_part(float (&part)[2][16], const ActivationGroupPairs& scales,
                                                      float (&acc)[2][16]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int q = i / 16, c = i % 16;
    acc[q][c] = __fmaf_rn(part[q][c], c & 2 ? scales.of[q].y : scales.of[q].x, acc[q][c]);
    if (Clear) part[q][c] = 0.0f;
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 256 ? 2 : 4)
    gemm_activation_groups(const __grid_constant__ ActivationGroupArgs p) {
  constexpr GemmActivation kX = GemmActivation::kInt8;
  constexpr int kPerScale = Tile::kPerScale;
  using Order = typename Tile::Order;
  __shared__ __align__(128) uint8_t shared[kActivationGroupStages * Tile::kStageBytes];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row_warp = warp % Tile::kRowWarps;
  const int x_row = warp / Tile::kRowWarps * 32;  // of the tile, this warp's first
  const TileAt where = tile_at(p, p.n_tiles, blockIdx.x);
  const int m0 = where.m * Tile::kXRows, row0 = where.n * Tile::kRows + 32 * row_warp;
  const bool present = row0 / kPackRows < p.packs;
  const int pack = min(row0 / kPackRows, p.packs - 1), lane128 = row0 % kPackRows * 2 + lane;
  const uint8_t* const tiles = p.tiles + pack_index(pack, 0, p.k_blocks) * Order::kPackBytes;
  const int n = kPackRows * pack + row0 % kPackRows + lane / 4 * 2, m = m0 + x_row + 2 * (lane & 3);

  float acc[2][16], part[2][16];
#pragma unroll
  for (int i = 0; i < 32; ++i) acc[i / 16][i % 16] = part[i / 16][i % 16] = 0.0f;
  for (int i = 0; i < kActivationGroupStages - 1; ++i) load_activation_groups<Tile>(p, shared, base, i, m0);
  uint32_t ahead[2][Order::kLaneWords];
#pragma unroll
  for (int q = 0; q < 2; ++q) load_words<Order>(tiles, 0, lane128 + 32 * q, ahead[q]);
  ActivationGroupPairs scales;
  int x_group = 0, group = 0, left = 0;
#pragma unroll 1
  for (int block = 0; block < p.k_blocks; ++block) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kActivationGroupStages - 2) : "memory");
    __syncthreads();
    load_activation_groups<Tile>(p, shared, base, block + kActivationGroupStages - 1, m0);
    const int at_stage = block % kActivationGroupStages * Tile::kStageBytes;
    const float* const x_scales =
        reinterpret_cast<const float*>(shared + at_stage + Tile::kXBytes) + x_row + 2 * (lane & 3);
#pragma unroll 1
    for (int batch = 0; batch < 2; ++batch) {
      uint32_t a[2][8];
      const int next = 2 * block + batch + 1;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        decode<kX, Tile::kBits>(ahead[q], 0, a[q]);
        if (next < 2 * p.k_blocks)
          load_words<Order>(tiles + int64_t(next / 2) * (kPanelPacks * Order::kPackBytes), next % 2, lane128 + 32 * q,
                            ahead[q]);
      }
#pragma unroll
      for (int step = 0; step < kStepsPerBatch; ++step, ++x_group) {
        const bool begins = kPerScale == 0 ? left == 0 : step % kPerScale == 0;
        if (begins) {
          scales.load(p, p.scales, min(group, p.weight_groups - 1), n);
          left = p.per_scale;
        }
        --left;
        const bool last = x_group + 1 == p.groups;
        const bool ends = kPerScale == 0 ? left == 0 || last : (step + 1) % kPerScale == 0;
        multiply_group<Tile>(a, step, base + at_stage, x_row, 4 * batch + 2 * step,
                             x_scales + (2 * batch + step) * Tile::kXRows, kPerScale != 0 && begins, part);
        if (!ends || group >= p.weight_groups) continue;
        scale_accumulate_part<kPerScale == 0>(part, scales, acc);
        if (p.offsets != nullptr) add_offsets(p, group, n, m, acc);
        ++group;
        left = 0;
      }
    }
  }
  if (!present) return;
#pragma unroll
  for (int q = 0; q < 2; ++q)
    finish<kX, 32>(
        p, n + 16 * q, m0 + x_row, bias_pair(p, n + 16 * q), [&](int i) { return acc[q][i]; },
        [](int, int) { return 1.0f; });
}

}  // namespace lowbit::cuda
