// attend_step() on tensor cores. A thread block has the heads of one kv head and one span, whose keys and values it
// fetches at once, before its predecessor has ended. Two warps have a page: half of its positions each for the scores,
// then half of the head's elements. Positions, then elements, are the sixteen rows of products and queries their eight
// columns: a kv head seldom has more. The order of sums is that of attention_tensor_tiles.cu.

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

/// Elements of a tile's queries that a block of a cluster puts together, kOfRound at a time, as all blocks store them
/// there: behind TensorStepShared. A thread has two of them.
constexpr int kOfRound = 2 * kPagedThreads;
struct SpanResults {
  float2 sums[kPagedThreads];
  float2 heads[kStepWarps];  // largest score and sum of exponentials of the query that a warp's elements are of
};
/// The results of block `rank`'s round, one for each span.
template <int kDim>
__device__ __forceinline__ SpanResults* span_results(TensorStepShared<kDim>& shared, const PagedTile& tile, int round) {
  return reinterpret_cast<SpanResults*>(&shared + 1) + round * tile.spans;
}
/// Elements of this block's round: at most kOfRound, none if 0 or less.
template <int kDim>
__device__ __forceinline__ int round_elements(const PagedTile& tile, int round) {
  return tile.count * kDim - (round * tile.spans + static_cast<int>(blockIdx.z)) * kOfRound;
}
/// One thread, before arrive_in_cluster().
template <int kDim>
__device__ __forceinline__ void expect_spans(const PagedTile& tile, TensorStepShared<kDim>& shared) {
  int warps = 0;
  for (int round = 0; round_elements<kDim>(tile, round) > 0; ++round)
    warps += min(round_elements<kDim>(tile, round) / 64, kStepWarps);
  constexpr int kOfWarp = (32 + 1) * sizeof(float2);
  expect_in_cluster(&shared.spans_have_come, warps * tile.spans * kOfWarp);
}

constexpr int kHalfSteps = kPageSteps / 2;

/// Products of half of a page's keys with eight queries.
template <int kDim>
__device__ __forceinline__ void multiply_half_page(const uint16_t* keys, const uint16_t* queries,
                                                   float (&scores)[kHalfSteps][4]) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t query[4];  // high and low parts
    load_matrices(query, queries + step * 16);
#pragma unroll
    for (int i = 0; i < kHalfSteps; ++i) {
      uint32_t key[4];
      load_transposed_matrices(key, keys + step * 16 * kKeyPitch + i * 16);
      mma_f16(scores[i], key, query[0], query[1]);
      mma_f16(scores[i], key, query[2], query[3]);
    }
  }
}

/// Exponentials of eight queries in two parts of f16, in the order of the product with values.
template <int kDim>
__device__ __forceinline__ void put_half_page(const StepLane<kDim>& own, const float (&scores)[kHalfSteps][4],
                                              int octet, StepPage<kDim>& page) {
#pragma unroll
  for (int i = 0; i < kHalfSteps; ++i) {
    const TensorPair a = split_pair(scores[i][0], scores[i][1]), b = split_pair(scores[i][2], scores[i][3]);
    page.weights[own.half * kHalfSteps + i][octet][own.lane] = {transposed_matrix(a.high), transposed_matrix(b.high),
                                                                transposed_matrix(a.low), transposed_matrix(b.low)};
  }
}

/// Sums of exponentials by t / 2 mod 4: two neighbouring rows of products share them, each for one of the two queries.
template <int kDim>
__device__ __forceinline__ void put_totals(const StepLane<kDim>& own, const float (&scores)[kHalfSteps][4], int query,
                                           StepPage<kDim>& page) {
  const bool even = own.g % 2 == 0;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kHalfSteps; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float a = scores[i][2 * h], b = scores[i][2 * h + 1];
      const float here = even ? a : b, other = xor_lanes(even ? b : a, 4);
      total = __fadd_rn(__fadd_rn(total, even ? here : other), even ? other : here);
    }
  page.totals[own.half][query + own.g % 2][own.g / 2] = total;
}

/// A warp's share of the scores of eight queries: products, their largest, exponentials.
template <int kDim>
__device__ __forceinline__ void score_half_page(const StepLane<kDim>& own, const Seen& seen, int octet,
                                                TensorStepShared<kDim>& shared) {
  StepPage<kDim>& page = shared.pages[own.page];
  const int query = octet * 8 + own.t * 2;
  float scores[kHalfSteps][4] = {};
  multiply_half_page<kDim>(own.keys, own.queries + octet * 8 * (kDim + 8), scores);
  const int position = own.page * kTensorPage + own.half * (kTensorPage / 2) + own.g - seen.begin;
  const auto seen_count = static_cast<unsigned>(seen.end - seen.begin);
  float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < kHalfSteps; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& s = scores[i][c];
      if (static_cast<unsigned>(position + i * 16 + c / 2 * 8) >= seen_count) s = -INFINITY;
      largest[c % 2] = fmaxf(largest[c % 2], s);
    }
#pragma unroll
  for (int w = 4; w < 32; w *= 2)
#pragma unroll
    for (int c = 0; c < 2; ++c) largest[c] = fmaxf(largest[c], xor_lanes(largest[c], w));
  if (own.g == 0) *reinterpret_cast<float2*>(&page.most[own.half][query]) = {largest[0], largest[1]};
  own.meet();
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float exponent = shared.exponent[query + c];
    const float shift = -shift_of(__fmul_rn(fmaxf(largest[c], page.most[own.half ^ 1][query + c]), exponent));
#pragma unroll
    for (int i = 0; i < kHalfSteps; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& s = scores[i][2 * h + c];
        s = power_of_two(__fmaf_rn(s, exponent, shift));
      }
  }
  put_half_page(own, scores, octet, page);
  put_totals(own, scores, query, page);
}

/// A warp's share of the weighted values of eight queries: half of the elements, of one page.
template <int kDim>
__device__ __forceinline__ void weigh_half_head(const StepLane<kDim>& own, int count, int octet, StepPage<kDim>& page) {
  constexpr int kOwn = kDim / 32;  // tiles of sixteen elements
  const int first = own.half * (kDim / 2), query = octet * 8 + own.t * 2;
  const uint16_t* const from = page.values + own.sum_row() * kValuePitch16<kDim> + first + own.product_row();
  float sums[kOwn][4] = {};
#pragma unroll
  for (int step = 0; step < kPageSteps; ++step) {
    const uint4 weight = page.weights[step][octet][own.lane];
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      uint32_t value[4];
      load_transposed_matrices(value, from + step * 16 * kValuePitch16<kDim> + n * 16);
      mma_f16(sums[n], value, weight.x, weight.y);
      mma_f16(sums[n], value, weight.z, weight.w);
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (query + c >= count) break;
    float* const to = page.products[query + c] + first + own.g;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) to[n * 16] = sums[n][c], to[n * 16 + 8] = sums[n][2 + c];
  }
}

/// The largest score and the sum of exponentials of a page's queries.
template <int kDim>
__device__ __forceinline__ void join_halves(const TensorStepShared<kDim>& shared, StepPage<kDim>& page) {
  const int query = static_cast<int>(threadIdx.x % 64);
  if (query >= kTensorRows) return;
  const auto &a = page.totals[0][query], &b = page.totals[1][query];
  page.joined[query] = {__fmul_rn(fmaxf(page.most[0][query], page.most[1][query]), shared.exponent[query]),
                        __fadd_rn(__fadd_rn(__fadd_rn(a[0], b[0]), __fadd_rn(a[1], b[1])),
                                  __fadd_rn(__fadd_rn(a[2], b[2]), __fadd_rn(a[3], b[3])))};
}

/// Two neighbouring elements of the output.
__device__ __forceinline__ void put_pair(const AttendPages& call, int64_t at, float2 v, float total) {
  const float by = __fdiv_rn(1.0f, total);
  *reinterpret_cast<float2*>(call.out + at) = {__fmul_rn(v.x, by), __fmul_rn(v.y, by)};
}

/// Puts the span's pages together, a thread for two elements: results of the span, or the output where there is no
/// other. All pages' loads and powers come first; a page that is not there has no part in them. kCluster: results go to
/// the block that puts the elements' spans together.
template <int kDim, bool kCluster>
__device__ __forceinline__ void join_pages(const AttendPages& call, const PagedTile& tile, const Seen& seen,
                                           TensorStepShared<kDim>& shared) {
  const int thread = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.z);
  int rank = 0, round = 0;
  for (int at = 2 * thread; at < tile.count * kDim; at += kOfRound) {
    const int query = at / kDim, element = at % kDim;
    Running running = {-INFINITY, 0};
    float2 all = {0, 0};
#pragma unroll
    for (int page = 0; page < static_cast<int>(kSpanPages); ++page) {
      const Running of = shared.pages[page].joined[query];
      const auto sum = *reinterpret_cast<const float2*>(&shared.pages[page].products[query][element]);
      Running next = running;
      const Merging by = join_page(of.most, of.total, next);
      const float2 joined = {joined_page(by, sum.x, all.x), joined_page(by, sum.y, all.y)};
      const bool there = is_seen(seen, page);
      running = there ? next : running;
      all = there ? joined : all;
    }
    if constexpr (kCluster) {
      SpanResults& to = span_results(shared, tile, round)[own];
      const uint32_t barrier = address_in_cluster(&shared.spans_have_come, rank);
      store_in_cluster(address_in_cluster(&to.sums[thread], rank), all, barrier);
      if (thread % 32 == 0)
        store_in_cluster(address_in_cluster(&to.heads[thread / 32], rank), float2{running.most, running.total},
                         barrier);
      if (++rank == tile.spans) rank = 0, ++round;
    } else if (call.results == nullptr) {
      put_pair(call, step_offset(call, tile) + at, all, running.total);
    } else {
      float* const to = result_of(call, own, query);
      if (element == 0) to[0] = running.most, to[1] = running.total;
      to[2 + element] = all.x, to[3 + element] = all.y;
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
  for (int round = 0; 2 * thread < round_elements<kDim>(tile, round); ++round) {
    const SpanResults* const from = span_results(shared, tile, round);
    float2 sum[kMostOfCluster];
    Running of[kMostOfCluster];
#pragma unroll
    for (int part = 0; part < kMostOfCluster; ++part) {
      if (part > 0 && part >= tile.spans) break;
      const float2 head = from[part].heads[thread / 32];
      sum[part] = from[part].sums[thread], of[part] = {head.x, head.y};
    }
    Running running = of[0];
    float2 all = sum[0];
#pragma unroll
    for (int part = 1; part < kMostOfCluster; ++part) {
      if (part >= tile.spans) break;
      const Merging by = merge_later<true>(of[part].most, of[part].total, running);
      all = {__fmaf_rn(sum[part].x, by.here, __fmul_rn(all.x, by.before)),
             __fmaf_rn(sum[part].y, by.here, __fmul_rn(all.y, by.before))};
    }
    const int at = (round * tile.spans + static_cast<int>(blockIdx.z)) * kOfRound + 2 * thread;
    put_pair(call, step_offset(call, tile) + at, all, running.total);
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
  StepPages pages;  // asked for together with the sequence, where that does not say which span it is
  if (attend.window == 0) pages.load(attend, static_cast<int>(blockIdx.z));
  const PagedTile tile = sequence_tile(attend);
  const int span = tile.first_span + static_cast<int>(blockIdx.z), position = tile.sequence.position;
  if (static_cast<int>(blockIdx.z) >= tile.spans) return;
  const Seen seen = seen_of(position, span, attend.window);
  if (attend.window != 0) pages.load(attend, span);
  if constexpr (kCluster) {
    if (threadIdx.x == 0) expect_spans<kDim>(tile, shared);
    arrive_in_cluster();
  }
  fetch_span<kDim>(attend, pages, seen, shared);
  if constexpr (kPagesFirst) let_successor_start();
  if constexpr (kCluster) wait_for_cluster();  // all barriers are there
  const StepLane<kDim> own(shared);
  add_rows<kDim>(call, tile, span, pages, own, shared);
  __syncthreads();
  if (is_seen(seen, own.page)) {
    StepPage<kDim>& page = shared.pages[own.page];
    const int octets = (tile.count + 7) / 8;
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) score_half_page(own, seen, octet, shared);
    own.meet();
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) weigh_half_head(own, tile.count, octet, page);
    join_halves(shared, page);
  }
  __syncthreads();
  join_pages<kDim, kCluster>(attend, tile, seen, shared);
  if constexpr (kCluster) return merge_cluster<kDim>(attend, tile, shared);
  if (attend.results == nullptr) return;
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
  const size_t results = static_cast<size_t>(ceil_div(a.tile_queries * kDim, kOfRound)) + of_cluster - 1,
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
