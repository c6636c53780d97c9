// Causal attention on pages, for rows of several sequences. A thread block has some queries of one sequence and kv
// head; it takes their spans one after the other, or a span each. The order of sums is that of docs/numerics.md either
// way.

#include <algorithm>

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// Scores of the thread's position against all queries.
template <int kQueries>
__device__ __forceinline__ void score_position(const AttendPages& call, const PagedTile& tile, int span,
                                               const PagedShared<kQueries>& shared, float (&scores)[kQueries]) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (float& s : scores) s = 0;
  const int position = span * kSpan + t;
  if (position > tile.position(tile.count - 1) || position < first_seen(tile.position(0), call.window)) return;
  const uint16_t* const key = page_rows(call, tile, position / int{kKvPage}, 0) + position % int{kKvPage};
  const int d = static_cast<int>(call.kv.head_dim);
#pragma unroll 8
  for (int i = 0; i < d; ++i) {
    const float k = f16_value(key[i * kKvPage]);
#pragma unroll
    for (int q = 0; q < kQueries; q += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&shared.queries[i][q]);
      scores[q] = __fmaf_rn(four.x, k, scores[q]);
      scores[q + 1] = __fmaf_rn(four.y, k, scores[q + 1]);
      scores[q + 2] = __fmaf_rn(four.z, k, scores[q + 2]);
      scores[q + 3] = __fmaf_rn(four.w, k, scores[q + 3]);
    }
  }
#pragma unroll
  for (float& s : scores) s = __fmul_rn(call.scale, s);
}

/// Neighbouring queries' weights of a position.
template <int kOwn>
__device__ __forceinline__ void load_weights(const float* from, float (&to)[kOwn]) {
  if constexpr (kOwn % 4 == 0) {
#pragma unroll
    for (int q = 0; q < kOwn; q += 4) *reinterpret_cast<float4*>(&to[q]) = *reinterpret_cast<const float4*>(from + q);
  } else {
#pragma unroll
    for (int q = 0; q < kOwn; ++q) to[q] = from[q];
  }
}

/// Weighted values of the thread's element for its queries, from query `begin` on.
template <int kQueries, int kOwn>
__device__ __forceinline__ void weigh_pages(const AttendPages& call, const PagedTile& tile, int span, int element,
                                            int begin, const PagedShared<kQueries>& shared, float (&sums)[kOwn]) {
  Seen seen[kOwn];
  int low = kSpan, high = 0, all_from = 0, all_to = kSpan;  // seen by any query, and by all that see something
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    sums[q] = 0;
    seen[q] = seen_of(shared.positions[begin + q], span, call.window);
    if (seen[q].nothing()) continue;  // nobody reads its sum
    low = min(low, seen[q].begin);
    high = max(high, seen[q].end);
    all_from = max(all_from, seen[q].begin);
    all_to = min(all_to, seen[q].end);
  }
  constexpr int kPage = static_cast<int>(kKvPage);
  const int d = static_cast<int>(call.kv.head_dim);
  for (int page = low / kPage; page * kPage < high; ++page) {
    const int start = page * kPage, from = max(low, start), to = min(high, start + kPage);
    const uint16_t* const values = page_rows(call, tile, span * int{kSpanPages} + page, 1) + element;
    if (from >= all_from && to <= all_to) {
#pragma unroll 8
      for (int t = from; t < to; ++t) {
        const float v = f16_value(values[(t - start) * d]);
        float weights[kOwn];
        load_weights(&shared.weights[t][begin], weights);
#pragma unroll
        for (int q = 0; q < kOwn; ++q) sums[q] = __fmaf_rn(weights[q], v, sums[q]);
      }
    } else {
      for (int t = from; t < to; ++t) {
        const float v = f16_value(values[(t - start) * d]);
#pragma unroll
        for (int q = 0; q < kOwn; ++q)  // 0 * infinity would be NaN
          if (seen[q].has(t)) sums[q] = __fmaf_rn(shared.weights[t][begin + q], v, sums[q]);
      }
    }
  }
}

/// Positions and elements of the tile's queries into shared memory; zeros where there is no query.
template <int kQueries>
__device__ __forceinline__ void load_queries(const AttendPages& call, const PagedTile& tile,
                                             PagedShared<kQueries>& shared) {
  const int d = static_cast<int>(call.kv.head_dim), thread = static_cast<int>(threadIdx.x);
  for (int at = thread; at < kQueries * d; at += kPagedThreads) {
    const int q = at / d, i = at % d;
    shared.queries[i][q] = q < tile.count ? call.q[tile.offset(call, q) + i] : 0.0f;
  }
  if (thread < kQueries) shared.positions[thread] = thread < tile.count ? tile.position(thread) : -1;
}

/// kParts threads share an element of the head: each has kQueries / kParts queries.
template <int kQueries, int kParts>
__global__ void __launch_bounds__(kPagedThreads) attend_tiles(const __grid_constant__ AttendPages call) {
  constexpr int kOwn = kQueries / kParts, kElements = kPagedThreads / kParts;
  __shared__ __align__(16) PagedShared<kQueries> shared;
  const PagedTile tile = paged_tile(call);
  const int part = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  const bool apart = call.results != nullptr;
  if (apart && part >= tile.spans) return;
  load_queries(call, tile, shared);
  __syncthreads();
  const int element = thread % kElements, begin = thread / kElements * kOwn, d = static_cast<int>(call.kv.head_dim);
  float all[kOwn] = {}, sums[kOwn] = {};
  const int first = tile.first_span + part, last = apart ? first + 1 : first + tile.spans;
  for (int span = first; span < last; ++span) {
    float scores[kQueries];
    score_position(call, tile, span, shared, scores);
    exponentials_of(call, span, scores, shared);
    sum_exponentials(call, span, shared);
    if (element < d) weigh_pages<kQueries, kOwn>(call, tile, span, element, begin, shared, sums);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kOwn && !apart; ++q)
      all[q] =
          merged(seen_of(shared.positions[begin + q], span, call.window), shared.merging[begin + q], sums[q], all[q]);
  }
  if (element >= d) return;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const int query = begin + q;
    if (query >= tile.count) continue;
    const Running running = shared.running[query];
    if (apart) {
      float* const to = result_of(call, part, query);
      to[2 + element] = sums[q];
      if (element == 0) to[0] = running.most, to[1] = running.total;
    } else {
      call.out[tile.offset(call, query) + element] = __fmul_rn(all[q], __fdiv_rn(1.0f, running.total));
    }
  }
}

template <bool kTensor>
__global__ void __launch_bounds__(kPagedThreads) merge_tiles(const __grid_constant__ AttendPages call) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto* const factors = reinterpret_cast<SpanFactors*>(bytes);
  let_successor_start();
  const PagedTile tile = paged_tile(call);
  wait_for_predecessor();
  const MergePart part = merge_part(call);
  if (part.query < tile.count)
    merge_elements<kTensor>(call, tile, static_cast<int>(blockIdx.x), part.query, part.begin,
                            factors + threadIdx.x / 32 * 32);
}

template <int kQueries>
cudaError_t launch_tiles(const AttendPages& call, dim3 grid, cudaStream_t stream) {
  auto* const kernel = call.kv.head_dim <= kPagedThreads / 4   ? &attend_tiles<kQueries, 4>
                       : call.kv.head_dim <= kPagedThreads / 2 ? &attend_tiles<kQueries, 2>
                                                               : &attend_tiles<kQueries, 1>;
  return launch(kernel, grid, dim3(kPagedThreads), 0, stream, false, call);
}

}  // namespace

Status attend_pages(const AttendPages& call) {
  if (call.tile_count == 0) return {};
  if (call.kv.head_dim < 1 || call.kv.head_dim > kMostHeadDim)
    return fail(ErrorCode::kUnsupported, "attention", "heads of " + std::to_string(call.kv.head_dim) + " elements",
                "at most " + std::to_string(kMostHeadDim) + " on a GPU");
  auto* const stream = static_cast<cudaStream_t>(call.stream);
  const auto x = static_cast<unsigned>(call.tile_count), y = static_cast<unsigned>(call.kv.kv_heads);
  const dim3 grid(x, y, call.results == nullptr ? 1u : static_cast<unsigned>(call.spans));
  if (takes_tensor_cores(call)) {
    if (auto s = attend_tensor_tiles(call); !s || call.results == nullptr) return s;
    return merge_spans(call, false);
  }
  if (call.tile_queries == kPromptQueries) {
    if (auto s = attend_prompt(call); !s || call.results == nullptr) return s;
    return merge_spans(call, false);
  }
  const auto e = call.tile_queries == 4   ? launch_tiles<4>(call, grid, stream)
                 : call.tile_queries == 8 ? launch_tiles<8>(call, grid, stream)
                                          : launch_tiles<16>(call, grid, stream);
  if (e != cudaSuccess || call.results == nullptr) return check_cuda(e, "attention");
  return merge_spans(call, false);
}

Status block::merge_spans(const AttendPages& call, bool overlap) {
  auto* const kernel = takes_tensor_cores(call) ? &merge_tiles<true> : &merge_tiles<false>;
  Device device{};
  auto e = current_device(&device);
  // The kernel needs little shared memory, but a split of the cache unlike its neighbours' would drain the
  // multiprocessors before and after it.
  if (e == cudaSuccess) e = allow_shared(reinterpret_cast<const void*>(kernel), device);
  if (e != cudaSuccess) return check_cuda(e, "attention");
  return check_cuda(launch(kernel, merge_grid(call), dim3(kPagedThreads), kPagedThreads * sizeof(SpanFactors),
                           static_cast<cudaStream_t>(call.stream), overlap, call),
                    "attention");
}

}  // namespace lowbit::cuda
