// Attention of sequences that decode, a row each: rotation, the new key and value, and the spans, in one launch. Some
// thread blocks have the heads of one kv head and one span: one, or a cluster of two or four. Each fetches its share of
// the positions' keys and of the values' elements at once, before its predecessor has ended, works out the scores of
// its positions, sends them to the others, and weighs its elements. The order of sums is that of docs/numerics.md, as
// in attention.cu.

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_ops.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kPage = static_cast<int>(kKvPage), kWarps = kPagedThreads / 32;

constexpr int kHalfWarps = kPagedThreads / kLanes, kWeightPitch = kSpan + 4;

/// Shared memory of a thread block behind keys and values. Neighbouring positions' scores and weights are neighbours.
template <int kQueries>
struct StepShared {
  static_assert(kQueries * kWeightPitch * sizeof(float) >= kWarps * 32 * sizeof(SpanFactors));
  float queries[kQueries][kMostHeadDim];
  float scores[kQueries][kWeightPitch];
  float weights[kQueries][kWeightPitch];  // their exponentials
  float most[kQueries], totals[kQueries];
  bool is_last;  // of the spans' blocks
};

/// Bytes of the keys, or of the values, of a span, in one of `blocks`.
constexpr LOWBIT_HD int64_t share_bytes(int64_t head_dim, int blocks) { return int64_t{kSpan} * head_dim * 2 / blocks; }
template <int kQueries>
constexpr LOWBIT_HD int64_t step_shared_bytes(int64_t head_dim, int blocks) {
  return 2 * share_bytes(head_dim, blocks) + static_cast<int64_t>(sizeof(StepShared<kQueries>));
}

/// A block's share of one kv head's span: keys of its pages as they have them, [page][head_dim][64], and its elements
/// of the values, [position][width].
template <int kBlocks>
struct Share {
  static constexpr int kPages = static_cast<int>(kSpanPages) / kBlocks, kPositions = kSpan / kBlocks;
  uint16_t *keys, *values;
  int rank, width, span;  // of the blocks; elements
  Seen seen;

  __device__ __forceinline__ int first_position() const { return rank * kPositions; }
  __device__ __forceinline__ int first_element() const { return rank * width; }

  __device__ __forceinline__ void fetch(const AttendPages& call, const PagedTile& tile) const {
    const int thread = static_cast<int>(threadIdx.x), chunks = kPage / 8 * static_cast<int>(call.kv.head_dim);
#pragma unroll
    for (int p = 0; p < kPages; ++p) {
      const int page = rank * kPages + p;
      if (page * kPage >= seen.end || (page + 1) * kPage <= seen.begin) continue;
      const uint16_t* const from = page_rows(call, tile, span * int{kSpanPages} + page, 0);
      for (int at = thread; at < chunks; at += kPagedThreads)
        copy_to_shared_16(keys + 8 * (p * chunks + at), from + 8 * at);
    }
    if constexpr (kBlocks == 1) {
      for (int page = seen.begin / kPage; page * kPage < seen.end; ++page) {
        const uint16_t* const from = page_rows(call, tile, span * int{kSpanPages} + page, 1);
        for (int at = thread; at < chunks; at += kPagedThreads)
          copy_to_shared_16(values + 8 * (page * chunks + at), from + 8 * at);
      }
    } else {  // two threads have a position, so that they read 32 bytes of it
      for (int t = thread / 2; t < kSpan; t += kPagedThreads / 2) {
        if (!seen.has(t)) continue;
        const uint16_t* const from = page_rows(call, tile, span * int{kSpanPages} + t / kPage, 1) +
                                     t % kPage * static_cast<int>(call.kv.head_dim) + first_element();
        for (int at = thread % 2 * 8; at < width; at += 16) copy_to_shared_16(values + t * width + at, from + at);
      }
    }
  }
};

/// A pair of elements, `half` apart, rotated as rotate_and_store() does.
__device__ __forceinline__ float2 rotated_pair(const float* from, int half, float cos, float sin) {
  const float a = from[0], b = from[half];
  return {__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)), __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin))};
}

/// Rotated queries into shared memory; the new key and value into their page and, where this block reads them, beside
/// the others. All copies have come.
template <int kQueries, int kBlocks>
__device__ __forceinline__ void add_rows_of_step(const AttendStep& call, const PagedTile& tile,
                                                 const Share<kBlocks>& share, StepShared<kQueries>& shared) {
  const AttendPages& attend = call.attend;
  const int d = static_cast<int>(attend.kv.head_dim), half = d / 2, position = tile.sequence.position;
  const int page = position / kPage, t = position % kPage, in_span = position % kSpan;
  const bool has_row = position / kSpan == share.span;
  const bool has_key = has_row && in_span / Share<kBlocks>::kPositions == share.rank;
  for (int at = static_cast<int>(threadIdx.x); at < (tile.count + 1) * half; at += kPagedThreads) {
    const int q = at / half, i = at % half;
    if (q == tile.count && !has_key) continue;
    const float cos = call.cos[int64_t{position} * half + i], sin = call.sin[int64_t{position} * half + i];
    if (q < tile.count) {
      const float2 pair = rotated_pair(attend.q + tile.offset(attend, q) + i, half, cos, sin);
      shared.queries[q][i] = pair.x;
      shared.queries[q][i + half] = pair.y;
      continue;
    }
    auto* const rows = const_cast<uint16_t*>(page_rows(attend, tile, page, 0)) + t;
    uint16_t* const here = share.keys + (in_span / kPage - share.rank * Share<kBlocks>::kPages) * (d * kPage) + t;
    const float2 pair =
        rotated_pair(call.k + (int64_t{tile.sequence.row} * attend.kv.kv_heads + tile.kv_head) * d + i, half, cos, sin);
    here[i * kPage] = rows[i * kPage] = f16_nearest(pair.x);
    here[(i + half) * kPage] = rows[(i + half) * kPage] = f16_nearest(pair.y);
  }
  if (!has_row) return;
  for (int i = kPagedThreads - 1 - static_cast<int>(threadIdx.x); i < share.width; i += kPagedThreads) {
    const int element = share.first_element() + i;
    auto* const rows = const_cast<uint16_t*>(page_rows(attend, tile, page, 1)) + t * d;
    share.values[in_span * share.width + i] = rows[element] =
        f16_nearest(call.v[(int64_t{tile.sequence.row} * attend.kv.kv_heads + tile.kv_head) * d + element]);
  }
}

/// Scores of the block's positions, to all blocks. A thread has a position and some of the queries.
template <int kQueries, int kBlocks>
__device__ __forceinline__ void score_share(const AttendPages& call, const Share<kBlocks>& share,
                                            StepShared<kQueries>& shared) {
  constexpr int kPositions = Share<kBlocks>::kPositions, kOwn = kQueries / kBlocks;
  const int thread = static_cast<int>(threadIdx.x), d = static_cast<int>(call.kv.head_dim);
  const int here = thread % kPositions, first = thread / kPositions * kOwn, t = share.first_position() + here;
  if (!share.seen.has(t)) return;
  const uint16_t* const key = share.keys + here / kPage * (d * kPage) + here % kPage;
  float scores[kOwn] = {};
  int i = 0;
#pragma unroll 4
  for (; i + 4 <= d; i += 4) {
    float k[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) k[e] = f16_value(key[(i + e) * kPage]);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      const float4 four = *reinterpret_cast<const float4*>(&shared.queries[first + q][i]);
      scores[q] = __fmaf_rn(four.x, k[0], scores[q]);
      scores[q] = __fmaf_rn(four.y, k[1], scores[q]);
      scores[q] = __fmaf_rn(four.z, k[2], scores[q]);
      scores[q] = __fmaf_rn(four.w, k[3], scores[q]);
    }
  }
  for (; i < d; ++i) {
    const float k = f16_value(key[i * kPage]);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) scores[q] = __fmaf_rn(shared.queries[first + q][i], k, scores[q]);
  }
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const float score = __fmul_rn(call.scale, scores[q]);
    if constexpr (kBlocks == 1) {
      shared.scores[first + q][t] = score;
    } else {
#pragma unroll
      for (int rank = 0; rank < kBlocks; ++rank) store_in_block(&shared.scores[first + q][t], rank, score);
    }
  }
}

/// Largest scores and exponentials. A warp has half of the positions of a query, and looks at all for the largest.
template <int kQueries>
__device__ __forceinline__ void exponentials_of_step(const PagedTile& tile, const Seen& seen,
                                                     StepShared<kQueries>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kHalf = kSpan / 2;
  for (int unit = warp; unit < 2 * tile.count; unit += kWarps) {
    const int query = unit / 2, mine = unit % 2 * kHalf + 4 * lane, other = kHalf - unit % 2 * kHalf + 4 * lane;
    float s[8], most = -INFINITY;  // fmaxf passes a NaN over
    *reinterpret_cast<float4*>(&s[0]) = *reinterpret_cast<const float4*>(&shared.scores[query][mine]);
    *reinterpret_cast<float4*>(&s[4]) = *reinterpret_cast<const float4*>(&shared.scores[query][other]);
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, seen.has((i < 4 ? mine : other) + i % 4) ? s[i] : -INFINITY);
    most = largest_of_warp(most);
    const float shift = shift_of(most);
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) e[i] = seen.has(mine + i) ? exp_of_difference(__fsub_rn(s[i], shift)) : 0.0f;
    *reinterpret_cast<float4*>(&shared.weights[query][mine]) = {e[0], e[1], e[2], e[3]};
    if (lane == 0) shared.most[query] = most;
  }
}

/// Sums of exponentials: the last half warps, a query each.
template <int kQueries>
__device__ __forceinline__ void sum_exponentials_of_step(const AttendPages& call, const PagedTile& tile, int index,
                                                         bool leads, StepShared<kQueries>& shared) {
  const int query = kHalfWarps - 1 - static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (query / 2 * 2 >= tile.count) return;  // the whole warp
  const float* const from = shared.weights[min(query, kQueries - 1)] + lane;
  float sum = 0;
#pragma unroll
  for (int at = 0; at < kSpan; at += kLanes) sum = __fadd_rn(sum, from[at]);
  sum = fold_lanes(sum);
  if (lane != 0 || query >= tile.count) return;
  shared.totals[query] = sum;
  if (call.results == nullptr || !leads) return;
  float* const to = result_of(call, index, tile.kv_head, static_cast<int>(blockIdx.z), query);
  to[0] = shared.most[query];
  to[1] = sum;
}

/// Weighted values of an element of a query, or of two neighbouring ones.
template <int kElements>
__device__ __forceinline__ void weigh_staged(const Seen& seen, const uint16_t* values, int width, const float* weights,
                                             float (&sums)[kElements]) {
  const auto add = [&](int t, float weight) {
    if constexpr (kElements == 1) {
      sums[0] = __fmaf_rn(weight, f16_value(values[t * width]), sums[0]);
    } else {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(values + t * width);
      sums[0] = __fmaf_rn(weight, f16_value(static_cast<uint16_t>(pair)), sums[0]);
      sums[1] = __fmaf_rn(weight, f16_value(static_cast<uint16_t>(pair >> 16)), sums[1]);
    }
  };
  int t = seen.begin;
  for (; t < seen.end && t % 4 != 0; ++t) add(t, weights[t]);
#pragma unroll 8
  for (; t + 4 <= seen.end; t += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + t);
    add(t, four.x);
    add(t + 1, four.y);
    add(t + 2, four.z);
    add(t + 3, four.w);
  }
  for (; t < seen.end; ++t) add(t, weights[t]);
}

template <int kElements, int kQueries, int kBlocks>
__device__ __forceinline__ void weigh_elements(const AttendPages& call, const PagedTile& tile, int index,
                                               const Share<kBlocks>& share, const StepShared<kQueries>& shared) {
  const int of_query = share.width / kElements;
  for (int at = static_cast<int>(threadIdx.x); at < tile.count * of_query; at += kPagedThreads) {
    const int query = at / of_query, i = at % of_query * kElements, element = share.first_element() + i;
    float sums[kElements] = {};
    weigh_staged<kElements>(share.seen, share.values + i, share.width, shared.weights[query], sums);
    const bool apart = call.results != nullptr;
    float* const to = apart ? result_of(call, index, tile.kv_head, static_cast<int>(blockIdx.z), query) + 2 + element
                            : call.out + tile.offset(call, query) + element;
    const float by = apart ? 1.0f : __fdiv_rn(1.0f, shared.totals[query]);
#pragma unroll
    for (int e = 0; e < kElements; ++e) to[e] = apart ? sums[e] : __fmul_rn(sums[e], by);
  }
}

/// Weighted values of all queries of the tile: results of the span, or the output where there is no other. A thread has
/// one element if there are threads enough: sums are chains along the span.
template <int kQueries, int kBlocks>
__device__ __forceinline__ void weigh_step(const AttendPages& call, const PagedTile& tile, int index,
                                           const Share<kBlocks>& share, const StepShared<kQueries>& shared) {
  if (call.results == nullptr) __syncthreads();  // totals
  if (tile.count * share.width <= kPagedThreads) {
    weigh_elements<1>(call, tile, index, share, shared);
  } else {
    weigh_elements<2>(call, tile, index, share, shared);
  }
}

template <int kQueries, int kBlocks>
__global__ void __launch_bounds__(kPagedThreads) attend_rows(const __grid_constant__ AttendStep call) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  const AttendPages& attend = call.attend;
  const int index = static_cast<int>(blockIdx.x) / kBlocks;
  const PagedTile tile = part_of_tile(attend, index, static_cast<int>(blockIdx.y), 0, attend.tile_queries);
  const int d = static_cast<int>(attend.kv.head_dim), span = tile.first_span + static_cast<int>(blockIdx.z);
  if (static_cast<int>(blockIdx.z) >= tile.spans) return;  // the whole cluster
  if constexpr (kBlocks > 1) cluster_begins();
  auto* const keys = reinterpret_cast<uint16_t*>(bytes);
  auto& shared = *reinterpret_cast<StepShared<kQueries>*>(bytes + 2 * share_bytes(d, kBlocks));
  const Share<kBlocks> share = {keys,
                                keys + share_bytes(d, kBlocks) / 2,
                                static_cast<int>(blockIdx.x) % kBlocks,
                                d / kBlocks,
                                span,
                                seen_of(tile.sequence.position, span, attend.window)};
  share.fetch(attend, tile);
  wait_for_predecessor();
  wait_for_all_copies();
  __syncthreads();
  add_rows_of_step(call, tile, share, shared);
  __syncthreads();
  if constexpr (kBlocks > 1) cluster_waits();
  score_share(attend, share, shared);
  if constexpr (kBlocks > 1) {
    cluster_arrives();
    cluster_waits();
  } else {
    __syncthreads();
  }
  exponentials_of_step(tile, share.seen, shared);
  __syncthreads();
  sum_exponentials_of_step(attend, tile, index, share.rank == 0, shared);
  weigh_step(attend, tile, index, share, shared);
  if (attend.results == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0)
    shared.is_last = arrives_last(call.arrived + index * attend.kv.kv_heads + tile.kv_head,
                                  static_cast<uint32_t>(tile.spans * kBlocks));
  __syncthreads();
  if (!shared.is_last) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, half = d > 32 ? (d / 2 + 31) / 32 * 32 : d;
  auto* const factors = reinterpret_cast<SpanFactors*>(&shared.scores[0][0]) + warp * 32;  // nobody reads scores now
  for (int unit = warp; unit < 2 * tile.count; unit += kWarps)
    merge_query(attend, tile, index, unit / 2, unit % 2 * half, unit % 2 == 0 ? half : d, factors);
}

/// Blocks that share a span: so many that a multiprocessor has about two.
int blocks_of_span(const AttendPages& call, const Device& device) {
  const int64_t spans = call.tile_count * call.kv.kv_heads * (call.results == nullptr ? 1 : call.spans);
  int blocks = 1;
  while (device.bulk_copies && blocks < 4 && call.kv.head_dim % (16 * 2 * blocks) == 0 &&
         2 * blocks * spans <= 2 * device.processors)
    blocks *= 2;
  return blocks;
}

template <int kQueries, int kBlocks>
cudaError_t launch_rows(const AttendStep& call, const Device& device) {
  auto* const kernel = &attend_rows<kQueries, kBlocks>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const AttendPages& a = call.attend;
  const dim3 grid(static_cast<unsigned>(a.tile_count * kBlocks), static_cast<unsigned>(a.kv.kv_heads),
                  a.results == nullptr ? 1u : static_cast<unsigned>(a.spans));
  return launch_cluster(kernel, grid, dim3(kPagedThreads), dim3(kBlocks),
                        static_cast<size_t>(step_shared_bytes<kQueries>(a.kv.head_dim, kBlocks)),
                        static_cast<cudaStream_t>(a.stream), call.overlap && device.bulk_copies, call);
}

template <int kQueries>
cudaError_t launch_rows(const AttendStep& call, const Device& device) {
  const int blocks = blocks_of_span(call.attend, device);
  return blocks == 1   ? launch_rows<kQueries, 1>(call, device)
         : blocks == 2 ? launch_rows<kQueries, 2>(call, device)
                       : launch_rows<kQueries, 4>(call, device);
}

}  // namespace

bool has_attend_step(int tile_queries, int64_t head_dim) {
  Device device{};
  if (head_dim < 2 || head_dim > kMostHeadDim || head_dim % 2 != 0 || current_device(&device) != cudaSuccess)
    return false;
  const int64_t bytes = tile_queries == 4   ? step_shared_bytes<4>(head_dim, 1)
                        : tile_queries == 8 ? step_shared_bytes<8>(head_dim, 1)
                                            : step_shared_bytes<16>(head_dim, 1);
  return bytes <= device.shared_bytes;
}

Status attend_step(const AttendStep& call) {
  const AttendPages& a = call.attend;
  if (a.tile_count == 0) return {};
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess)
    e = a.tile_queries == 4   ? launch_rows<4>(call, device)
        : a.tile_queries == 8 ? launch_rows<8>(call, device)
                              : launch_rows<16>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
