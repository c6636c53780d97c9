#pragma once
// Shared by attention kernels on pages: the queries of a thread block, the positions of a span that they see, and how
// spans are merged. The order of sums is that of docs/numerics.md.

#include <cmath>

#include "kernels/api.h"
#include "kernels/cuda/arrivals.cuh"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/half_matrices.cuh"
#include "kernels/cuda_step_api.h"

namespace lowbit::cuda::block {

constexpr int kSpan = kAttentionSpan;
constexpr int kPagedThreads = kSpan;  // a thread is a position of the span, then an element of the head
static_assert(kPagedThreads / kLanes >= 16 && kMostHeadDim <= kPagedThreads);

/// The work of a thread block.
struct PagedTile {
  BatchSequence sequence;
  const uint64_t* pages;
  int kv_head, group;  // heads that read one kv head
  int first, count;    // of its queries
  int first_span, spans;

  __device__ __forceinline__ int row(int query) const { return (first + query) / group; }
  __device__ __forceinline__ int position(int query) const { return sequence.position + row(query); }
  /// The offset of the query's elements in q and out.
  __device__ __forceinline__ int64_t offset(const AttendPages& call, int query) const {
    const int64_t head = int64_t{kv_head} * group + (first + query) % group;
    return ((int64_t{sequence.row} + row(query)) * call.heads + head) * call.kv.head_dim;
  }
};

__device__ __forceinline__ int first_seen(int position, int64_t window) {
  return window == 0 || position < window ? 0 : position + 1 - static_cast<int>(window);
}

/// Up to `queries` queries of a tile, from its query `skipped` on; their count may be 0 or less.
__device__ __forceinline__ PagedTile part_of_tile(const AttendPages& call, const QueryTile& tile, int kv_head,
                                                  int skipped, int queries) {
  PagedTile t;
  t.sequence = call.sequences[tile.sequence];
  t.pages = call.kv.tables + tile.sequence * call.kv.stride;
  t.kv_head = kv_head;
  t.group = static_cast<int>(call.heads) / static_cast<int>(call.kv.kv_heads);
  t.first = tile.first + skipped;
  t.count = min(queries, t.sequence.rows * t.group - t.first);
  t.first_span = first_seen(t.position(0), call.window) / kSpan;
  t.spans = t.position(t.count - 1) / kSpan + 1 - t.first_span;
  return t;
}
__device__ __forceinline__ PagedTile part_of_tile(const AttendPages& call, int index, int kv_head, int skipped,
                                                  int queries) {
  return part_of_tile(call, call.tiles[index], kv_head, skipped, queries);
}
/// Of an AttendStep, whose tiles need not be read.
__device__ __forceinline__ PagedTile sequence_tile(const AttendPages& call) {
  return part_of_tile(call, QueryTile{static_cast<int>(blockIdx.x), 0}, static_cast<int>(blockIdx.y), 0,
                      call.tile_queries);
}
__device__ __forceinline__ PagedTile paged_tile(const AttendPages& call) {
  return part_of_tile(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), 0, call.tile_queries);
}

/// The positions of a span that a query sees; none for position -1, where there is no query.
struct Seen {
  int begin, end;
  bool is_first;  // no span before has a position that it sees
  __device__ __forceinline__ bool nothing() const { return begin >= end; }
  __device__ __forceinline__ bool has(int t) const { return t >= begin && t < end; }
};
__device__ __forceinline__ Seen seen_of(int position, int span, int64_t window) {
  const int start = span * kSpan, first = first_seen(position, window);
  return {max(first - start, 0), min(max(position + 1 - start, 0), kSpan), first >= start};
}

__device__ __forceinline__ float shift_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

constexpr float kLeastPlain = -86.0f;  // from here on exponentials are normal numbers
/// exp_f32() where the outcome is normal: the power of two is added to the exponent. x at most 0.
__device__ __forceinline__ float plain_exp(float x) {
  constexpr float kMagic = 12582912.0f;  // as in round_half_even(); below it lies the integer
  const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), kMagic), n = __fsub_rn(shifted, kMagic);
  float r = __fmaf_rn(n, -0.693359375f, x);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = __fmaf_rn(p, r, 1.3981999507e-3f);
  p = __fmaf_rn(p, r, 8.3334519073e-3f);
  p = __fmaf_rn(p, r, 4.1665795894e-2f);
  p = __fmaf_rn(p, r, 1.6666665459e-1f);
  p = __fmaf_rn(p, r, 5.0000001201e-1f);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}
__device__ __forceinline__ float exp_of_difference(float x) { return x >= kLeastPlain ? plain_exp(x) : exp_f32(x); }

/// The layer's keys (0) or values (1) of a page.
__device__ __forceinline__ const uint16_t* page_rows(const AttendPages& call, const PagedTile& tile, int page,
                                                     int which) {
  return reinterpret_cast<const uint16_t*>(tile.pages[page]) +
         ((call.kv.index * 2 + which) * call.kv.kv_heads + tile.kv_head) * kKvPage * call.kv.head_dim;
}

/// Factors that merge a span: the spans before it times `before`, plus the span times `here`. `here` is 0 and `before`
/// 1 where the query sees nothing of the span.
struct Merging {
  float before, here;
};

/// The largest score and the sum of exponentials of one query, over the spans so far.
struct Running {
  float most, total;
};
/// A span that is not the first one. kTensor: scores are exponents of two.
template <bool kTensor = false>
__device__ __forceinline__ Merging merge_later(float most, float total, Running& running) {
  const auto power = [](float x) { return kTensor ? power_of_two(x) : exp_f32(x); };
  const float next = most > running.most ? most : running.most;
  const float before = power(__fsub_rn(running.most, shift_of(next))), here = power(__fsub_rn(most, shift_of(next)));
  running = {next, __fmaf_rn(total, here, __fmul_rn(running.total, before))};
  return {before, here};
}
template <bool kTensor = false>
__device__ __forceinline__ Merging merge(const Seen& seen, float most, float total, Running& running) {
  if (seen.nothing()) return {1.0f, 0.0f};
  if (!seen.is_first) return merge_later<kTensor>(most, total, running);
  running = {most, total};
  return {0.0f, 1.0f};
}
__device__ __forceinline__ float merged(const Seen& seen, const Merging& by, float sum, float all) {
  if (seen.nothing()) return all;
  return seen.is_first ? sum : __fmaf_rn(sum, by.here, __fmul_rn(all, by.before));
}

/// Shared memory of a thread block. Queries lie next to each other: a thread reads four at once.
template <int kQueries>
struct PagedShared {
  static constexpr int kPitch = kQueries + 4;  // neighbouring positions in different banks
  float queries[kMostHeadDim][kPitch];
  float weights[kSpan][kPitch];  // scores, then their exponentials
  int positions[kQueries];       // -1: there is no such query
  float most[kQueries];
  Running running[kQueries];
  Merging merging[kQueries];
};

/// shared.weights become exponentials, shared.most the largest scores. Half a warp per query finds them.
template <int kQueries>
__device__ __forceinline__ void exponentials_of(const AttendPages& call, int span, const float (&scores)[kQueries],
                                                PagedShared<kQueries>& shared) {
  const int t = static_cast<int>(threadIdx.x), half = t / kLanes, lane = t % kLanes;
#pragma unroll
  for (int q = 0; q < kQueries; ++q) shared.weights[t][q] = scores[q];
  __syncthreads();
  if (half < kQueries) {
    const Seen seen = seen_of(shared.positions[half], span, call.window);
    float most = -INFINITY;
    for (int at = lane; at < kSpan; at += kLanes) {
      const float s = shared.weights[at][half];
      if (seen.has(at)) most = s > most ? s : most;
    }
    most = largest_of_lanes(most);
    if (lane == 0) shared.most[half] = most;
  }
  __syncthreads();
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    const bool sees = seen_of(shared.positions[q], span, call.window).has(t);
    shared.weights[t][q] = sees ? exp_f32(__fsub_rn(scores[q], shift_of(shared.most[q]))) : 0.0f;
  }
  __syncthreads();
}

/// Sums of exponentials, half a warp per query, and what they make of the sums so far.
template <int kQueries>
__device__ __forceinline__ void sum_exponentials(const AttendPages& call, int span, PagedShared<kQueries>& shared) {
  const int half = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  if (half >= kQueries) return;
  float sum = 0;
  for (int at = lane; at < kSpan; at += kLanes) sum = __fadd_rn(sum, shared.weights[at][half]);
  sum = reduce_lanes(sum);
  if (lane != 0) return;
  const Seen seen = seen_of(shared.positions[half], span, call.window);
  if (call.results != nullptr) {
    shared.running[half] = {shared.most[half], sum};  // of this span alone
  } else {
    shared.merging[half] = merge(seen, shared.most[half], sum, shared.running[half]);
  }
}

/// Where one span's largest score, sum and weighted values of a tile's query lie.
__device__ __forceinline__ float* result_of(const AttendPages& call, int tile, int kv_head, int span_of_tile,
                                            int query) {
  const int64_t at = (int64_t{tile} * call.kv.kv_heads + kv_head) * call.spans + span_of_tile;
  return call.results + (at * call.tile_queries + query) * (call.kv.head_dim + 2);
}
__device__ __forceinline__ float* result_of(const AttendPages& call, int span_of_tile, int query) {
  return result_of(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), span_of_tile, query);
}

/// Puts the results of a tile's spans together, in ascending order, one thread per element of a query.
template <bool kTensor = false>
__device__ __forceinline__ void merge_tile(const AttendPages& call, const PagedTile& tile) {
  const int d = static_cast<int>(call.kv.head_dim);
  for (int at = static_cast<int>(threadIdx.x); at < tile.count * d; at += kPagedThreads) {
    const int query = at / d, i = at % d, position = tile.position(query);
    Running running{0, 0};
    float all = 0;
#pragma unroll 4
    for (int part = 0; part < tile.spans; ++part) {
      const float* const from = result_of(call, part, query);
      const float most = load_from_others(from), total = load_from_others(from + 1),
                  sum = load_from_others(from + 2 + i);
      const Seen seen = seen_of(position, tile.first_span + part, call.window);
      all = merged(seen, merge<kTensor>(seen, most, total, running), sum, all);
    }
    call.out[tile.offset(call, query) + i] = __fmul_rn(all, __fdiv_rn(1.0f, running.total));
  }
}
/// Applies merge() to all elements of a query.
struct __align__(16) SpanFactors {
  float before, here, total;
  int seen;  // 0: nothing of it, 1: it is the first, 2: neither
};

/// merge_tile() for 32 elements of one query from `begin` on, by one warp: lanes are spans, 32 at a time, and work out
/// their factors in `factors` [32], then elements. Largest scores so far are a prefix of maxima. What a lane adds is
/// asked for at once, before: one after the other the spans of a long context would wait for memory that often.
template <bool kTensor = false>
__device__ __forceinline__ void merge_elements(const AttendPages& call, const PagedTile& tile, int index, int query,
                                               int begin, SpanFactors* factors) {
  const auto power = [](float x) { return kTensor ? power_of_two(x) : exp_of_difference(x); };
  const int lane = static_cast<int>(threadIdx.x) % 32, element = begin + lane, position = tile.position(query);
  const bool has_element = element < static_cast<int>(call.kv.head_dim);
  const float* const results = result_of(call, index, tile.kv_head, 0, query);
  const int64_t apart = int64_t{call.tile_queries} * (call.kv.head_dim + 2);
  float all = 0, total = 0, carry = -INFINITY;
  for (int first = 0; first < tile.spans; first += 32) {
    const int part = first + lane, count = min(tile.spans - first, 32);
    float sums[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      sums[i] = 0;
      if (i < count && has_element) sums[i] = load_from_others(results + (first + i) * apart + 2 + element);
    }
    const Seen seen = seen_of(position, tile.first_span + part, call.window);
    const bool there = part < tile.spans && !seen.nothing();
    SpanFactors own = {0, 0, 0, there ? seen.is_first ? 1 : 2 : 0};
    float most = -INFINITY;
    if (there)
      most = load_from_others(results + part * apart), own.total = load_from_others(results + part * apart + 1);
    float so_far = most;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) so_far = fmaxf(so_far, __shfl_sync(0xffffffffu, so_far, max(lane - w, 0), 32));
    so_far = fmaxf(so_far, carry);
    const float last = __shfl_sync(0xffffffffu, so_far, max(lane - 1, 0), 32), shift = shift_of(so_far);
    own.before = power(__fsub_rn(lane == 0 ? carry : last, shift));
    own.here = power(__fsub_rn(most, shift));
    carry = __shfl_sync(0xffffffffu, so_far, 31, 32);
    __syncwarp();  // what was there has been read
    factors[lane] = own;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; ++i) {  // behind the last span there are none to see
      const SpanFactors by = factors[i];
      if (by.seen == 0) continue;
      total = by.seen == 1 ? by.total : __fmaf_rn(by.total, by.here, __fmul_rn(total, by.before));
      all = by.seen == 1 ? sums[i] : __fmaf_rn(sums[i], by.here, __fmul_rn(all, by.before));
    }
  }
  if (has_element) call.out[tile.offset(call, query) + element] = __fmul_rn(all, __fdiv_rn(1.0f, total));
}

/// Thread blocks of kPagedThreads whose warps have 32 elements of a query each: that of the calling warp.
struct MergePart {
  int query, begin;
};
__device__ __forceinline__ MergePart merge_part(const AttendPages& call) {
  const int parts = (static_cast<int>(call.kv.head_dim) + 31) / 32;
  const int at = static_cast<int>(blockIdx.z * kPagedThreads + threadIdx.x) / 32;
  return {at / parts, at % parts * 32};
}
inline dim3 merge_grid(const AttendPages& call) {
  const int64_t threads = call.tile_queries * ((call.kv.head_dim + 31) / 32) * 32;
  return dim3(static_cast<unsigned>(call.tile_count), static_cast<unsigned>(call.kv.kv_heads),
              static_cast<unsigned>((threads + kPagedThreads - 1) / kPagedThreads));
}

/// Puts the spans of all tiles together. `overlap`: starts while its predecessor finishes.
Status merge_spans(const AttendPages& call, bool overlap);

/// The spans of tiles of kPromptQueries, together or apart, without merge_spans().
Status attend_prompt(const AttendPages& call);

/// The spans of tiles of any size on tensor cores, without merge_spans(); and attend_step().
bool takes_tensor_cores(const AttendPages& call);
Status attend_tensor_tiles(const AttendPages& call);
Status attend_tensor_step(const AttendStep& call);
bool has_tensor_step(int64_t head_dim, int64_t shared_bytes);

}  // namespace lowbit::cuda::block
