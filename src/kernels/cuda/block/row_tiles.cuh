#pragma once
// Products of some tens of tokens in the order of docs/numerics.md#matmul: tiles of 64 rows of weights by 16 or 32
// tokens, where tiles of 128 by 128 (tile.cuh) would be few and mostly empty.
//
// Shapes:   a warp sums a group's columns for all outputs of a tile, a lane eight rows by a quarter of the tokens; the
//           warps of a thread block have neighbouring groups. Then its threads add the groups' sums in their order.
//           Where a row is one group, a block is one warp.
// Memory:   a warp brings both operands to its own shared memory, [column][row], as values; the next step's are on
//           their way to registers meanwhile.
// Limits:   fma, and what shared memory delivers.

#include <cuda_runtime.h>

#include "kernels/cuda/block/tile.cuh"
#include "kernels/cuda/block/weight_values.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::block {

constexpr int kStepColumns = 32, kTileWeights = 64, kGroupWarps = 8;

template <ValueType kType, int kTokens>
struct RowTile {
  static_assert(kTokens == 16 || kTokens == 32);
  static constexpr int kOfLane = kTokens / 4;                            // tokens of a lane
  static constexpr int kTokenPitch = kTokens + (kTokens == 16 ? 4 : 0);  // a lane's stores are in banks of their own
  static constexpr int kWarpFloats = kStepColumns * (kTileWeights + kTokenPitch), kResults = kTokens * kTileWeights;
  static_assert(kResults <= kWarpFloats);
  static constexpr int kPieces = kStepColumns / kPieceColumns<kType>;  // 16 bytes each, of a row in a step
  static constexpr int kQuads = kTokens * kStepColumns / 4 / 32;       // of four columns of x, of a lane in a step

  const F32Matmul& call;
  int64_t first_weight, first_token;
  float* shared;  // the warp's
  uint4 words[2][kPieces];
  float4 x[kQuads];

  __device__ __forceinline__ RowTile(const F32Matmul& of, int64_t weight, int64_t token, float* of_warp)
      : call(of), first_weight(weight), first_token(token), shared(of_warp) {}
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ float* x_at() const { return shared + kStepColumns * kTileWeights; }

  /// Columns [begin, begin + kStepColumns) of two rows of weights, and of a token in some of them; zeros behind `end`.
  __device__ __forceinline__ void load(int64_t begin, int64_t end) {
    const int64_t row_bytes = value_row_bytes(kType, call.k), byte = begin / kPieceColumns<kType> * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = min(first_weight + lane() + 32 * half, call.n - 1);  // behind the last one nobody stores
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int64_t at = byte + 16 * p;
        words[half][p] =
            at < row_bytes ? *reinterpret_cast<const uint4*>(call.values + row * row_bytes + at) : uint4{0, 0, 0, 0};
      }
    }
    const int64_t token = first_token + lane() % kTokens;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int64_t column = begin + x_column(i);
      x[i] = load_parcel(call.x + token * call.k + column, token < call.m ? end - column : 0, call.k % 4 == 0);
    }
  }
  /// The first column of a lane's quad.
  static __device__ __forceinline__ int x_column(int i) { return 4 * (lane() / kTokens + 32 / kTokens * i); }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const uint32_t of_piece[4] = {words[half][p].x, words[half][p].y, words[half][p].z, words[half][p].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          float v[kWordColumns<kType>];
          values_of_word<kType>(of_piece[w], v);
          float* const to = shared + (p * 4 + w) * kWordColumns<kType> * kTileWeights + 32 * half + lane();
#pragma unroll
          for (int j = 0; j < kWordColumns<kType>; ++j) to[j * kTileWeights] = v[j];
        }
      }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float* const to = x_at() + x_column(i) * kTokenPitch + lane() % kTokens;
      to[0] = x[i].x, to[kTokenPitch] = x[i].y, to[2 * kTokenPitch] = x[i].z, to[3 * kTokenPitch] = x[i].w;
    }
  }

  // Of output (i, j) of a lane.
  static __device__ __forceinline__ int token_of(int i) { return i / 4 * 16 + lane() / 8 * 4 + i % 4; }
  static __device__ __forceinline__ int weight_of(int j) { return j / 4 * 32 + lane() % 8 * 4 + j % 4; }

  /// sums = those of columns [begin, end).
  __device__ __forceinline__ void sum(int64_t begin, int64_t end, float (&sums)[kOfLane][8]) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = 0;
    load(begin, end);
#pragma unroll 1
    for (; begin < end; begin += kStepColumns) {
      __syncwarp();  // all have read the step before
      store();
      __syncwarp();
      if (begin + kStepColumns < end) load(begin + kStepColumns, end);
#pragma unroll 4
      for (int k = 0; k < kStepColumns; ++k) {
        float tokens[kOfLane], weights[8];
#pragma unroll
        for (int i = 0; i < kOfLane; i += 4)
          *reinterpret_cast<float4*>(tokens + i) =
              *reinterpret_cast<const float4*>(x_at() + k * kTokenPitch + token_of(i));
#pragma unroll
        for (int j = 0; j < 8; j += 4)
          *reinterpret_cast<float4*>(weights + j) =
              *reinterpret_cast<const float4*>(shared + k * kTileWeights + weight_of(j));
#pragma unroll
        for (int i = 0; i < kOfLane; ++i)
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[i][j] = __fmaf_rn(weights[j], tokens[i], sums[i][j]);
      }
    }
  }

  /// To where the operands were, [token][weight].
  __device__ __forceinline__ void put(const float (&sums)[kOfLane][8]) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
#pragma unroll
      for (int j = 0; j < 8; j += 4)
        *reinterpret_cast<float4*>(shared + token_of(i) * kTileWeights + weight_of(j)) = {
            sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
  }
};

/// Groups are whole steps, but for the last one; no offsets.
template <ValueType kType, int kTokens, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, kTokens == 16 && RowTile<kType, 16>::kPieces <= 4 ? 2 : 1)
    matmul_row_tiles(const __grid_constant__ F32Matmul call) {
  LOWBIT_DYNAMIC_SHARED(shared);
  using Tile = RowTile<kType, kTokens>;
  constexpr int kThreads = 32 * kWarps, kOutputs = Tile::kResults / kThreads;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  auto* const floats = reinterpret_cast<float*>(shared);
  Tile tile(call, int64_t{blockIdx.x} * kTileWeights, int64_t{blockIdx.y} * kTokens, floats + warp * Tile::kWarpFloats);
  const bool one = call.scales == nullptr || call.group >= call.k;
  const int64_t width = one ? call.k : call.group, groups = (call.k + width - 1) / width;
  // A thread's outputs: those of a column, or, of 32 threads, of two.
  const auto column_of = [&](int i) { return tile.first_weight + (thread + i * kThreads) % kTileWeights; };
  float acc[kOutputs] = {};
#pragma unroll 1
  for (int64_t first = 0; first < groups; first += kWarps) {
    const int here = static_cast<int>(min(int64_t{kWarps}, groups - first));
    float scales[kWarps * (kWarps == 1 ? 2 : 1)];
#pragma unroll
    for (int g = 0; g < kWarps; ++g)
#pragma unroll
      for (int i = 0; i < (kWarps == 1 ? 2 : 1); ++i)
        scales[g + i] = call.scales != nullptr && g < here && column_of(i) < call.n
                            ? call.scales[(first + g) * call.n + column_of(i)]
                            : 1.0f;
    if (warp < here) {
      float sums[Tile::kOfLane][8];
      tile.sum((first + warp) * width, min((first + warp + 1) * width, call.k), sums);
      tile.put(sums);
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kWarps; ++g) {
      if (g >= here) break;
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const float s = floats[g * Tile::kWarpFloats + thread + i * kThreads];
        acc[i] = call.scales == nullptr ? s : __fmaf_rn(s, scales[kWarps == 1 ? i % 2 : g], acc[i]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int64_t column = column_of(i), token = tile.first_token + (thread + i * kThreads) / kTileWeights;
    if (column < call.n && token < call.m)
      call.y[token * call.n + column] = __fadd_rn(acc[i], call.bias == nullptr ? 0.0f : call.bias[column]);
  }
}

template <ValueType kType, int kTokens, int kWarps>
constexpr int kRowTileBytes = 4 * kWarps* RowTile<kType, kTokens>::kWarpFloats;

}  // namespace lowbit::cuda::block
