// Attention of sequences that decode, a row each: rotation, the new key and value, and the spans, in one launch. A
// thread block has the heads of one kv head and one span, whose keys and values it fetches at once, before its
// predecessor has ended. The order of sums is that of docs/numerics.md, as in attention.cu.

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kPage = static_cast<int>(kKvPage);

constexpr int kHalfWarps = kPagedThreads / kLanes, kWeightPitch = kSpan + 4;

/// Shared memory of a thread block behind keys and values. Neighbouring positions' weights are neighbours.
template <int kQueries>
struct StepShared {
  float queries[kMostHeadDim][kQueries];
  float weights[kQueries][kWeightPitch];  // exponentials of scores
  float of_lanes[kQueries][kHalfWarps];   // largest scores
  float totals[kQueries];
  bool is_last;  // of the spans' blocks
};

/// Bytes of the keys, or of the values, of a span.
constexpr LOWBIT_HD int64_t span_bytes(int64_t head_dim) { return int64_t{kSpan} * head_dim * 2; }
template <int kQueries>
constexpr LOWBIT_HD int64_t step_shared_bytes(int64_t head_dim) {
  return 2 * span_bytes(head_dim) + static_cast<int64_t>(sizeof(StepShared<kQueries>));
}

/// A span of one kv head in shared memory, as pages have it: keys [page][head_dim][64], values [position][head_dim].
struct StagedSpan {
  uint16_t *keys, *values;
  int first_page, pages;  // of the span: those with positions that the row sees

  __device__ __forceinline__ void fetch(const AttendPages& call, const PagedTile& tile, int span) const {
    const int chunks = kPage * static_cast<int>(call.kv.head_dim) / 8;  // 16 bytes each, of a page
    for (int at = static_cast<int>(threadIdx.x); at < 2 * pages * chunks; at += kPagedThreads) {
      const int chunk = at % chunks, page = first_page + at / chunks % pages, which = at / chunks / pages;
      uint16_t* const to = (which == 0 ? keys : values) + 8 * (page * chunks + chunk);
      copy_to_shared_16(to, page_rows(call, tile, span * int{kSpanPages} + page, which) + 8 * chunk);
    }
  }
};

/// A pair of elements, `half` apart, rotated as rotate_and_store() does.
__device__ __forceinline__ float2 rotated_pair(const float* from, int half, float cos, float sin) {
  const float a = from[0], b = from[half];
  return {__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)), __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin))};
}

/// Rotated queries into shared memory; the new key and value into their page and, where this span has them, beside the
/// others. All copies have come.
template <int kQueries>
__device__ __forceinline__ void add_rows_of_step(const AttendStep& call, const PagedTile& tile, int span,
                                                 const StagedSpan& staged, StepShared<kQueries>& shared) {
  const AttendPages& attend = call.attend;
  const int d = static_cast<int>(attend.kv.head_dim), half = d / 2, position = tile.sequence.position;
  const bool has_row = position / kSpan == span;
  for (int at = static_cast<int>(threadIdx.x); at < (kQueries + 2) * half; at += kPagedThreads) {
    const int q = at / half, i = at % half;
    const float cos = call.cos[int64_t{position} * half + i], sin = call.sin[int64_t{position} * half + i];
    if (q < kQueries) {
      const bool there = q < tile.count;
      const float2 pair = rotated_pair(attend.q + tile.offset(attend, there ? q : 0) + i, half, cos, sin);
      shared.queries[i][q] = there ? pair.x : 0.0f;
      shared.queries[i + half][q] = there ? pair.y : 0.0f;
      continue;
    }
    if (!has_row) continue;
    const int64_t row = (int64_t{tile.sequence.row} * attend.kv.kv_heads + tile.kv_head) * d + i;
    const int page = position / kPage, t = position % kPage, in_span = position % kSpan;
    auto* const rows = const_cast<uint16_t*>(page_rows(attend, tile, page, q - kQueries));
    if (q == kQueries) {
      const float2 pair = rotated_pair(call.k + row, half, cos, sin);
      uint16_t* const here = staged.keys + in_span / kPage * (d * kPage) + t;
      here[i * kPage] = rows[i * kPage + t] = f16_nearest(pair.x);
      here[(i + half) * kPage] = rows[(i + half) * kPage + t] = f16_nearest(pair.y);
    } else {
      uint16_t* const here = staged.values + in_span * d;
      here[i] = rows[t * d + i] = f16_nearest(call.v[row]);
      here[i + half] = rows[t * d + i + half] = f16_nearest(call.v[row + half]);
    }
  }
}

template <int kQueries>
__device__ __forceinline__ void score_staged(const AttendPages& call, const Seen& seen, const StagedSpan& staged,
                                             const StepShared<kQueries>& shared, float (&scores)[kQueries]) {
#pragma unroll
  for (float& s : scores) s = 0;
  const int t = static_cast<int>(threadIdx.x), d = static_cast<int>(call.kv.head_dim);
  if (!seen.has(t)) return;
  const uint16_t* const key = staged.keys + t / kPage * (d * kPage) + t % kPage;
#pragma unroll 8
  for (int i = 0; i < d; ++i) {
    const float k = f16_value(key[i * kPage]);
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

/// The largest scores of the span, in all threads; shared.weights become exponentials.
template <int kQueries>
__device__ __forceinline__ void exponentials_of_step(const Seen& seen, const float (&scores)[kQueries],
                                                     StepShared<kQueries>& shared, float (&most)[kQueries]) {
  const int t = static_cast<int>(threadIdx.x);
  const bool sees = seen.has(t);
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {  // a NaN is never the largest
    float m = sees && scores[q] > -INFINITY ? scores[q] : -INFINITY;
    m = largest_of_lanes(m);
    if (t % kLanes == 0) shared.of_lanes[q][t / kLanes] = m;
  }
  __syncthreads();
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    most[q] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHalfWarps; ++i) most[q] = shared.of_lanes[q][i] > most[q] ? shared.of_lanes[q][i] : most[q];
    shared.weights[q][t] = sees ? exp_f32(__fsub_rn(scores[q], shift_of(most[q]))) : 0.0f;
  }
  __syncthreads();
}

/// Sums of exponentials: the last half warps, a query each.
template <int kQueries>
__device__ __forceinline__ void sum_exponentials_of_step(const AttendPages& call, const PagedTile& tile,
                                                         const float (&most)[kQueries], StepShared<kQueries>& shared) {
  const int query = kHalfWarps - 1 - static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const float* const from = shared.weights[min(query, kQueries - 1)] + lane;
  float sum = 0;
#pragma unroll
  for (int at = 0; at < kSpan; at += kLanes) sum = __fadd_rn(sum, from[at]);
  sum = reduce_lanes(sum);
  if (lane != 0 || query >= tile.count) return;
  shared.totals[query] = sum;
  if (call.results == nullptr) return;
  float* const to = result_of(call, static_cast<int>(blockIdx.z), query);
#pragma unroll
  for (int q = 0; q < kQueries; ++q)
    if (q == query) to[0] = most[q];
  to[1] = sum;
}

/// Weighted values of an element of a query, or of two neighbouring ones.
template <int kQueries, int kElements>
__device__ __forceinline__ void weigh_staged(const AttendPages& call, const Seen& seen, const StagedSpan& staged,
                                             const StepShared<kQueries>& shared, int query, int element,
                                             float (&sums)[kElements]) {
  const int d = static_cast<int>(call.kv.head_dim);
  const uint16_t* const values = staged.values + element;
  const float* const weights = shared.weights[query];
  const auto add = [&](int t, float weight) {
    if constexpr (kElements == 1) {
      sums[0] = __fmaf_rn(weight, f16_value(values[t * d]), sums[0]);
    } else {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(values + t * d);
      sums[0] = __fmaf_rn(weight, f16_value(static_cast<uint16_t>(pair)), sums[0]);
      sums[1] = __fmaf_rn(weight, f16_value(static_cast<uint16_t>(pair >> 16)), sums[1]);
    }
  };
  int t = seen.begin;
  for (; t < seen.end && t % 4 != 0; ++t) add(t, weights[t]);
#pragma unroll 4
  for (; t + 4 <= seen.end; t += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + t);
    add(t, four.x);
    add(t + 1, four.y);
    add(t + 2, four.z);
    add(t + 3, four.w);
  }
  for (; t < seen.end; ++t) add(t, weights[t]);
}

template <int kQueries, int kElements>
__device__ __forceinline__ void weigh_elements(const AttendPages& call, const PagedTile& tile, const Seen& seen,
                                               const StagedSpan& staged, const StepShared<kQueries>& shared) {
  const int of_query = static_cast<int>(call.kv.head_dim) / kElements;
  for (int at = static_cast<int>(threadIdx.x); at < tile.count * of_query; at += kPagedThreads) {
    const int query = at / of_query, element = at % of_query * kElements;
    float sums[kElements] = {};
    weigh_staged<kQueries, kElements>(call, seen, staged, shared, query, element, sums);
    const bool apart = call.results != nullptr;
    float* const to = apart ? result_of(call, static_cast<int>(blockIdx.z), query) + 2 + element
                            : call.out + tile.offset(call, query) + element;
    const float by = apart ? 1.0f : __fdiv_rn(1.0f, shared.totals[query]);
#pragma unroll
    for (int i = 0; i < kElements; ++i) to[i] = apart ? sums[i] : __fmul_rn(sums[i], by);
  }
}

/// Weighted values of all queries of the tile: results of the span, or the output where there is no other. A thread has
/// one element if there are threads enough: sums are chains along the span.
template <int kQueries>
__device__ __forceinline__ void weigh_step(const AttendPages& call, const PagedTile& tile, const Seen& seen,
                                           const StagedSpan& staged, const StepShared<kQueries>& shared) {
  if (call.results == nullptr) __syncthreads();  // totals
  if (tile.count * call.kv.head_dim <= kPagedThreads) {
    weigh_elements<kQueries, 1>(call, tile, seen, staged, shared);
  } else {
    weigh_elements<kQueries, 2>(call, tile, seen, staged, shared);
  }
}

template <int kQueries>
__global__ void __launch_bounds__(kPagedThreads) attend_rows(const __grid_constant__ AttendStep call) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  const AttendPages& attend = call.attend;
  const PagedTile tile = paged_tile(attend);
  const int d = static_cast<int>(attend.kv.head_dim), span = tile.first_span + static_cast<int>(blockIdx.z);
  if (static_cast<int>(blockIdx.z) >= tile.spans) return;
  auto* const keys = reinterpret_cast<uint16_t*>(bytes);
  auto& shared = *reinterpret_cast<StepShared<kQueries>*>(bytes + 2 * span_bytes(d));
  const Seen seen = seen_of(tile.sequence.position, span, attend.window);
  const int first_page = seen.begin / kPage;
  const StagedSpan staged = {keys, keys + kSpan * d, first_page, (seen.end + kPage - 1) / kPage - first_page};
  staged.fetch(attend, tile, span);
  wait_for_predecessor();
  wait_for_all_copies();
  __syncthreads();
  add_rows_of_step(call, tile, span, staged, shared);
  __syncthreads();
  float scores[kQueries], most[kQueries];
  score_staged(attend, seen, staged, shared, scores);
  exponentials_of_step(seen, scores, shared, most);
  sum_exponentials_of_step(attend, tile, most, shared);
  weigh_step(attend, tile, seen, staged, shared);
  if (attend.results == nullptr) return;
  __syncthreads();
  if (threadIdx.x == 0)
    shared.is_last =
        arrives_last(call.arrived + blockIdx.x * attend.kv.kv_heads + blockIdx.y, static_cast<uint32_t>(tile.spans));
  __syncthreads();
  if (shared.is_last) merge_tile(attend, tile);
}

template <int kQueries>
cudaError_t launch_rows(const AttendStep& call, const Device& device) {
  auto* const kernel = &attend_rows<kQueries>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const AttendPages& a = call.attend;
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  a.results == nullptr ? 1u : static_cast<unsigned>(a.spans));
  return launch(kernel, grid, dim3(kPagedThreads), static_cast<size_t>(step_shared_bytes<kQueries>(a.kv.head_dim)),
                static_cast<cudaStream_t>(a.stream), call.overlap && device.bulk_copies, call);
}

}  // namespace

bool has_attend_step(const AttendPages& call) {
  const int tile_queries = call.tile_queries;
  const int64_t head_dim = call.kv.head_dim;
  Device device{};
  if (head_dim < 2 || head_dim > kMostHeadDim || head_dim % 2 != 0 || current_device(&device) != cudaSuccess)
    return false;
  if (takes_tensor_cores(call)) return has_tensor_step(head_dim, device.shared_bytes);
  const int64_t bytes = tile_queries == 4   ? step_shared_bytes<4>(head_dim)
                        : tile_queries == 8 ? step_shared_bytes<8>(head_dim)
                                            : step_shared_bytes<16>(head_dim);
  return bytes <= device.shared_bytes;
}

Status attend_step(const AttendStep& call) {
  const AttendPages& a = call.attend;
  if (a.tile_count == 0) return {};
  if (takes_tensor_cores(a)) return attend_tensor_step(call);
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess)
    e = a.tile_queries == 4   ? launch_rows<4>(call, device)
        : a.tile_queries == 8 ? launch_rows<8>(call, device)
                              : launch_rows<16>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
