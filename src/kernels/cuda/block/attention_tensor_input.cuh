#pragma once
// Input of attention_tensor_step.cu: the pages of a span, and the rows that the kernel before has written.

#include "kernels/cuda/block/attention_tensor.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::block {

constexpr int kStepWarps = kPagedThreads / 32, kHalfTiles = kPageTiles / 2, kHalfSteps = kPageSteps / 2;
static_assert(kStepWarps == 2 * kSpanPages && kPagedThreads / kLanes == kTensorRows);

template <int kDim>
struct TensorStepShared {
  static constexpr int kQueryPitch = kDim + 8, kProductPitch = kDim + 8;
  union {
    uint16_t keys[kSpanPages][kKeyHalves<kDim>];
    float products[kSpanPages][kTensorRows][kProductPitch];  // behind the scores
  };
  uint16_t values[kSpanPages][kValueHalves<kDim>];
  uint16_t high[kTensorRows][kQueryPitch], low[kTensorRows][kQueryPitch];
  uint4 weights[kSpanPages][kPageSteps][2][32];  // fragments of both parts
  float4 totals[kStepWarps][kTensorRows];        // of the lanes that share a row
  float most[kStepWarps][kTensorRows], exponent[kTensorRows];
  uint64_t spans_have_come;  // a barrier
  bool is_last;              // of the spans' blocks
};

/// Where the queries of a tile begin in q and out: those of one row, one behind the other.
__device__ __forceinline__ int64_t step_offset(const AttendPages& call, const PagedTile& tile) {
  return (int64_t{tile.sequence.row} * call.heads + int64_t{tile.kv_head} * tile.group + tile.first) * call.kv.head_dim;
}

/// Starts the copies of what the span's rows see. Values that they do not see are zeros: 0 times infinity is no number.
template <int kDim>
__device__ __forceinline__ void fetch_span(const AttendPages& call, const PagedTile& tile, int span, const Seen& seen,
                                           TensorStepShared<kDim>& shared) {
  constexpr int kEights = kDim / 8, kOfPage = kTensorPage * kEights;
  const int first_page = seen.begin / kTensorPage, pages = (seen.end + kTensorPage - 1) / kTensorPage - first_page;
  const int from = span * static_cast<int>(kSpanPages) + first_page, thread = static_cast<int>(threadIdx.x);
#pragma unroll 4
  for (int at = thread; at < pages * kOfPage; at += kPagedThreads) {
    const int page = at / kOfPage, i = at % kOfPage;
    copy_to_shared_16(&shared.keys[first_page + page][i / 8 * kKeyPitch + i % 8 * 8],
                      page_rows(call, tile, from + page, 0) + i * 8);
  }
#pragma unroll 4
  for (int at = thread; at < pages * kOfPage; at += kPagedThreads) {
    const int page = at / kOfPage, i = at % kOfPage, t = i / kEights;
    uint16_t* const to = &shared.values[first_page + page][t * kValuePitch16<kDim> + i % kEights * 8];
    if (seen.has((first_page + page) * kTensorPage + t)) {
      copy_to_shared_16(to, page_rows(call, tile, from + page, 1) + i * 8);
    } else {
      *reinterpret_cast<uint4*>(to) = {0, 0, 0, 0};
    }
  }
}

/// A row that the kernel before has written, as half a warp has it: the new value, the new key, then queries. Where
/// it is read and written is found before the wait for it, which takes a load of the page table.
template <int kDim>
struct StepRow {
  static constexpr int kHalf = kDim / 2, kPairs = kHalf / kLanes;
  int query;                 // -2: value, -1: key
  const float* from;         // the lane's
  uint16_t* page = nullptr;  // of the new value or key, where this span has it
  float2 pairs[kPairs];

  __device__ __forceinline__ StepRow(const AttendStep& call, const PagedTile& tile, int span, int row) {
    const AttendPages& attend = call.attend;
    const int64_t kv_row = (int64_t{tile.sequence.row} * attend.kv.kv_heads + tile.kv_head) * kDim;
    query = row - 2;
    from = query == -2   ? call.v + kv_row
           : query == -1 ? call.k + kv_row
                         : attend.q + step_offset(attend, tile) + (query < tile.count ? query : 0) * kDim;
    from += static_cast<int>(threadIdx.x % kLanes);
    const int position = tile.sequence.position;
    if (query < 0 && position / kSpan == span)
      page = const_cast<uint16_t*>(page_rows(attend, tile, position / kTensorPage, query == -1 ? 0 : 1));
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) pairs[i] = {from[i * kLanes], from[i * kLanes + kHalf]};
  }

  __device__ __forceinline__ void rotate(const float2 (&turns)[kPairs]) {
    if (query == -2) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const auto [a, b] = pairs[i];
      pairs[i] = {__fsub_rn(__fmul_rn(a, turns[i].x), __fmul_rn(b, turns[i].y)),
                  __fadd_rn(__fmul_rn(b, turns[i].x), __fmul_rn(a, turns[i].y))};
    }
  }

  __device__ __forceinline__ void put_query(float by, TensorStepShared<kDim>& shared) const {
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
#pragma unroll
    for (int w = 1; w < kLanes; w *= 2) largest = fmaxf(largest, xor_lanes(largest, w));
    if (query < 0) return;
    const QueryScale scale = query_scale(largest);
    if (lane == 0) shared.exponent[query] = __fmul_rn(by, scale.inverse);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const TensorPair both = split_pair(__fmul_rn(pairs[i].x, scale.factor), __fmul_rn(pairs[i].y, scale.factor));
      uint16_t *const high = shared.high[query] + i * kLanes + lane, *const low = shared.low[query] + i * kLanes + lane;
      high[0] = static_cast<uint16_t>(both.high), high[kHalf] = static_cast<uint16_t>(both.high >> 16);
      low[0] = static_cast<uint16_t>(both.low), low[kHalf] = static_cast<uint16_t>(both.low >> 16);
    }
  }

  /// Into the page, and beside the others in shared memory.
  __device__ __forceinline__ void put_new(int position, TensorStepShared<kDim>& shared) const {
    const int lane = static_cast<int>(threadIdx.x % kLanes), t = position % kTensorPage,
              here = position / kTensorPage % static_cast<int>(kSpanPages);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int e = i * kLanes + lane;
      const uint16_t a = f16_nearest(pairs[i].x), b = f16_nearest(pairs[i].y);
      if (query == -1) {
        shared.keys[here][e * kKeyPitch + t] = page[e * kTensorPage + t] = a;
        shared.keys[here][(e + kHalf) * kKeyPitch + t] = page[(e + kHalf) * kTensorPage + t] = b;
      } else {
        shared.values[here][t * kValuePitch16<kDim> + e] = page[t * kDim + e] = a;
        shared.values[here][t * kValuePitch16<kDim> + e + kHalf] = page[t * kDim + e + kHalf] = b;
      }
    }
  }
};

/// Waits for the rows and all copies, then: the rotated queries as two f16 each; the new key and value into their page
/// and, where this span has them, beside the others. Half a warp has a row, some warps have none. Rows of shared memory
/// without a query stay as they are: nobody reads what comes of them.
template <int kDim>
__device__ __forceinline__ void add_rows(const AttendStep& call, const PagedTile& tile, int span,
                                         TensorStepShared<kDim>& shared) {
  const int position = tile.sequence.position, lane = static_cast<int>(threadIdx.x % kLanes);
  float2 turns[kDim / 32];
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const int64_t at = int64_t{position} * (kDim / 2) + i * kLanes + lane;
    turns[i] = {call.cos[at], call.sin[at]};
  }
  const float by = __fmul_rn(call.attend.scale, kLog2E);
  int row = static_cast<int>(threadIdx.x / kLanes), left = tile.count + 2 - row + row % 2;  // of a warp
  StepRow<kDim> own(call, tile, span, row);
  wait_for_predecessor_with(own.from, own.page, 0, left, row);
  if (left > 0) own.load();
  wait_for_all_copies();
  __syncthreads();
  while (left > 0) {
    own.rotate(turns);
    own.put_query(by, shared);
    if (own.page != nullptr) own.put_new(position, shared);
    row += kTensorRows, left -= kTensorRows;
    if (left <= 0) break;
    own = StepRow<kDim>(call, tile, span, row);
    own.load();
  }
}

}  // namespace lowbit::cuda::block
