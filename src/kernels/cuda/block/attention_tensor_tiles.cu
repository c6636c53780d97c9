// Attention on tensor cores, for tiles of any number of queries: a warp has sixteen of them and takes one page after
// the other. Keys and values come to shared memory some pages ahead; everything else is in registers, as fragments of
// products. The spans' results are put together in memory, in `out` or by merge_spans().

#include "kernels/cuda/block/attention_tensor_rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// Sixteens of a page's positions that some row of the warp sees.
struct Sixteens {
  int begin, end;
};

/// Eight products that do not wait for each other. kPart: only `some` pairs of them.
template <bool kPart>
__device__ __forceinline__ void multiply_eight(const uint32_t (&a)[4], const uint32_t (&b)[4][4], const Sixteens& some,
                                               float (&c)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
    if (!kPart || (n / 2 >= some.begin && n / 2 < some.end))
      mma_f16(c[n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
}

/// Products of the queries with a page's keys. kPart: some are left out.
template <int kDim, bool kPart>
__device__ __forceinline__ void multiply_keys(const WarpQueries<kDim>& queries, const uint16_t* keys,
                                              const Sixteens& some, float (&scores)[kPageTiles][4]) {
#pragma unroll
  for (int n = 0; n < kPageTiles; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0;
  const uint16_t* const from = keys + lane_row() * kKeyPitch + lane_column();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t high[4], low[4];
    queries.get(step, high, low);
    uint32_t key[kPageSteps][4];
#pragma unroll
    for (int n = 0; n < kPageSteps; ++n)
      if (!kPart || (n >= some.begin && n < some.end))
        load_transposed_matrices(key[n], from + step * 16 * kKeyPitch + n * 16);
    multiply_eight<kPart>(high, key, some, scores);
    multiply_eight<kPart>(low, key, some, scores);
  }
}

/// Scores become exponentials; a row's largest exponent and its sum. kPart: some positions are not seen by some rows.
template <bool kPart>
__device__ __forceinline__ void weigh_scores(const AttendPages& call, const WarpRows& rows, int first,
                                             float (&scores)[kPageTiles][4], float (&most)[2], float (&total)[2]) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int from = kPart ? first_seen(rows.position[i], call.window) : 0;
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[n][2 * i + c];
        const int at = first + 8 * n + column + c;
        if (kPart && (at > rows.position[i] || at < from)) s = -INFINITY;
        largest = fmaxf(largest, s);  // passes a NaN over
      }
    most[i] = __fmul_rn(largest_of_four(largest), rows.exponent[i]);
    const float shift = -shift_of(most[i]);
    float halves[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kPageTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[n][2 * i + c];
        s = power_of_two(__fmaf_rn(s, rows.exponent[i], shift));
        float& half = halves[n / (kPageTiles / 2)];
        half = __fadd_rn(half, s);
      }
    total[i] = sum_of_four(__fadd_rn(halves[0], halves[1]));
  }
}

/// Exponentials as fragments.
struct PageWeights {
  uint32_t high[kPageSteps][4], low[kPageSteps][4];
  __device__ __forceinline__ explicit PageWeights(const float (&scores)[kPageTiles][4]) {
#pragma unroll
    for (int step = 0; step < kPageSteps; ++step)
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        const float(&tile)[4] = scores[2 * step + a / 2];
        const TensorPair pair = split_pair(tile[a % 2 * 2], tile[a % 2 * 2 + 1]);
        high[step][a] = pair.high, low[step][a] = pair.low;
      }
  }
};

enum class Values { kAll, kSome, kOfRow };  // kOfRow: values that one row does not see are zeros

/// The span's weighted values and those of one more page. Rows that are not `kept` keep what they have.
template <int kDim, Values kWhich>
__device__ __forceinline__ void add_values(const PageWeights& weights, const uint16_t* values, const Sixteens& some,
                                           const Seen& of_row, const bool (&joins)[2], const Merging (&by)[2],
                                           float (&all)[kDim / 8][4]) {
  constexpr int kAtOnce = 8;
  const uint16_t* const from = values + lane_row() * kValuePitch16<kDim> + lane_column();
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int first = 0; first < kDim / 8; first += kAtOnce) {
    float sums[kAtOnce][4] = {};
#pragma unroll
    for (int step = 0; step < kPageSteps; ++step) {
      if (kWhich != Values::kAll && (step < some.begin || step >= some.end)) continue;
      uint32_t value[kAtOnce / 2][4];
#pragma unroll
      for (int n = 0; n < kAtOnce / 2; ++n) {
        load_transposed_matrices(value[n], from + step * 16 * kValuePitch16<kDim> + first * 8 + n * 16);
        if constexpr (kWhich == Values::kOfRow) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = step * 16 + i % 2 * 8 + column;
            value[n][i] &= (of_row.has(at) ? 0xffffu : 0u) | (of_row.has(at + 1) ? 0xffff0000u : 0u);
          }
        }
      }
      multiply_eight<false>(weights.high[step], value, {}, sums);
      multiply_eight<false>(weights.low[step], value, {}, sums);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& to = all[first + n][c];
        const float sum = joined_page(by[c / 2], sums[n][c], to);
        if (kWhich == Values::kAll || joins[c / 2]) to = sum;
      }
  }
}

/// Whether a page has values that are no numbers, in the sixteens that the warp sees.
template <int kDim>
__device__ __forceinline__ bool page_has_no_numbers(const uint16_t* values, int d, const Sixteens& some) {
  bool any = false;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int t = some.begin * 16 + lane / 2; t < some.end * 16; t += 16)
    for (int e = lane % 2 * 8; e < d; e += 16) {
      const uint4 eight = *reinterpret_cast<const uint4*>(values + t * kValuePitch16<kDim> + e);
      any |= has_no_number(eight.x) || has_no_number(eight.y) || has_no_number(eight.z) || has_no_number(eight.w);
    }
  return __any_sync(kAllLanes, any) != 0;
}

template <int kDim>
struct WarpSums {
  Running running[2];
  float all[kDim / 8][4];
  __device__ __forceinline__ void clear() {
    running[0] = running[1] = {-INFINITY, 0};
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) all[n][0] = all[n][1] = all[n][2] = all[n][3] = 0;
  }
};

/// One page of the warp's rows. Values that are not seen by all rows must not reach those that do not see them: 0 times
/// infinity is no number. Such pages are done row by row.
template <int kDim>
__device__ __forceinline__ void attend_part_of_page(const AttendPages& call, const PagedTile& tile,
                                                    const WarpRows& rows, const WarpQueries<kDim>& queries, int page,
                                                    const uint16_t* keys, WarpSums<kDim>& sums) {
  const int first = page * kTensorPage;
  const Sixteens some = {max(rows.seen_from - first, 0) / 16, min((rows.back - first) / 16, kPageSteps - 1) + 1};
  const uint16_t* const values = keys + kKeyHalves<kDim>;
  float scores[kPageTiles][4], most[2], total[2];
  multiply_keys<kDim, true>(queries, keys, some, scores);
  weigh_scores<true>(call, rows, first, scores, most, total);
  const PageWeights weights(scores);
  Merging by[2];
  bool joins[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    by[i] = join_page(most[i], total[i], sums.running[i]);
    joins[i] = rows.position[i] >= first && first_seen(rows.position[i], call.window) < first + kTensorPage;
  }
  const int d = static_cast<int>(call.kv.head_dim);
  if (!page_has_no_numbers<kDim>(values, d, some)) {
    add_values<kDim, Values::kSome>(weights, values, some, {}, joins, by, sums.all);
    return;
  }
#pragma unroll 1
  for (int row = 0; row < rows.count; ++row) {
    const int position = tile.position(rows.first + row);
    const Seen seen = {first_seen(position, call.window) - first, position + 1 - first, false};
    const bool own[2] = {joins[0] && row_of_lane(0) == row, joins[1] && row_of_lane(1) == row};
    add_values<kDim, Values::kOfRow>(weights, values, some, seen, own, by, sums.all);
  }
}

template <int kDim>
__device__ __forceinline__ void attend_whole_page(const AttendPages& call, const WarpRows& rows,
                                                  const WarpQueries<kDim>& queries, int page, const uint16_t* keys,
                                                  WarpSums<kDim>& sums) {
  float scores[kPageTiles][4], most[2], total[2];
  multiply_keys<kDim, false>(queries, keys, {}, scores);
  weigh_scores<false>(call, rows, page * kTensorPage, scores, most, total);
  const PageWeights weights(scores);
  const Merging by[2] = {join_page(most[0], total[0], sums.running[0]), join_page(most[1], total[1], sums.running[1])};
  constexpr bool kBoth[2] = {true, true};
  add_values<kDim, Values::kAll>(weights, keys + kKeyHalves<kDim>, {}, {}, kBoth, by, sums.all);
}

/// A span's sums to its results, or to the output with those of the spans before.
template <int kDim>
__device__ __forceinline__ void put_span(const AttendPages& call, const PagedTile& tile, const WarpRows& rows, int span,
                                         int index, const WarpSums<kDim>& sums, float* so_far, Running (&running)[2]) {
  const int d = static_cast<int>(call.kv.head_dim), column = static_cast<int>(threadIdx.x) % 4 * 2;
  const int part = span - tile.first_span;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = rows.first + row_of_lane(i);
    if (query >= tile.count) continue;
    if (call.results != nullptr) {
      float* const to = result_of(call, index, tile.kv_head, part, query);
      if (column == 0) to[0] = sums.running[i].most, to[1] = sums.running[i].total;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        if (n * 8 < d)
          *reinterpret_cast<float2*>(to + 2 + n * 8 + column) = {sums.all[n][2 * i], sums.all[n][2 * i + 1]};
      continue;
    }
    const Seen seen = seen_of(rows.position[i], span, call.window);
    const Merging by = merge<true>(seen, sums.running[i].most, sums.running[i].total, running[i]);
    float* const out = call.out + tile.offset(call, query) + column;
    float* const kept = TensorForm<kDim>::kIsSmall ? so_far + query * TensorForm<kDim>::kSumPitch + column : out;
    const bool is_first = span * kSpan <= rows.seen_from, is_last = rows.back < (span + 1) * kSpan;
    const float scale = is_last ? __fdiv_rn(1.0f, running[i].total) : 1.0f;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= d) continue;
      float2 before = {0, 0};
      if (!is_first) before = *reinterpret_cast<const float2*>(kept + n * 8);
      const float x = merged(seen, by, sums.all[n][2 * i], before.x);
      const float y = merged(seen, by, sums.all[n][2 * i + 1], before.y);
      *reinterpret_cast<float2*>((is_last ? out : kept) + n * 8) = {__fmul_rn(x, scale), __fmul_rn(y, scale)};
    }
  }
}

template <int kDim, bool kWhole>
__global__ void __launch_bounds__(kTensorThreads, TensorForm<kDim>::kBlocks)
    attend_tensor(const __grid_constant__ AttendPages call) {
  using Form = TensorForm<kDim>;
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto* const stages = reinterpret_cast<uint16_t*>(bytes);
  // Tiles behind each other see ever more: the longest ones first, of all heads.
  const int index = static_cast<int>(call.tile_count) - 1 - static_cast<int>(blockIdx.y);
  const PagedTile tile = part_of_tile(call, index, static_cast<int>(blockIdx.x), 0, call.tile_queries);
  const int part = static_cast<int>(blockIdx.z);
  const bool apart = call.results != nullptr;
  if (tile.count <= 0 || (apart && part >= tile.spans)) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int last = tile.position(tile.count - 1), span = tile.first_span + part;
  int begin = first_seen(tile.position(0), call.window) / kTensorPage, end = last / kTensorPage + 1;
  if (apart) {
    begin = max(begin, span * static_cast<int>(kSpanPages));
    end = min(end, (span + 1) * static_cast<int>(kSpanPages));
  }
  if constexpr (!kWhole) clear_rest<kDim>(static_cast<int>(call.kv.head_dim), stages);
  copy_page<kDim, kWhole>(call, tile, tile.pages[begin], stages);
  uint64_t next = tile.pages[min(begin + 1, end - 1)];  // asked for a page ahead: its copies start without a wait
  WarpRows rows;
  WarpQueries<kDim> queries;
  auto* const rest = bytes + Form::kStageBytes;
  queries.shared = reinterpret_cast<uint4*>(rest) + warp * Form::kSteps * 64 + lane;
  load_rows<kDim>(call, tile, rows, queries);
  WarpSums<kDim> sums;
  sums.clear();
  Running running[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  for (int page = begin; page < end; ++page) {
    wait_for_all_copies();
    __syncthreads();  // the page is there, and that before it has been read
    const int stage = (page - begin) % 2;
    if (page + 1 < end) copy_page<kDim, kWhole>(call, tile, next, stages + (1 - stage) * Form::kStageHalves);
    next = tile.pages[min(page + 2, end - 1)];
    const uint16_t* const keys = stages + stage * Form::kStageHalves;
    const int first = page * kTensorPage;
    if (rows.count <= 0 || rows.back < first || rows.seen_from >= first + kTensorPage) continue;
    if (rows.all_from <= first && rows.front >= first + kTensorPage - 1) {
      attend_whole_page<kDim>(call, rows, queries, page, keys, sums);
    } else {
      attend_part_of_page<kDim>(call, tile, rows, queries, page, keys, sums);
    }
    if (page % static_cast<int>(kSpanPages) != kSpanPages - 1 && rows.back >= first + kTensorPage) continue;
    put_span<kDim>(call, tile, rows, page / static_cast<int>(kSpanPages), index, sums, reinterpret_cast<float*>(rest),
                   running);
    sums.clear();
  }
}

template <int kDim>
cudaError_t launch_tensor(const AttendPages& call, const Device& device) {
  auto* const kernel = call.kv.head_dim == kDim ? &attend_tensor<kDim, true> : &attend_tensor<kDim, false>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(call.kv.kv_heads), static_cast<unsigned>(call.tile_count),
                  call.results == nullptr ? 1u : static_cast<unsigned>(call.spans));
  return launch(kernel, grid, dim3(kTensorThreads), static_cast<size_t>(TensorForm<kDim>::kBytes),
                static_cast<cudaStream_t>(call.stream), false, call);
}

}  // namespace

bool block::takes_tensor_cores(const AttendPages& call) {
  return !call.exact && call.kv.head_dim % 8 == 0 && call.scale > 0;
}

Status block::attend_tensor_tiles(const AttendPages& call) {
  Device device{};
  auto e = current_device(&device);
  if (e == cudaSuccess)
    e = call.kv.head_dim <= 64    ? launch_tensor<64>(call, device)
        : call.kv.head_dim <= 128 ? launch_tensor<128>(call, device)
                                  : launch_tensor<256>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
