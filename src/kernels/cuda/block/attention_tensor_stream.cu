// attend_tensor_step() where there are more spans than its thread blocks run at once: a warp has a span, and goes from
// one to the next while keys and values of the pages behind are on their way. Warps do not meet. The order of sums is
// that of attention_tensor_tiles.cu; merge_spans() puts spans together.

#include <algorithm>

#include "kernels/cuda/block/attention_tensor_stream.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// A pair of elements, half a head apart, rotated as rotate_and_store() does.
__device__ __forceinline__ float2 turned(float a, float b, float cos, float sin) {
  return {__fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)), __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin))};
}

/// The rotated queries of a kv head as fragments of two f16, a lane's row is lane / 4; the rows behind are zeros.
template <int kDim>
struct StreamQueries {
  static constexpr int kSteps = kDim / 16, kHalf = kDim / 2;
  uint32_t high[kSteps][2], low[kSteps][2];
  float exponent;

  __device__ __forceinline__ void load(const AttendStep& call, const PagedTile& tile) {
    const AttendPages& attend = call.attend;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4, column = lane % 4 * 2;
    const float* const from = attend.q + tile.offset(attend, row < tile.count ? row : 0) + column;
    const int64_t at = int64_t{tile.sequence.position} * kHalf + column;
    float2 pairs[kSteps][2];
    float largest = 0;
#pragma unroll
    for (int step = 0; step < kSteps / 2; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int e = step * 16 + i * 8;
        const float2 a = *reinterpret_cast<const float2*>(from + e),
                     b = *reinterpret_cast<const float2*>(from + e + kHalf),
                     cos = *reinterpret_cast<const float2*>(call.cos + at + e),
                     sin = *reinterpret_cast<const float2*>(call.sin + at + e);
        const float2 x = turned(a.x, b.x, cos.x, sin.x), y = turned(a.y, b.y, cos.y, sin.y);
        pairs[step][i] = {x.x, y.x}, pairs[step + kSteps / 2][i] = {x.y, y.y};
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(y.x), fabsf(y.y))));
      }
    const QueryScale scale = query_scale(largest_of_four(largest));
    exponent = __fmul_rn(__fmul_rn(attend.scale, kLog2E), scale.inverse);
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const TensorPair both =
            split_pair(__fmul_rn(pairs[step][i].x, scale.factor), __fmul_rn(pairs[step][i].y, scale.factor));
        high[step][i] = both.high, low[step][i] = both.low;
      }
  }
};

/// The new key into its page and beside the others in the slot.
template <int kDim>
__device__ __forceinline__ void add_key(const AttendStep& call, const StreamSpan& at, int page, uint16_t* slot) {
  constexpr int kHalf = kDim / 2;
  const int position = at.tile.sequence.position, t = position % kTensorPage;
  const float* const from = call.k + (int64_t{at.tile.sequence.row} * call.attend.kv.kv_heads + at.tile.kv_head) * kDim;
  auto* const rows = const_cast<uint16_t*>(page_rows(call.attend, at.tile, page, 0));
#pragma unroll
  for (int e = static_cast<int>(threadIdx.x) % 32; e < kHalf; e += 32) {
    const int64_t turn = int64_t{position} * kHalf + e;
    const float2 pair = turned(from[e], from[e + kHalf], call.cos[turn], call.sin[turn]);
    slot[e * kKeyPitch + t] = rows[e * kTensorPage + t] = f16_nearest(pair.x);
    slot[(e + kHalf) * kKeyPitch + t] = rows[(e + kHalf) * kTensorPage + t] = f16_nearest(pair.y);
  }
}
template <int kDim>
__device__ __forceinline__ void add_value(const AttendStep& call, const StreamSpan& at, int page, uint16_t* slot) {
  const int t = at.tile.sequence.position % kTensorPage;
  const float* const from = call.v + (int64_t{at.tile.sequence.row} * call.attend.kv.kv_heads + at.tile.kv_head) * kDim;
  auto* const rows = const_cast<uint16_t*>(page_rows(call.attend, at.tile, page, 1));
#pragma unroll
  for (int e = static_cast<int>(threadIdx.x) % 32; e < kDim; e += 32)
    slot[t * kValuePitch16<kDim> + e] = rows[t * kDim + e] = f16_nearest(from[e]);
}

/// Products of the queries with a page's keys; those of the rows behind are zeros.
template <int kDim>
__device__ __forceinline__ void multiply_page(const StreamQueries<kDim>& queries, const uint16_t* keys,
                                              float (&scores)[kPageTiles][4]) {
  const uint16_t* const from = keys + lane_row() * kKeyPitch + lane_column();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const uint32_t high[4] = {queries.high[step][0], 0, queries.high[step][1], 0},
                   low[4] = {queries.low[step][0], 0, queries.low[step][1], 0};
    uint32_t key[kPageSteps][4];
#pragma unroll
    for (int n = 0; n < kPageSteps; ++n) load_transposed_matrices(key[n], from + step * 16 * kKeyPitch + n * 16);
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n) mma_f16(scores[n], high, key[n / 2][n % 2 * 2], key[n / 2][n % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n) mma_f16(scores[n], low, key[n / 2][n % 2 * 2], key[n / 2][n % 2 * 2 + 1]);
  }
}

/// A span of the lane's row: exponentials of a page as fragments, and what was weighed with them so far.
template <int kDim>
struct StreamSums {
  uint32_t high[kPageSteps][2], low[kPageSteps][2];
  float all[kDim / 8][2];
  Running running;
  Merging by;

  __device__ __forceinline__ void clear() {
    running = {-INFINITY, 0};
#pragma unroll
    for (auto& two : all) two[0] = two[1] = 0;
  }
  __device__ __forceinline__ void weigh_scores(const Seen& seen, float exponent, float (&scores)[kPageTiles][4]) {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    const bool whole = seen.begin == 0 && seen.end == kTensorPage;
    float largest = -INFINITY, halves[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[n][c];
        if (!whole && !seen.has(n * 8 + column + c)) s = -INFINITY;
        largest = fmaxf(largest, s);  // passes a NaN over
      }
    const float most = __fmul_rn(largest_of_four(largest), exponent), shift = -shift_of(most);
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        scores[n][c] = power_of_two(__fmaf_rn(scores[n][c], exponent, shift));
        float& half = halves[n / (kPageTiles / 2)];
        half = __fadd_rn(half, scores[n][c]);
      }
      const TensorPair pair = split_pair(scores[n][0], scores[n][1]);
      high[n / 2][n % 2] = pair.high, low[n / 2][n % 2] = pair.low;
    }
    by = join_page(most, sum_of_four(__fadd_rn(halves[0], halves[1])), running);
  }
  __device__ __forceinline__ void add_values(const uint16_t* values) {
    constexpr int kAtOnce = 8;
    const uint16_t* const from = values + lane_row() * kValuePitch16<kDim> + lane_column();
#pragma unroll
    for (int first = 0; first < kDim / 8; first += kAtOnce) {
      float sums[kAtOnce][4] = {};
#pragma unroll
      for (int step = 0; step < kPageSteps; ++step) {
        const uint32_t h[4] = {high[step][0], 0, high[step][1], 0}, l[4] = {low[step][0], 0, low[step][1], 0};
        uint32_t value[kAtOnce / 2][4];
#pragma unroll
        for (int n = 0; n < kAtOnce / 2; ++n)
          load_transposed_matrices(value[n], from + step * 16 * kValuePitch16<kDim> + first * 8 + n * 16);
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) mma_f16(sums[n], h, value[n / 2][n % 2 * 2], value[n / 2][n % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) mma_f16(sums[n], l, value[n / 2][n % 2 * 2], value[n / 2][n % 2 * 2 + 1]);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) all[first + n][c] = joined_page(by, sums[n][c], all[first + n][c]);
    }
  }
  __device__ __forceinline__ void put(const AttendPages& call, const StreamSpan& at) const {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4, column = static_cast<int>(threadIdx.x) % 4 * 2;
    if (row >= at.tile.count) return;
    float* const to = result_of(call, at.index, at.tile.kv_head, at.span - at.tile.first_span, row);
    if (column == 0) to[0] = running.most, to[1] = running.total;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) *reinterpret_cast<float2*>(to + 2 + n * 8 + column) = {all[n][0], all[n][1]};
  }
};

template <int kDim>
__global__ void __launch_bounds__(32 * StreamForm<kDim>::kWarps, StreamForm<kDim>::kBlocks)
    attend_tensor_stream(const __grid_constant__ AttendStep call, int blocks) {
  using Form = StreamForm<kDim>;
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  const AttendPages& attend = call.attend;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = warp * blocks + static_cast<int>(blockIdx.x), step = Form::kWarps * blocks;
  auto* const slots = reinterpret_cast<uint16_t*>(bytes) + warp * Form::kSlots * Form::kSlotHalves;
  StreamCopies<kDim> copies;
  copies.begin_span(attend, first, step);
#pragma unroll 1
  for (int i = 0; i < Form::kSlots; ++i) copies.fetch(attend, step, slots + i * Form::kSlotHalves);
  wait_for_predecessor();
  StreamQueries<kDim> queries;
  StreamSums<kDim> sums;
  uint16_t* slot = slots;
  const auto slot_arrives = [] {
    wait_for_copies<Form::kSlots - 1>();
    __syncwarp();
  };
  const auto slot_is_read = [&] {
    __syncwarp();
    copies.fetch(attend, step, slot);
    slot = slot == slots + (Form::kSlots - 1) * Form::kSlotHalves ? slots : slot + Form::kSlotHalves;
  };
  StreamSpan own;
  for (bool there = own.seek(attend, first, step); there; there = own.seek(attend, own.number + step, step)) {
    queries.load(call, own.tile);
    sums.clear();
#pragma unroll 1
    for (int page = own.page; page < own.end; ++page) {
      const bool has_row = own.tile.sequence.position / kTensorPage == page;
      float scores[kPageTiles][4] = {};
      slot_arrives();
      if (has_row) {
        add_key<kDim>(call, own, page, slot);
        __syncwarp();
      }
      multiply_page<kDim>(queries, slot, scores);
      slot_is_read();
      sums.weigh_scores(own.seen_of_page(page), queries.exponent, scores);
      slot_arrives();
      if (has_row) {
        add_value<kDim>(call, own, page, slot);
        __syncwarp();
      }
      sums.add_values(slot);
      slot_is_read();
    }
    sums.put(attend, own);
  }
}

template <int kDim>
cudaError_t launch_stream(const AttendStep& call, const Device& device) {
  using Form = StreamForm<kDim>;
  auto* const kernel = &attend_tensor_stream<kDim>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const AttendPages& a = call.attend;
  const int64_t blocks = std::min<int64_t>(device.processors * Form::kBlocks, a.tile_count * a.kv.kv_heads * a.spans);
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(32 * Form::kWarps), size_t{Form::kBytes},
                static_cast<cudaStream_t>(a.stream), call.overlap && device.bulk_copies, call,
                static_cast<int>(blocks));
}

}  // namespace

bool block::takes_tensor_stream(const AttendPages& call, const Device& device) {
  const int64_t d = call.kv.head_dim, bytes = d == 64 ? StreamForm<64>::kBytes : StreamForm<128>::kBytes;
  const int64_t at_once = device.processors * (d == 64 ? 3 : 1);  // thread blocks of attend_tensor_step()
  constexpr int64_t kOfClusters = 8;                              // up to so many spans a cluster may put together
  return call.results != nullptr && (d == 64 || d == 128) && call.tile_queries <= 8 && bytes <= device.shared_bytes &&
         call.spans > kOfClusters && call.tile_count * call.kv.kv_heads * call.spans > at_once;
}

Status block::attend_tensor_stream(const AttendStep& call, const Device& device) {
  const auto e = call.attend.kv.head_dim == 64 ? launch_stream<64>(call, device) : launch_stream<128>(call, device);
  if (e != cudaSuccess) return check_cuda(e, "attention");
  return merge_spans(call.attend, call.overlap && device.bulk_copies);
}

}  // namespace lowbit::cuda
