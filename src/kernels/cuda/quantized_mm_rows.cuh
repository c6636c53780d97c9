#pragma once
// quantized_mm<BITS> for three and more tokens. x is cut into parts in shared memory, a pass of columns at a time;
// the first parts have sums of their own, the two small ones share theirs.
//
// Shapes:   a thread block makes 32 * RowWarps outputs of up to 16 * column_warps tokens. Its warps are RowWarps x
//           column_warps x depth: a warp multiplies 32 rows of weights with 16 tokens; depth warps share the pieces
//             of a pass.
// Clusters: on compute capability 9 a cluster's blocks share K; each adds up a share of the outputs, in ascending
// order.
// Memory:   a lane's weights are in registers one piece ahead, x is read once per block.
// Error:    sums of 256 columns are added to f32 sums by ordinary additions, since tensor cores truncate.
// Limits:   the tensor cores, from 32 tokens on; below, cutting x and latencies.

#include "kernels/cuda/quantized_mm_decode.cuh"

namespace lowbit::cuda {

inline constexpr int kWarpRowsOfX = 16, kPassQuads = 8;

/// How the work is cut (quantized_mm.cu).
struct RowsCut {
  int column_warps, depth;        // warps side by side; warps that share K
  int rows_of_x;                  // of a block
  int split, split_pieces;        // blocks of a cluster; pieces of K of each
  int pass_pieces, column_bytes;  // pieces of a pass; bytes of one part of a token's row in shared memory
};

/// A piece: what four lanes hold of a weight row.
template <int BITS>
struct Piece {
  static constexpr int kLaneBytes = BITS == 1 ? 8 : 16, kLaneColumns = 8 * kLaneBytes / BITS;
  static constexpr int kBytes = 4 * kLaneBytes, kColumns = 4 * kLaneColumns, kQuads = kColumns / 32;
  static constexpr int kWords = kLaneBytes / 4, kOfWarp = kPassQuads / kQuads;  // pieces of a warp in a pass
};

#if LOWBIT_SM90
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float load_of_block(uint32_t address, int rank) {
  uint32_t there;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
  return v;
}
#endif

/// A lane's words of two rows of weights, 16 rows apart twice: [tile][row g or g + 8].
template <int BITS>
struct LaneWeights {
  uint32_t w[2][2][Piece<BITS>::kWords];
  __device__ __forceinline__ void load(const uint8_t* const (&rows)[2][2], int64_t byte, int64_t row_bytes,
                                       bool aligned) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (BITS == 1) {
          uint2 v = {0, 0};
          if (aligned && byte + 8 <= row_bytes) {
            v = __ldg(reinterpret_cast<const uint2*>(rows[tile][half] + byte));
          } else if (byte < row_bytes) {
            const uint4 all = load_weights(rows[tile][half], byte, min(row_bytes, byte + 8), false);
            v = {all.x, all.y};
          }
          w[tile][half][0] = v.x, w[tile][half][1] = v.y;
        } else {
          const uint4 v = load_weights(rows[tile][half], byte, row_bytes, aligned);
          w[tile][half][0] = v.x, w[tile][half][1] = v.y, w[tile][half][2] = v.z, w[tile][half][3] = v.w;
        }
      }
  }
};

/// x of a pass from column `first` on, zeros behind k: column (3 row + part), then [piece][quad][lane t][pair of
/// columns]. Four loads are under way at a time, and blocks begin at different rows, since all want the same ones.
template <int BITS>
__device__ __forceinline__ void stage_rows(const QuantizedConfig& p, const RowsCut& c, const void* input, int64_t m0,
                                           int rows, int64_t first, uint8_t* smem) {
  using P = Piece<BITS>;
  constexpr int kAtOnce = 4;
  const bool aligned = fours_aligned(p, input);
  const bool whole = aligned && p.input_element == Element::kF32 && first + c.pass_pieces * P::kColumns <= p.k;
  const int loads = c.pass_pieces * P::kQuads * 4, rounds = loads / 32, warps = blockDim.x / 32;  // loads: 32 * 2^i
  const int lane = threadIdx.x & 31, shift = 31 - __clz(rounds), all = rows * rounds;
  const int turn = static_cast<int>(blockIdx.x % static_cast<unsigned>(rows));
  for (int i0 = threadIdx.x >> 5; i0 < all; i0 += kAtOnce * warps) {
    float low[kAtOnce][4], high[kAtOnce][4];
    int to[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = min(i0 + u * warps, all - 1), place = ((i & (rounds - 1)) << 5) + lane;
      int row = (i >> shift) + turn;
      if (row >= rows) row -= rows;
      const int t = place & 3, quad = place / 4 % P::kQuads, piece = place / 4 / P::kQuads;
      const int64_t k = column_of_quad<BITS>(first + (piece * 4 + t) * P::kLaneColumns, quad);
      to[u] = row * kParts * c.column_bytes + place * 16;
      const uint8_t* const x = row_of_x(p, input, m0 + row);
      if (whole) {
        const float4 a = *reinterpret_cast<const float4*>(x + 4 * k);
        const float4 b = *reinterpret_cast<const float4*>(x + 4 * (k + kPairApart<BITS>));
        low[u][0] = a.x, low[u][1] = a.y, low[u][2] = a.z, low[u][3] = a.w;
        high[u][0] = b.x, high[u][1] = b.y, high[u][2] = b.z, high[u][3] = b.w;
      } else {
        load_four(x, p.input_element, k, p.k, aligned, low[u]);
        load_four(x, p.input_element, k + kPairApart<BITS>, p.k, aligned, high[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i0 + u * warps >= all) break;
      uint4 parts[kParts];
      split_pairs<BITS>(low[u], high[u], parts);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        *reinterpret_cast<uint4*>(smem + to[u] + part * c.column_bytes) = parts[part];
    }
  }
}

/// Products of a piece. `x`: this lane's place in the first part of its token; rows 8 further are `tile_bytes` away.
template <int BITS>
__device__ __forceinline__ void add_piece(const LaneWeights<BITS>& weights, const uint8_t* x, int tile_bytes,
                                          int column_bytes, float (&big)[2][2][4], float (&small)[2][2][4]) {
  constexpr int kPairsOfWord = 16 / BITS;
#pragma unroll
  for (int quad = 0; quad < Piece<BITS>::kQuads; ++quad) {
    uint32_t a[2][2][4];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int pair = 4 * quad + i;
          a[tile][half][i] = decode_pair<BITS>(weights.w[tile][half][pair / kPairsOfWord], pair % kPairsOfWord);
        }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + j * tile_bytes + part * column_bytes + quad * 64);
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          auto& c = part == 0 ? big[tile][j] : small[tile][j];
          mma_bf16(c, a[tile][0][0], a[tile][1][0], a[tile][0][1], a[tile][1][1], b.x, b.y);
          mma_bf16(c, a[tile][0][2], a[tile][1][2], a[tile][0][3], a[tile][1][3], b.z, b.w);
        }
      }
  }
}

/// Sums of all depth warps and of the cluster's blocks, then scale, bias and the store. `sums`: [depth][token][row].
template <int RowWarps>
__device__ __forceinline__ void finish_rows(const QuantizedConfig& p, const RowsCut& c, void* output, const float* sums,
                                            int64_t m0, int rows, int64_t n0) {
  constexpr int kBlockRows = 32 * RowWarps;
  const int rank = blockIdx.z, outputs = kBlockRows * rows;
#if LOWBIT_SM90
  if (c.split > 1) cluster_meet();
  const uint32_t base = shared_address(sums);
#endif
  for (int i = rank * blockDim.x + threadIdx.x; i < outputs; i += c.split * blockDim.x) {
    const int r = i % kBlockRows, row = i / kBlockRows;
    float y = 0;
    for (int from = 0; from < c.split; ++from)
#pragma unroll 4
      for (int depth = 0; depth < c.depth; ++depth) {
        const int at = depth * outputs + i;
#if LOWBIT_SM90
        y = __fadd_rn(y, c.split > 1 ? load_of_block(base + 4 * at, from) : sums[at]);
#else
        y = __fadd_rn(y, sums[at]);
#endif
      }
    if (n0 + r < p.n) finish_output(p, output, m0 + row, n0 + r, y);
  }
#if LOWBIT_SM90
  if (c.split > 1) cluster_meet();  // no block leaves while another one reads its sums
#endif
}

/// Groups of columns are whole pieces. RowWarps: x is cut into parts once per 32 * RowWarps rows of weights.
template <int BITS, int RowWarps>
__global__ void __launch_bounds__(128 * RowWarps, 4 / RowWarps)
    quantized_mm_rows(const void* input, const uint8_t* weight, void* output, const __grid_constant__ QuantizedConfig p,
                      const __grid_constant__ RowsCut c) {
  using P = Piece<BITS>;
  constexpr int kBlockRows = 32 * RowWarps;
  extern __shared__ __align__(128) uint8_t smem[];
  let_successor_start();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int row_warp = warp % RowWarps, column_warp = warp / RowWarps % c.column_warps,
            depth = warp / RowWarps / c.column_warps;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * kBlockRows, m0 = static_cast<int64_t>(blockIdx.y) * c.rows_of_x;
  const int rows = static_cast<int>(min(static_cast<int64_t>(c.rows_of_x), p.m - m0));
  const int64_t first_row = n0 + 32 * row_warp + g, row_bytes = (p.k * BITS + 7) / 8;
  int64_t at[2][2];
  const uint8_t* from[2][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    at[i / 2][i % 2] = min(first_row + 8 * i, p.n - 1);
    from[i / 2][i % 2] = weight + at[i / 2][i % 2] * p.weight_stride;
  }
  const bool aligned =
      ((reinterpret_cast<uintptr_t>(weight) | static_cast<uintptr_t>(p.weight_stride)) & (P::kLaneBytes - 1)) == 0;
  const int begin = blockIdx.z * c.split_pieces;
  const int end = min(begin + c.split_pieces, static_cast<int>((row_bytes + P::kBytes - 1) / P::kBytes));
  const int group_pieces = p.groups > 1 ? static_cast<int>(p.group / P::kColumns) : 1;
  // Columns of the mma that no token fills read the last one's; their sums are not used.
  const int x_row = column_warp * kWarpRowsOfX + g;
  const uint8_t* const x = smem + min(x_row, rows - 1) * kParts * c.column_bytes + t * 16;
  const int tile_bytes = (min(x_row + 8, rows - 1) - min(x_row, rows - 1)) * kParts * c.column_bytes;
  const bool present = column_warp * kWarpRowsOfX < rows;

  float big[2][2][4] = {}, small[2][2][4] = {}, sums[2][2][4] = {};
  LaneWeights<BITS> ahead;
  const auto load = [&](int piece) {
    if (present && piece < end)
      ahead.load(from, static_cast<int64_t>(piece) * P::kBytes + t * P::kLaneBytes, row_bytes, aligned);
  };
  load(begin + depth);
  wait_for_predecessor();
  for (int first = begin; first < end; first += c.pass_pieces) {
    if (first != begin) __syncthreads();
    stage_rows<BITS>(p, c, input, m0, rows, static_cast<int64_t>(first) * P::kColumns, smem);
    __syncthreads();
    const int last = min(first + c.pass_pieces, end);
#pragma unroll 1
    for (int piece = first + depth; present && piece < last; piece += c.depth) {
      const LaneWeights<BITS> weights = ahead;
      load(piece + c.depth);
      add_piece<BITS>(weights, x + (piece - first) * P::kQuads * 64, tile_bytes, c.column_bytes, big, small);
      if (p.groups <= 1 && piece + c.depth < last) continue;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int tile = i / 8, j = i / 4 % 2, e = i % 4;
        const float scale = p.groups <= 1 ? 1.0f : scale_of(p, at[tile][e / 2], piece / group_pieces);
        sums[tile][j][e] = __fmaf_rn(__fadd_rn(big[tile][j][e], small[tile][j][e]), scale, sums[tile][j][e]);
        big[tile][j][e] = small[tile][j][e] = 0;
      }
    }
  }
  __syncthreads();
  float* const all = reinterpret_cast<float*>(smem);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int tile = i / 8, j = i / 4 % 2, e = i % 4;
    const int row = column_warp * kWarpRowsOfX + 8 * j + 2 * t + e % 2, r = 32 * row_warp + 16 * tile + g + 8 * (e / 2);
    if (row < rows) all[(depth * rows + row) * kBlockRows + r] = sums[tile][j][e];
  }
  __syncthreads();
  finish_rows<RowWarps>(p, c, output, all, m0, rows, n0);
}

}  // namespace lowbit::cuda
