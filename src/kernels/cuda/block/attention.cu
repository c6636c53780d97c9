// Causal attention inside windows: scores, softmax, weighted values. The order of sums is ops/attention.cc's.

#include <algorithm>
#include <cmath>

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_block_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kThreads = 256;
constexpr int kScoreTile = 32, kScoreDepth = 64;  // queries and positions of a block; elements of a head at a time
constexpr int kScorePitch = kScoreDepth + 4;      // sixteen rows lie in different banks
constexpr int kValueTile = 64, kValueDepth = 16;  // queries and elements of a head; positions at a time
constexpr int kValuePitch = kValueTile + 4;

/// Window, head and first row of what a block works on; scores are [window, head, query, position].
struct Place {
  int64_t window, head, kv_head, first;
};
__device__ __forceinline__ Place place_of(const AttendWindows& call, int64_t rows) {
  const int64_t head = int64_t{blockIdx.z} % call.heads;
  return {int64_t{blockIdx.z} / call.heads, head, head / (call.heads / call.kv_heads), int64_t{blockIdx.y} * rows};
}
__device__ __forceinline__ float* score_row(const AttendWindows& call, const Place& at, int64_t query) {
  return call.scores + ((at.window * call.heads + at.head) * call.positions + query) * call.positions;
}

/// Rows [first, first + kScoreTile) of one head into shared memory, elements [begin, begin + kScoreDepth), zeros outside.
__device__ __forceinline__ void load_heads(const float* rows, int64_t row_stride, int64_t first, int64_t count,
                                           int64_t begin, int64_t width, float (&to)[kScoreTile][kScorePitch]) {
  for (int at = static_cast<int>(threadIdx.x); at < kScoreTile * kScoreDepth; at += kThreads) {
    const int row = at / kScoreDepth, i = at % kScoreDepth;
    to[row][i] = first + row < count && begin + i < width ? rows[(first + row) * row_stride + begin + i] : 0.0f;
  }
}

/// 32 queries by 32 positions; a thread has two of each, with sixteen partial sums a score.
__global__ void __launch_bounds__(kThreads) score_tiles(const __grid_constant__ AttendWindows call) {
  __shared__ __align__(16) float queries[kScoreTile][kScorePitch], keys[kScoreTile][kScorePitch];
  const Place at = place_of(call, kScoreTile);
  const int64_t first_key = int64_t{blockIdx.x} * kScoreTile, d = call.head_dim;
  if (first_key >= at.first + kScoreTile) return;  // nobody sees them
  const int64_t window = at.window * call.positions;
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  float sums[2][2][kLanes] = {};
  for (int64_t begin = 0; begin < d; begin += kScoreDepth) {
    __syncthreads();
    load_heads(call.q + window * call.heads * d + at.head * d, call.heads * d, at.first, call.positions, begin, d,
               queries);
    load_heads(call.key + window * call.kv_heads * d + at.kv_head * d, call.kv_heads * d, first_key, call.positions,
               begin, d, keys);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kScoreDepth; i += 4) {
      float4 q[2], k[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        q[r] = *reinterpret_cast<const float4*>(&queries[row + 16 * r][i]);
        k[r] = *reinterpret_cast<const float4*>(&keys[column + 16 * r][i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float(&s)[kLanes] = sums[r][c];
          s[i % kLanes] = __fmaf_rn(q[r].x, k[c].x, s[i % kLanes]);
          s[i % kLanes + 1] = __fmaf_rn(q[r].y, k[c].y, s[i % kLanes + 1]);
          s[i % kLanes + 2] = __fmaf_rn(q[r].z, k[c].z, s[i % kLanes + 2]);
          s[i % kLanes + 3] = __fmaf_rn(q[r].w, k[c].w, s[i % kLanes + 3]);
        }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float(&s)[kLanes] = sums[r][c];
#pragma unroll
      for (int w = kLanes / 2; w > 0; w /= 2)
#pragma unroll
        for (int i = 0; i < kLanes / 2; ++i)
          if (i < w) s[i] = __fadd_rn(s[i], s[i + w]);
      const int64_t query = at.first + row + 16 * r, key = first_key + column + 16 * c;
      if (query < call.positions && key <= query) score_row(call, at, query)[key] = __fmul_rn(call.scale, s[0]);
    }
}

/// scores = exp(score - largest); half a warp per row. What a row's values are multiplied with at the end goes to `inverse`.
__global__ void exponentials(const __grid_constant__ AttendWindows call, float* inverse) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool inside = row < call.windows * call.heads * call.positions;
  const int64_t count = inside ? row % call.positions + 1 : 0;
  float* const scores = call.scores + row * call.positions;
  float most = -INFINITY;
  for (int64_t t = lane; t < count; t += kLanes) most = scores[t] > most ? scores[t] : most;
  const float shift = largest_of_lanes(most);
  float sum = 0;
  for (int64_t t = lane; t < count; t += kLanes) {
    const float e = exp_f32(__fsub_rn(scores[t], shift));
    scores[t] = e;
    sum = __fadd_rn(sum, e);
  }
  const float total = fold_lanes(sum);
  if (inside && lane == 0) inverse[row] = __fdiv_rn(1.0f, total);
}

/// 64 queries by 64 elements of a head, 4 x 4 a thread.
__global__ void __launch_bounds__(kThreads)
    weigh_values(const __grid_constant__ AttendWindows call, const float* inverse) {
  __shared__ __align__(16) float weights[kValueDepth][kValuePitch], values[kValueDepth][kValuePitch];
  const Place at = place_of(call, kValueTile);
  const int64_t d = call.head_dim, first_element = int64_t{blockIdx.x} * kValueTile;
  const int64_t window = at.window * call.positions, end = min(at.first + kValueTile, call.positions);
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  float sums[4][4] = {};
  for (int64_t begin = 0; begin < end; begin += kValueDepth) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kValueTile * kValueDepth; i += kThreads) {
      const int64_t query = at.first + i / kValueDepth, seen = begin + i % kValueDepth;
      weights[i % kValueDepth][i / kValueDepth] =
          query < call.positions && seen <= query ? score_row(call, at, query)[seen] : 0.0f;
      const int64_t position = begin + i / kValueTile, element = first_element + i % kValueTile;
      values[i / kValueTile][i % kValueTile] =
          position < end && element < d ? call.value[((window + position) * call.kv_heads + at.kv_head) * d + element]
                                        : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kValueDepth; ++t) {
      float w[4], v[4];
      *reinterpret_cast<float4*>(w) = *reinterpret_cast<const float4*>(&weights[t][row]);
      *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(&values[t][column]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(w[i], v[j], sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t query = at.first + row + i;
    if (query >= call.positions) continue;
    const float factor = inverse[(at.window * call.heads + at.head) * call.positions + query];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first_element + column + j < d)
        call.out[((window + query) * call.heads + at.head) * d + first_element + column + j] =
            __fmul_rn(sums[i][j], factor);
  }
}

unsigned tiles(int64_t count, int64_t tile) { return static_cast<unsigned>((count + tile - 1) / tile); }

}  // namespace

int64_t attend_workspace_bytes(int64_t windows, int64_t positions, int64_t heads) {
  return windows * heads * positions * (positions + 1) * int64_t(sizeof(float));
}

Status attend_windows(const AttendWindows& call) {
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  const int64_t blocks = call.windows * call.heads, rows = blocks * call.positions;
  if (rows == 0) return {};
  float* const inverse = call.scores + rows * call.positions;
  const dim3 score_grid(tiles(call.positions, kScoreTile), tiles(call.positions, kScoreTile),
                        static_cast<unsigned>(blocks));
  const dim3 value_grid(tiles(call.head_dim, kValueTile), tiles(call.positions, kValueTile),
                        static_cast<unsigned>(blocks));
  auto e = launch(score_tiles, score_grid, dim3(kThreads), 0, stream, false, call);
  if (e == cudaSuccess)
    e = launch(exponentials, dim3(tiles(rows * kLanes, kThreads)), dim3(kThreads), 0, stream, false, call, inverse);
  if (e == cudaSuccess) e = launch(weigh_values, value_grid, dim3(kThreads), 0, stream, false, call, inverse);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
