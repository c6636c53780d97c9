// Causal attention inside windows, by spans of positions: scores, exponentials, weighted values. The order of sums is that of
// docs/numerics.md.

#include <algorithm>
#include <cmath>

#include "kernels/api.h"
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
static_assert(kAttentionSpan % kValueTile == 0 && kAttentionSpan % kLanes == 0);

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

/// What a row's exponentials are put together with.
struct Factors {
  float* spans;    // [rows, spans][2]: of what came before a span, and of the span
  float* inverse;  // [rows]: of all at the end
};
__host__ __device__ constexpr int64_t spans_of(int64_t positions) {
  return (positions + kAttentionSpan - 1) / kAttentionSpan;
}
__device__ __forceinline__ float span_shift(float largest) { return largest == -INFINITY ? 0.0f : largest; }

/// Rows [first, first + kScoreTile) of one head into shared memory, elements [begin, begin + kScoreDepth), zeros outside.
__device__ __forceinline__ void load_heads(const float* rows, int64_t row_stride, int64_t first, int64_t count,
                                           int64_t begin, int64_t width, float (&to)[kScoreTile][kScorePitch]) {
  for (int at = static_cast<int>(threadIdx.x); at < kScoreTile * kScoreDepth; at += kThreads) {
    const int row = at / kScoreDepth, i = at % kScoreDepth;
    to[row][i] = first + row < count && begin + i < width ? rows[(first + row) * row_stride + begin + i] : 0.0f;
  }
}

/// 32 queries by 32 positions; a thread has two of each.
__global__ void __launch_bounds__(kThreads) score_tiles(const __grid_constant__ AttendWindows call) {
  __shared__ __align__(16) float queries[kScoreTile][kScorePitch], keys[kScoreTile][kScorePitch];
  const Place at = place_of(call, kScoreTile);
  const int64_t first_key = int64_t{blockIdx.x} * kScoreTile, d = call.head_dim;
  if (first_key >= at.first + kScoreTile) return;  // nobody sees them
  const int64_t window = at.window * call.positions;
  const int row = static_cast<int>(threadIdx.x) / 16, column = static_cast<int>(threadIdx.x) % 16;
  float sums[2][2] = {};
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
          float& s = sums[r][c];
          s = __fmaf_rn(q[r].x, k[c].x, s);
          s = __fmaf_rn(q[r].y, k[c].y, s);
          s = __fmaf_rn(q[r].z, k[c].z, s);
          s = __fmaf_rn(q[r].w, k[c].w, s);
        }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int64_t query = at.first + row + 16 * r, key = first_key + column + 16 * c;
      if (query < call.positions && key <= query) score_row(call, at, query)[key] = __fmul_rn(call.scale, sums[r][c]);
    }
}

/// scores = exp(score - the span's largest); half a warp per row. All lanes go through all spans, for they fold together.
__global__ void exponentials(const __grid_constant__ AttendWindows call, const __grid_constant__ Factors to) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes, spans = spans_of(call.positions);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t count = row < call.windows * call.heads * call.positions ? row % call.positions + 1 : 0;
  float* const scores = call.scores + row * call.positions;
  float most = -INFINITY, total = 0;
  for (int64_t span = 0; span < spans; ++span) {
    const int64_t begin = span * kAttentionSpan, end = min(begin + kAttentionSpan, count);
    float largest = -INFINITY;
    for (int64_t t = begin + lane; t < end; t += kLanes) largest = scores[t] > largest ? scores[t] : largest;
    largest = largest_of_lanes(largest);
    float sum = 0;
    for (int64_t t = begin + lane; t < end; t += kLanes) {
      const float e = exp_f32(__fsub_rn(scores[t], span_shift(largest)));
      scores[t] = e;
      sum = __fadd_rn(sum, e);
    }
    sum = fold_lanes(sum);
    if (begin >= end) continue;
    if (span == 0) {
      most = largest;
      total = sum;
      continue;
    }
    const float next = largest > most ? largest : most;
    const float before = exp_f32(__fsub_rn(most, span_shift(next))),
                here = exp_f32(__fsub_rn(largest, span_shift(next)));
    most = next;
    total = __fmaf_rn(sum, here, __fmul_rn(total, before));
    if (lane == 0) {
      to.spans[2 * (row * spans + span)] = before;
      to.spans[2 * (row * spans + span) + 1] = here;
    }
  }
  if (count > 0 && lane == 0) to.inverse[row] = __fdiv_rn(1.0f, total);
}

/// Adds kValueDepth positions to a thread's 4 x 4 sums; `seen` of them to the first query's, one more to each that follows.
template <bool kAll>
__device__ __forceinline__ void add_values(const float (&weights)[kValueDepth][kValuePitch],
                                           const float (&values)[kValueDepth][kValuePitch], int row, int column,
                                           int64_t seen, float (&sums)[4][4]) {
#pragma unroll
  for (int t = 0; t < kValueDepth; ++t) {
    float w[4], v[4];
    *reinterpret_cast<float4*>(w) = *reinterpret_cast<const float4*>(&weights[t][row]);
    *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(&values[t][column]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!kAll && t >= seen + i) continue;  // 0 * infinity would be NaN
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(w[i], v[j], sums[i][j]);
    }
  }
}

/// all = sums * here + all * before, and sums begin anew.
__device__ __forceinline__ void merge_span(bool first, const float* factors, float (&sums)[4], float (&all)[4]) {
  const float before = first ? 0.0f : factors[0], here = first ? 1.0f : factors[1];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    all[j] = first ? sums[j] : __fmaf_rn(sums[j], here, __fmul_rn(all[j], before));
    sums[j] = 0;
  }
}

/// 64 queries by 64 elements of a head, 4 x 4 a thread. The queries are of one span, so all of them see all spans up to it.
__global__ void __launch_bounds__(kThreads)
    weigh_values(const __grid_constant__ AttendWindows call, const __grid_constant__ Factors factors) {
  __shared__ __align__(16) float weights[kValueDepth][kValuePitch], values[kValueDepth][kValuePitch];
  const Place at = place_of(call, kValueTile);
  const int64_t d = call.head_dim, first_element = int64_t{blockIdx.x} * kValueTile, spans = spans_of(call.positions);
  const int64_t window = at.window * call.positions, end = min(at.first + kValueTile, call.positions);
  const int64_t first_row = (at.window * call.heads + at.head) * call.positions;
  const int row = static_cast<int>(threadIdx.x) / 16 * 4, column = static_cast<int>(threadIdx.x) % 16 * 4;
  float sums[4][4] = {}, all[4][4] = {};
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
    const int64_t seen = at.first + row + 1 - begin;  // by the thread's first query
    if (seen >= kValueDepth) {
      add_values<true>(weights, values, row, column, seen, sums);
    } else {
      add_values<false>(weights, values, row, column, seen, sums);
    }
    const int64_t next = begin + kValueDepth, span = begin / kAttentionSpan;
    if (next < end && next % kAttentionSpan != 0) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at.first + row + i < call.positions)
        merge_span(span == 0, factors.spans + 2 * ((first_row + at.first + row + i) * spans + span), sums[i], all[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t query = at.first + row + i;
    if (query >= call.positions) continue;
    const float factor = factors.inverse[first_row + query];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (first_element + column + j < d)
        call.out[((window + query) * call.heads + at.head) * d + first_element + column + j] =
            __fmul_rn(all[i][j], factor);
  }
}

unsigned tiles(int64_t count, int64_t tile) { return static_cast<unsigned>((count + tile - 1) / tile); }

}  // namespace

int64_t attend_workspace_bytes(int64_t windows, int64_t positions, int64_t heads) {
  return windows * heads * positions * (positions + 2 * spans_of(positions) + 1) * int64_t(sizeof(float));
}

Status attend_windows(const AttendWindows& call) {
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  const int64_t blocks = call.windows * call.heads, rows = blocks * call.positions;
  if (rows == 0) return {};
  float* const behind = call.scores + rows * call.positions;
  const Factors factors{behind, behind + 2 * rows * spans_of(call.positions)};
  const dim3 score_grid(tiles(call.positions, kScoreTile), tiles(call.positions, kScoreTile),
                        static_cast<unsigned>(blocks));
  const dim3 value_grid(tiles(call.head_dim, kValueTile), tiles(call.positions, kValueTile),
                        static_cast<unsigned>(blocks));
  auto e = launch(score_tiles, score_grid, dim3(kThreads), 0, stream, false, call);
  if (e == cudaSuccess)
    e = launch(exponentials, dim3(tiles(rows * kLanes, kThreads)), dim3(kThreads), 0, stream, false, call, factors);
  if (e == cudaSuccess) e = launch(weigh_values, value_grid, dim3(kThreads), 0, stream, false, call, factors);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
