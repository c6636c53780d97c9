#pragma once
// How the results of attention_codes.cu's warps, then those of the parts of a tile, are put together.

#include "kernels/cuda/arrivals.cuh"
#include "kernels/cuda/block/code_queries.cuh"
#include "kernels/cuda/cluster.cuh"

namespace lowbit::cuda::block {

/// Puts the warps' results together: give(query, element, two elements, largest score, sum of weights).
template <class F, class Give>
__device__ __forceinline__ void join_warps(const CodesShared<F>& shared, const uint8_t* bytes, const Give& give) {
#pragma unroll 1
  for (int at = thread_read_here(); at < shared.count * F::kHead / 2; at += kCodesThreads) {
    const int q = at / (F::kHead / 2), element = at % (F::kHead / 2) * 2;
    float most = -INFINITY, total = 0;
    float2 all = {0, 0};
    const PerWarp<float> scores = shared.most[q], totals = shared.total[q];
    const PerWarp<int> results = shared.results;
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) most = fmaxf(most, scores.of[w]);
    const float shift = shift_of(most);
#pragma unroll
    for (int w = 0; w < kCodesWarps; ++w) {
      const float by = power_of_two(__fsub_rn(scores.of[w], shift));
      const float2 two = *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(bytes + results.of[w]) +
                                                          q * F::kPitch + element);
      total = __fmaf_rn(totals.of[w], by, total);
      all = {__fmaf_rn(two.x, by, all.x), __fmaf_rn(two.y, by, all.y)};
    }
    give(q, element, all, most, total);
  }
}
/// The tile's outputs, [query][kHead], where queries are that nobody reads any more.
template <class F>
__device__ __forceinline__ float* outputs_in(CodesShared<F>& shared) {
  static_assert(sizeof(shared.halves) >= sizeof(float) * F::kQueries * F::kHead);
  return reinterpret_cast<float*>(shared.halves);
}
/// Weighted values by their sum of weights.
template <class F>
__device__ __forceinline__ void keep_output(CodesShared<F>& shared, int q, int element, float2 all, float total) {
  const float by = __fdiv_rn(1.0f, total);
  *reinterpret_cast<float2*>(outputs_in(shared) + q * F::kHead + element) = {__fmul_rn(all.x, by),
                                                                             __fmul_rn(all.y, by)};
}
/// Stores a query's outputs, transformed if they are to be (docs/numerics.md#hadamard-transform), by a warp.
template <class F>
__device__ __forceinline__ void store_output(const AttendPacked& call, const CodesShared<F>& shared, int q, int lane,
                                             float (&x)[F::kHead / 32]) {
  constexpr int kEach = F::kHead / 32;
  if (call.hadamard != 0) {
#pragma unroll
    for (int w = 1; w < kEach; w *= 2)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i & w) continue;
        const float a = x[i], b = x[i + w];
        x[i] = __fadd_rn(a, b), x[i + w] = __fsub_rn(a, b);
      }
#pragma unroll
    for (int w = 1; w < 32; w *= 2)
#pragma unroll
      for (float& v : x) {
        const float other = xor_lanes(v, w);
        v = lane & w ? __fsub_rn(other, v) : __fadd_rn(v, other);
      }
#pragma unroll
    for (float& v : x) v = __fmul_rn(v, call.hadamard);
  }
  float* const to = call.attend.out + shared.offsets[q] + lane * kEach;
#pragma unroll
  for (int i = 0; i < kEach; i += 2) *reinterpret_cast<float2*>(to + i) = {x[i], x[i + 1]};
}
template <class F>
__device__ __forceinline__ void store_outputs(const AttendPacked& call, CodesShared<F>& shared) {
  constexpr int kEach = F::kHead / 32;
  const int thread = thread_read_here(), q = thread / 32, lane = thread % 32;
  if (q >= shared.count) return;
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = outputs_in(shared)[q * F::kHead + lane * kEach + i];
  store_output<F>(call, shared, q, lane, x);
}

/// Parts of a tile whose blocks are a cluster: block q % parts puts query q together. A part's result of its query
/// number q / parts lies in the last slot of a warp, which is not used where warps have one item each.
constexpr int kClusterParts = 16;
template <class F>
__device__ __forceinline__ uint8_t* part_in_cluster(uint8_t* bytes, int part, int query) {
  constexpr int kOne = F::kHead * 4 + 16;  // the weighted values, largest score and sum of weights
  static_assert(F::kQueries * kOne <= F::kSlot && (F::kQueries + 7) / 8 * kOne <= F::kSlot / 2);
  return bytes + part % kCodesWarps * F::kWarpBytes + 2 * F::kSlot + part / kCodesWarps * (F::kSlot / 2) + query * kOne;
}
__device__ __forceinline__ bool joins_in_cluster(const CodesWork& work) {
  return work.parts > 1 && work.parts <= kClusterParts && work.of_warp == 1;
}
/// Before the first store of another block: what this block waits for.
template <class F>
__device__ __forceinline__ void expect_parts(const CodesWork& work, int count, CodesShared<F>& shared) {
  if (threadIdx.x == 0 && joins_in_cluster(work)) {
    const int queries = (max(0, count - work.block) + work.parts - 1) / work.parts;
    expect_in_cluster(&shared.parts_have_come, queries * work.parts * (F::kHead * 4 + 8));
  }
  arrive_in_cluster();
}
/// Sends the block's part, and does what join_parts() and store_outputs() do: a warp has a query.
template <class F>
__device__ __forceinline__ void join_cluster(const AttendPacked& call, const CodesWork& work, uint8_t* bytes,
                                             CodesShared<F>& shared) {
  constexpr int kEach = F::kHead / 32;
  wait_for_cluster();
  join_warps<F>(shared, bytes, [&](int query, int element, float2 all, float most, float total) {
    uint8_t* const to = part_in_cluster<F>(bytes, work.part, query / work.parts);
    const int rank = query % work.parts;
    const uint32_t at = address_in_cluster(to, rank), barrier = address_in_cluster(&shared.parts_have_come, rank);
    store_in_cluster(at + static_cast<uint32_t>(element) * 4, all, barrier);
    if (element == 0) store_in_cluster(at + F::kHead * 4, float2{most, total}, barrier);
  });
  const int thread = thread_read_here(), own = thread / 32, lane = thread % 32, q = work.block + own * work.parts;
  if (q >= shared.count) return;
  wait_for_stores(&shared.parts_have_come);
  float2 of = {-INFINITY, 0};
  if (lane < work.parts) of = *reinterpret_cast<const float2*>(part_in_cluster<F>(bytes, lane, own) + F::kHead * 4);
  float most = of.x;
#pragma unroll
  for (int w = 1; w < 32; w *= 2) most = fmaxf(most, xor_lanes(most, w));
  const float by = power_of_two(__fsub_rn(of.x, shift_of(most)));
  float total = lane < work.parts ? __fmaf_rn(of.y, by, 0.0f) : 0.0f;
#pragma unroll
  for (int w = 1; w < 32; w *= 2) total = __fadd_rn(total, xor_lanes(total, w));
  float x[kEach] = {};
#pragma unroll 4
  for (int part = 0; part < work.parts; ++part) {
    const auto* const from = reinterpret_cast<const float*>(part_in_cluster<F>(bytes, part, own)) + lane * kEach;
    const float of_part = lane_value(by, part);
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = __fmaf_rn(from[i], of_part, x[i]);
  }
  const float inverse = __fdiv_rn(1.0f, total);
#pragma unroll
  for (float& v : x) v = __fmul_rn(v, inverse);
  store_output<F>(call, shared, q, lane, x);
}

/// Where one part's result of a tile's query lies: largest score, sum of weights, weighted values.
__device__ __forceinline__ float* part_result(const AttendPages& call, int most_parts, int tile, int part, int query) {
  const int64_t at = (int64_t{tile} * call.kv.kv_heads + blockIdx.x) * most_parts + part;
  return call.results + (at * call.tile_queries + query) * (call.kv.head_dim + 2);
}
/// Puts the parts of a tile together. All that is read of one part is asked for at once with that of others, and values
/// before scores have come: one after the other they would wait for memory that often.
template <class F>
__device__ __forceinline__ void join_parts(const AttendPages& call, int most_parts, int tile, int parts, uint8_t* bytes,
                                           CodesShared<F>& shared) {
  // Scores of parts and sums of weights of a query, then factors in place of scores.
  const auto of_parts = [&](int q) { return reinterpret_cast<float2*>(bytes + shared.results.of[q]); };
  const int thread = thread_read_here(), lane = thread % 32, q_of_warp = thread / 32;
  constexpr int kAtOnce = 16, kPairs = F::kHead / 2;
  const int64_t apart = int64_t{call.tile_queries} * (call.kv.head_dim + 2);
  float2 values[kAtOnce];
  const auto ask = [&](int at, int first) {
    const float* const from =
        part_result(call, most_parts, tile, first, at / kPairs) + 2 + static_cast<unsigned>(at) % kPairs * 2;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] = {0, 0};
      if (first + i < parts) values[i] = load_from_others(reinterpret_cast<const float2*>(from + i * apart));
    }
  };
  if (thread < shared.count * kPairs) ask(thread, 0);
  if (q_of_warp < shared.count) {
    float2* const own = of_parts(q_of_warp);
    float most = -INFINITY, total = 0;
#pragma unroll 4
    for (int u = lane; u < parts; u += 32) {
      own[u] = load_from_others(reinterpret_cast<const float2*>(part_result(call, most_parts, tile, u, q_of_warp)));
      most = fmaxf(most, own[u].x);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) most = fmaxf(most, xor_lanes(most, w));
    for (int u = lane; u < parts; u += 32) {
      own[u].x = power_of_two(__fsub_rn(own[u].x, shift_of(most)));
      total = __fmaf_rn(own[u].y, own[u].x, total);
    }
#pragma unroll
    for (int w = 1; w < 32; w *= 2) total = __fadd_rn(total, xor_lanes(total, w));
    if (lane == 0) shared.of_parts[q_of_warp] = total;
  }
  __syncthreads();
#pragma unroll 1
  for (int at = thread; at < shared.count * kPairs; at += kCodesThreads) {
    if (at != thread) ask(at, 0);
    const int q = at / kPairs;
    float2 all = {0, 0};
#pragma unroll 1
    for (int first = 0;; ask(at, first)) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= parts) break;
        const float by = of_parts(q)[first + i].x;
        all = {__fmaf_rn(values[i].x, by, all.x), __fmaf_rn(values[i].y, by, all.y)};
      }
      first += kAtOnce;
      if (first >= parts) break;
    }
    keep_output(shared, q, at % kPairs * 2, all, shared.of_parts[q]);
  }
}

}  // namespace lowbit::cuda::block
