#pragma once
// The queries of a warp as fragments, and pages on their way to shared memory: the first half of
// attention_tensor_tiles.cu.

#include "kernels/cuda/block/attention_tensor.cuh"

namespace lowbit::cuda::block {

constexpr int kTensorWarps = kPromptQueries / kTensorRows, kTensorThreads = 32 * kTensorWarps;

/// Heads of up to kDim elements.
template <int kDim>
struct TensorForm {
  static constexpr int kSteps = kDim / 16;
  static constexpr int kBlocks = kDim <= 64 ? 3 : kDim <= 128 ? 2 : 1;
  static constexpr bool kIsSmall = kDim <= 128;  // queries fit into registers, sums of spans into shared memory
  static constexpr int kStageHalves = kKeyHalves<kDim> + kValueHalves<kDim>, kSumPitch = kDim + 8;
  static constexpr int64_t kStageBytes = int64_t{2} * kStageHalves * 2;
  static constexpr int64_t kBytes =
      kStageBytes + (kIsSmall ? int64_t{kPromptQueries} * kSumPitch * 4 : int64_t{kTensorWarps} * kSteps * 2 * 512);
};

/// A warp's queries as fragments.
template <int kDim>
struct WarpQueries {
  using Form = TensorForm<kDim>;
  static constexpr int kHeld = Form::kIsSmall ? Form::kSteps : 1;
  uint32_t high[kHeld][4], low[kHeld][4];
  uint4* shared;  // of the lane, where they are not in registers

  __device__ __forceinline__ void set(int step, const uint32_t (&h)[4], const uint32_t (&l)[4]) {
    if constexpr (Form::kIsSmall) {
#pragma unroll
      for (int i = 0; i < 4; ++i) high[step][i] = h[i], low[step][i] = l[i];
    } else {
      shared[step * 64] = {h[0], h[1], h[2], h[3]};
      shared[step * 64 + 32] = {l[0], l[1], l[2], l[3]};
    }
  }
  __device__ __forceinline__ void get(int step, uint32_t (&h)[4], uint32_t (&l)[4]) const {
    if constexpr (Form::kIsSmall) {
#pragma unroll
      for (int i = 0; i < 4; ++i) h[i] = high[step][i], l[i] = low[step][i];
    } else {
      const uint4 a = shared[step * 64], b = shared[step * 64 + 32];
      h[0] = a.x, h[1] = a.y, h[2] = a.z, h[3] = a.w;
      l[0] = b.x, l[1] = b.y, l[2] = b.z, l[3] = b.w;
    }
  }
};

/// A lane's two rows, and those of its warp.
struct WarpRows {
  int first, count;   // of the tile's queries
  int position[2];    // -1: there is no such query
  float exponent[2];  // makes exponents of two of products
  int front, back;    // positions of the first and of the last row
  int seen_from;      // the first position that the first row sees
  int all_from;       // that the last one sees
};

__device__ __forceinline__ int row_of_lane(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i; }

template <int kDim>
__device__ __forceinline__ void load_rows(const AttendPages& call, const PagedTile& tile, WarpRows& rows,
                                          WarpQueries<kDim>& queries) {
  constexpr int kSteps = kDim / 16;
  const int d = static_cast<int>(call.kv.head_dim), column = static_cast<int>(threadIdx.x) % 4 * 2;
  rows.first = static_cast<int>(threadIdx.x) / 32 * kTensorRows;
  rows.count = min(tile.count - rows.first, kTensorRows);
  if (rows.count <= 0) return;
  rows.front = tile.position(rows.first);
  rows.back = tile.position(rows.first + rows.count - 1);
  rows.seen_from = first_seen(rows.front, call.window);
  rows.all_from = first_seen(rows.back, call.window);
  const float* from[2];
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = rows.first + row_of_lane(i);
    const bool there = query < tile.count;
    rows.position[i] = there ? tile.position(query) : -1;
    from[i] = call.q + tile.offset(call, there ? query : rows.first) + column;
    float largest = 0;
    for (int e = 0; e < d; e += 8) {
      if (e + column < d) {
        const float2 two = *reinterpret_cast<const float2*>(from[i] + e);
        largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
      }
    }
    const QueryScale scale = query_scale(largest_of_four(largest));
    factor[i] = scale.factor;
    rows.exponent[i] = __fmul_rn(__fmul_rn(call.scale, kLog2E), scale.inverse);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int a = 0; a < 4; ++a) {  // rows g and g + 8, then those of the next eight columns
      const int i = a % 2, e = step * 16 + a / 2 * 8;
      float2 two = {0, 0};
      if (e < d) two = *reinterpret_cast<const float2*>(from[i] + e);
      const TensorPair pair = split_pair(__fmul_rn(two.x, factor[i]), __fmul_rn(two.y, factor[i]));
      high[a] = pair.high, low[a] = pair.low;
    }
    queries.set(step, high, low);
  }
}

/// Starts the copies of a page's keys and values, of one kv head each. kWhole: the head has kDim elements.
template <int kDim, bool kWhole>
__device__ __forceinline__ void copy_page(const AttendPages& call, const PagedTile& tile, uint64_t page,
                                          uint16_t* stage) {
  const int d = kWhole ? kDim : static_cast<int>(call.kv.head_dim), eights = d / 8;
  const int64_t of_head = kTensorPage * d, heads = call.kv.kv_heads;
  const auto* const keys =
      reinterpret_cast<const uint16_t*>(page) + (call.kv.index * 2 * heads + tile.kv_head) * of_head;
  const uint16_t* const values = keys + heads * of_head;
  uint16_t* const to = stage + kKeyHalves<kDim>;
  const int thread = static_cast<int>(threadIdx.x);
  const auto copy = [&](int at) {
    copy_to_shared_16(stage + at / 8 * kKeyPitch + at % 8 * 8, keys + at * 8);
    copy_to_shared_16(to + at / eights * kValuePitch16<kDim> + at % eights * 8, values + at * 8);
  };
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < kDim * 8 / kTensorThreads; ++i) copy(thread + i * kTensorThreads);
  } else {
    for (int at = thread; at < d * 8; at += kTensorThreads) copy(at);
  }
}

/// Zeros where no head's element is: they add nothing.
template <int kDim>
__device__ __forceinline__ void clear_rest(int d, uint16_t* stages) {
  for (int s = 0; s < 2; ++s) {
    uint16_t *const keys = stages + s * TensorForm<kDim>::kStageHalves, *const values = keys + kKeyHalves<kDim>;
    for (int at = static_cast<int>(threadIdx.x); at < (kDim - d) * kTensorPage; at += kTensorThreads) {
      keys[(d + at / kTensorPage) * kKeyPitch + at % kTensorPage] = 0;
      values[at % kTensorPage * kValuePitch16<kDim> + d + at / kTensorPage] = 0;
    }
  }
}

}  // namespace lowbit::cuda::block
