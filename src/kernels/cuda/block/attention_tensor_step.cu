// attend_step() on tensor cores. A thread block has the heads of one kv head and one span, whose keys and values it
// fetches at once, before its predecessor has ended. Two warps have a page: half of its positions each for the scores,
// then half of the head's elements. The order of sums is that of attention_tensor_tiles.cu.

#include <bit>

#include "base/checked.h"
#include "kernels/cuda/block/attention_tensor_input.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kMostOfCluster = 8;

/// Elements of a tile's queries that a block of a cluster puts together, 256 at a time, as all blocks store them there:
/// behind TensorStepShared.
struct SpanResults {
  float sums[kPagedThreads];
  float2 heads[kStepWarps];  // largest score and sum of exponentials of the query that a warp's elements are of
};
/// The results of block `rank`'s round, one for each span.
template <int kDim>
__device__ __forceinline__ SpanResults* span_results(TensorStepShared<kDim>& shared, const PagedTile& tile, int round) {
  return reinterpret_cast<SpanResults*>(&shared + 1) + round * tile.spans;
}
/// Elements of this block's round: at most 256, none if 0 or less.
template <int kDim>
__device__ __forceinline__ int round_elements(const PagedTile& tile, int round) {
  return tile.count * kDim - (round * tile.spans + static_cast<int>(blockIdx.z)) * kPagedThreads;
}
/// One thread, before arrive_in_cluster().
template <int kDim>
__device__ __forceinline__ void expect_spans(const PagedTile& tile, TensorStepShared<kDim>& shared) {
  int warps = 0;
  for (int round = 0; round_elements<kDim>(tile, round) > 0; ++round)
    warps += min(round_elements<kDim>(tile, round) / 32, kStepWarps);
  constexpr int kOfWarp = 32 * sizeof(float) + sizeof(float2);
  expect_in_cluster(&shared.spans_have_come, warps * tile.spans * kOfWarp);
}

/// Products of the queries with half of a page's keys, from position `first` of the page on.
template <int kDim>
__device__ __forceinline__ void multiply_half_page(int page, int first, const TensorStepShared<kDim>& shared,
                                                   float (&scores)[kHalfTiles][4]) {
  const uint16_t* const from = shared.keys[page] + lane_row() * kKeyPitch + first + lane_column();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t high[4], low[4];
    load_matrices(high, &shared.high[lane_row()][step * 16 + lane_column()]);
    load_matrices(low, &shared.low[lane_row()][step * 16 + lane_column()]);
#pragma unroll
    for (int n = 0; n < kHalfTiles; n += 2) {
      uint32_t key[4];
      load_transposed_matrices(key, from + step * 16 * kKeyPitch + n * 8);
      mma_f16(scores[n], high, key[0], key[1]);
      mma_f16(scores[n + 1], high, key[2], key[3]);
      mma_f16(scores[n], low, key[0], key[1]);
      mma_f16(scores[n + 1], low, key[2], key[3]);
    }
  }
}

/// A warp's exponentials in two parts of f16, in the order of the product with values.
template <int kDim>
__device__ __forceinline__ void put_half_page(const float (&scores)[kHalfTiles][4], TensorStepShared<kDim>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int step = 0; step < kHalfSteps; ++step) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      const float(&tile)[4] = scores[2 * step + a / 2];
      const TensorPair pair = split_pair(tile[a % 2 * 2], tile[a % 2 * 2 + 1]);
      high[a] = pair.high, low[a] = pair.low;
    }
    auto& to = shared.weights[warp / 2][warp % 2 * kHalfSteps + step];
    to[0][lane] = {high[0], high[1], high[2], high[3]};
    to[1][lane] = {low[0], low[1], low[2], low[3]};
  }
}

/// A warp's share of the scores: products, their largest, exponentials. `there`: some of the page is seen.
template <int kDim>
__device__ __forceinline__ void score_half_page(const Seen& seen, bool there, TensorStepShared<kDim>& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int page = warp / 2, first = warp % 2 * (kTensorPage / 2), g = lane / 4, column = lane % 4 * 2;
  float scores[kHalfTiles][4] = {};
  if (there) multiply_half_page(page, first, shared, scores);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kHalfTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[n][2 * i + c];
        if (!seen.has(page * kTensorPage + first + n * 8 + column + c)) s = -INFINITY;
        largest = fmaxf(largest, s);
      }
    largest = largest_of_four(largest);
    if (column == 0) shared.most[warp][g + 8 * i] = largest;
  }
  __syncthreads();  // keys have been read, too
  float totals[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = g + 8 * i;
    const float exponent = shared.exponent[row];
    const float most = __fmul_rn(fmaxf(shared.most[warp][row], shared.most[warp ^ 1][row]), exponent);
    const float shift = -shift_of(most);
#pragma unroll
    for (int n = 0; n < kHalfTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[n][2 * i + c];
        s = power_of_two(__fmaf_rn(s, exponent, shift));
        totals[i] = __fadd_rn(totals[i], s);
      }
    reinterpret_cast<float*>(&shared.totals[warp][row])[column / 2] = totals[i];
  }
  put_half_page(scores, shared);
}

/// A warp's share of the weighted values: half of the elements, of one page.
template <int kDim>
__device__ __forceinline__ void weigh_half_head(int count, TensorStepShared<kDim>& shared) {
  constexpr int kOwn = kDim / 16;  // tiles of eight elements
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int page = warp / 2, first = warp % 2 * (kDim / 2), g = lane / 4, column = lane % 4 * 2;
  const uint16_t* const from = shared.values[page] + lane_row() * kValuePitch16<kDim> + first + lane_column();
  float sums[kOwn][4] = {};
#pragma unroll
  for (int step = 0; step < kPageSteps; ++step) {
    const uint4 h = shared.weights[page][step][0][lane], l = shared.weights[page][step][1][lane];
    const uint32_t high[4] = {h.x, h.y, h.z, h.w}, low[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
    for (int n = 0; n < kOwn; n += 2) {
      uint32_t value[4];
      load_transposed_matrices(value, from + step * 16 * kValuePitch16<kDim> + n * 8);
      mma_f16(sums[n], high, value[0], value[1]);
      mma_f16(sums[n + 1], high, value[2], value[3]);
      mma_f16(sums[n], low, value[0], value[1]);
      mma_f16(sums[n + 1], low, value[2], value[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = g + 8 * i;
    if (row >= count) continue;
#pragma unroll
    for (int n = 0; n < kOwn; ++n)
      *reinterpret_cast<float2*>(&shared.products[page][row][first + n * 8 + column]) = {sums[n][2 * i],
                                                                                         sums[n][2 * i + 1]};
  }
}

/// Puts the span's pages together, a thread for each element: results of the span, or the output where there is no
/// other. All pages' loads and powers come first; a page that is not there has no part in them. kCluster: results go to
/// the block that puts the element's spans together.
template <int kDim, bool kCluster>
__device__ __forceinline__ void join_pages(const AttendPages& call, const PagedTile& tile, const Seen& seen,
                                           TensorStepShared<kDim>& shared) {
  const int begin = seen.begin / kTensorPage, end = (seen.end + kTensorPage - 1) / kTensorPage,
            thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.z);
  int rank = 0, round = 0;
  for (int at = thread; at < tile.count * kDim; at += kPagedThreads) {
    const int query = at / kDim, element = at % kDim;
    Running running = {-INFINITY, 0};
    float all = 0;
#pragma unroll
    for (int page = 0; page < static_cast<int>(kSpanPages); ++page) {
      const float4 a = shared.totals[2 * page][query], b = shared.totals[2 * page + 1][query];
      const float total = __fadd_rn(__fadd_rn(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y)),
                                    __fadd_rn(__fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)));
      const float most =
          __fmul_rn(fmaxf(shared.most[2 * page][query], shared.most[2 * page + 1][query]), shared.exponent[query]);
      Running next = running;
      const float joined = joined_page(join_page(most, total, next), shared.products[page][query][element], all);
      const bool there = page >= begin && page < end;
      running = there ? next : running;
      all = there ? joined : all;
    }
    if (call.results == nullptr) {
      call.out[step_offset(call, tile) + at] = __fmul_rn(all, __fdiv_rn(1.0f, running.total));
    } else if constexpr (kCluster) {
      SpanResults& to = span_results(shared, tile, round)[own];
      const uint32_t barrier = address_in_cluster(&shared.spans_have_come, rank);
      store_in_cluster(address_in_cluster(&to.sums[thread], rank), all, barrier);
      if (thread % 32 == 0)
        store_in_cluster(address_in_cluster(&to.heads[thread / 32], rank), float2{running.most, running.total},
                         barrier);
      if (++rank == tile.spans) rank = 0, ++round;
    } else {
      float* const to = result_of(call, own, query);
      if (element == 0) to[0] = running.most, to[1] = running.total;
      to[2 + element] = all;
    }
  }
}

/// merge_tile() of what the blocks of a cluster have stored here. All spans have positions that the row sees, and the
/// first one has the first of them.
template <int kDim>
__device__ __forceinline__ void merge_cluster(const AttendPages& call, const PagedTile& tile,
                                              TensorStepShared<kDim>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (round_elements<kDim>(tile, 0) <= 0) return;
  wait_for_stores(&shared.spans_have_come);
#pragma unroll 1
  for (int round = 0; thread < round_elements<kDim>(tile, round); ++round) {
    const SpanResults* const from = span_results(shared, tile, round);
    float sum[kMostOfCluster] = {};
    Running of[kMostOfCluster] = {};
#pragma unroll
    for (int part = 0; part < kMostOfCluster; ++part) {
      if (part >= tile.spans) break;
      const float2 head = from[part].heads[thread / 32];
      sum[part] = from[part].sums[thread], of[part] = {head.x, head.y};
    }
    Running running = of[0];
    float all = sum[0];
#pragma unroll
    for (int part = 1; part < kMostOfCluster; ++part) {
      if (part >= tile.spans) break;
      const Merging by = merge_later<true>(of[part].most, of[part].total, running);
      all = __fmaf_rn(sum[part], by.here, __fmul_rn(all, by.before));
    }
    const int at = (round * tile.spans + static_cast<int>(blockIdx.z)) * kPagedThreads + thread;
    call.out[step_offset(call, tile) + at] = __fmul_rn(all, __fdiv_rn(1.0f, running.total));
  }
}

/// kCluster: the blocks of a tile's spans are one.
template <int kDim, bool kCluster>
__global__ void __launch_bounds__(kPagedThreads) attend_tensor_rows(const __grid_constant__ AttendStep call) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto& shared = *reinterpret_cast<TensorStepShared<kDim>*>(bytes);
  constexpr bool kPagesFirst = kDim > 64;  // large pages would come behind the weights of the successor
  if constexpr (!kPagesFirst) let_successor_start();
  const AttendPages& attend = call.attend;
  const PagedTile tile = paged_tile(attend);
  const int span = tile.first_span + static_cast<int>(blockIdx.z), position = tile.sequence.position;
  if (static_cast<int>(blockIdx.z) >= tile.spans) return;
  const Seen seen = seen_of(position, span, attend.window);
  if constexpr (kCluster) {
    if (threadIdx.x == 0) expect_spans<kDim>(tile, shared);
    arrive_in_cluster();
  }
  fetch_span<kDim>(attend, tile, span, seen, shared);
  if constexpr (kPagesFirst) let_successor_start();
  if constexpr (kCluster) wait_for_cluster();  // all barriers are there
  add_rows<kDim>(call, tile, span, shared);
  __syncthreads();
  const int page = static_cast<int>(threadIdx.x / 64);
  const bool there = page * kTensorPage < seen.end && (page + 1) * kTensorPage > seen.begin;
  score_half_page<kDim>(seen, there, shared);
  __syncthreads();
  if (there) weigh_half_head<kDim>(tile.count, shared);
  __syncthreads();
  join_pages<kDim, kCluster>(attend, tile, seen, shared);
  if (attend.results == nullptr) return;
  if constexpr (kCluster) return merge_cluster<kDim>(attend, tile, shared);
  __syncthreads();
  if (threadIdx.x == 0)
    shared.is_last =
        arrives_last(call.arrived + blockIdx.x * attend.kv.kv_heads + blockIdx.y, static_cast<uint32_t>(tile.spans));
  __syncthreads();
  if (shared.is_last) merge_tile<true>(attend, tile);
}

template <int kDim>
cudaError_t launch_tensor_rows(const AttendStep& call, const Device& device) {
  const AttendPages& a = call.attend;
  const unsigned spans = a.results == nullptr ? 1u : static_cast<unsigned>(a.spans), of_cluster = std::bit_ceil(spans);
  // Results of rounds of blocks, of which the last may be for some of them alone.
  const size_t results = static_cast<size_t>(ceil_div(a.tile_queries * kDim, kPagedThreads)) + of_cluster,
               bytes = sizeof(TensorStepShared<kDim>) + results * sizeof(SpanResults);
  const bool cluster = device.bulk_copies && spans > 1 && of_cluster <= unsigned{kMostOfCluster} &&
                       bytes <= static_cast<size_t>(device.shared_bytes);
  auto* const kernel = cluster ? &attend_tensor_rows<kDim, true> : &attend_tensor_rows<kDim, false>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  cluster ? of_cluster : spans);
  return launch_cluster(kernel, grid, dim3(kPagedThreads), dim3(1, 1, cluster ? of_cluster : 1),
                        cluster ? bytes : sizeof(TensorStepShared<kDim>), static_cast<cudaStream_t>(a.stream),
                        call.overlap && device.bulk_copies, call);
}

}  // namespace

bool block::has_tensor_step(int64_t head_dim, int64_t shared_bytes) {
  const auto bytes = head_dim == 64 ? sizeof(TensorStepShared<64>) : sizeof(TensorStepShared<128>);
  return (head_dim == 64 || head_dim == 128) && static_cast<int64_t>(bytes) <= shared_bytes;
}

Status block::attend_tensor_step(const AttendStep& call) {
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess && takes_tensor_stream(call.attend, device)) return attend_tensor_stream(call, device);
  if (e == cudaSuccess)
    e = call.attend.kv.head_dim == 64 ? launch_tensor_rows<64>(call, device) : launch_tensor_rows<128>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
