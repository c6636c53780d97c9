// Attention of prompts: many queries of a sequence that read one kv head, as two products of f32 in registers. A thread
// block has 64 or 32 of them; span by span it works out all 256 scores of each, their exponentials, and the weighted
// values. Every score is a chain of fma along the head and every output one along the span, as docs/numerics.md wants.
//
// Each warp has 32 positions of the scores, then 16 elements of the values. It converts what it needs of them itself,
// so that threads wait for each other only around the exponentials.

#include "kernels/cuda/block/attention_prompt.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// Starts the copy of a thread's share of the values of some positions: eight elements of one of them.
template <int kQueries>
__device__ __forceinline__ void start_values(int chunk, int dim_tile, int d, PromptShared<kQueries>& shared) {
  constexpr int kPage = static_cast<int>(kKvPage);
  const int lane = static_cast<int>(threadIdx.x) % 32, t = chunk * kValueSteps + lane / 2;
  const int element = dim_tile * kDimTile + lane % 2 * 8;
  uint4* const to = &shared.copies[threadIdx.x];
  const uint16_t* const row = shared.values[t / kPage] + t % kPage * d;
  if (element >= d) {
    *to = {0, 0, 0, 0};
  } else if (d % 8 == 0) {
    copy_to_shared_16(to, row + element);
  } else {
    uint32_t words[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (element + i < d) words[i] = row[element + i];
    *to = {words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16, words[6] | words[7] << 16};
  }
}

/// Weighted values of a tile of elements, for the thread's queries behind `first`. Rows of `stage` are a position's
/// elements in fours, and those of positions 2, 3, 6, 7.. swapped: stores meet no bank twice. Behind start_values() of
/// the first positions.
template <int kOwn, int kQueries>
__device__ __forceinline__ void weigh_dim_tile(const AttendPages& call, const PromptSpan& of, int dim_tile, int first,
                                               PromptShared<kQueries>& shared, float* stage, float (&sums)[kOwn][4]) {
  const LaneTile tile_of_lane = lane_tile();
  const int lane = static_cast<int>(threadIdx.x) % 32, d = static_cast<int>(call.kv.head_dim);
  const int step_of_lane = lane / 2, swap = step_of_lane / 2 % 2;
  float* const low = stage + step_of_lane * kDimTile + (lane % 2 * 2 ^ swap) * 4;
  float* const high = stage + step_of_lane * kDimTile + ((lane % 2 * 2 + 1) ^ swap) * 4;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = 0;
  const int chunks = (of.high + kValueSteps - 1) / kValueSteps;
  for (int chunk = of.low / kValueSteps; chunk < chunks; ++chunk) {
    wait_for_all_copies();
    const uint4 eights = shared.copies[threadIdx.x];
    __syncwarp();
    expand(eights, *reinterpret_cast<float4*>(low), *reinterpret_cast<float4*>(high));
    if (chunk + 1 < chunks) start_values(chunk + 1, dim_tile, d, shared);
    __syncwarp();
    const int begin = chunk * kValueSteps;
    const auto add = [&](int t, const auto& sees) {
      float own[kOwn];
      load_own<kOwn>(&shared.rows[begin + t].weights[first], tile_of_lane.queries, own);
      const float4 v = *reinterpret_cast<const float4*>(stage + t * kDimTile + (tile_of_lane.columns ^ t / 2 % 2) * 4);
#pragma unroll
      for (int q = 0; q < kOwn; ++q) {
        if (!sees(q)) continue;  // 0 * infinity would be NaN
        sums[q][0] = __fmaf_rn(own[q], v.x, sums[q][0]);
        sums[q][1] = __fmaf_rn(own[q], v.y, sums[q][1]);
        sums[q][2] = __fmaf_rn(own[q], v.z, sums[q][2]);
        sums[q][3] = __fmaf_rn(own[q], v.w, sums[q][3]);
      }
    };
    if (begin >= of.all_low && begin + kValueSteps <= of.all_high) {
#pragma unroll
      for (int t = 0; t < kValueSteps; ++t) add(t, [](int) { return true; });
    } else {
#pragma unroll 1
      for (int t = max(of.low - begin, 0); t < min(of.high - begin, kValueSteps); ++t)
        add(t, [&](int q) {
          const int position = shared.position(first + query_of(tile_of_lane.queries, q)), at = of.first + begin + t;
          return at <= position && at >= first_seen(position, call.window);
        });
    }
  }
}

/// A tile's sums to the results of the span, or to the output with those of the spans before.
template <int kOwn, int kQueries>
__device__ __forceinline__ void put_dim_tile(const AttendPages& call, const PagedTile& tile, int index, int skipped,
                                             int span, int dim_tile, int first, PromptShared<kQueries>& shared,
                                             const float (&sums)[kOwn][4]) {
  const LaneTile tile_of_lane = lane_tile();
  const int d = static_cast<int>(call.kv.head_dim), element = dim_tile * kDimTile + tile_of_lane.columns * 4;
  const int part = span - tile.first_span;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const int query = first + query_of(tile_of_lane.queries, q);
    if (query >= tile.count) continue;
    if (call.results != nullptr) {
      float* const to = result_of(call, index, tile.kv_head, part, skipped + query);
      if (element == 0) to[0] = shared.running(query).most, to[1] = shared.running(query).total;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (element + i < d) to[2 + element + i] = sums[q][i];
      continue;
    }
    const Seen seen = seen_of(shared.position(query), span, call.window);
    const Merging by = shared.merging(query);
    float* const to = call.out + shared.offset(query) + element;
    const float scale = part + 1 == tile.spans ? __fdiv_rn(1.0f, shared.running(query).total) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (element + i >= d) continue;
      const float all = merged(seen, by, sums[q][i], part == 0 ? 0.0f : to[i]);
      to[i] = part + 1 == tile.spans ? __fmul_rn(all, scale) : all;
    }
  }
}

/// The block's queries, [element][query], and where they are.
template <int kQueries>
__device__ __forceinline__ void load_prompt(const AttendPages& call, const PagedTile& tile, float* queries,
                                            PromptShared<kQueries>& shared) {
  const int thread = static_cast<int>(threadIdx.x), d = static_cast<int>(call.kv.head_dim);
  if (thread < kQueries) {
    shared.position(thread) = thread < tile.count ? tile.position(thread) : -1;
    shared.offset(thread) = thread < tile.count ? tile.offset(call, thread) : 0;
  }
  __syncthreads();
  for (int at = thread; at < key_steps(d) * kQueries; at += kPagedThreads) {
    const int q = at % kQueries, i = at / kQueries;
    queries[at] = q < tile.count && i < d ? call.q[shared.offset(q) + i] : 0.0f;
  }
  __syncthreads();
}

/// kHalves: as many warps share a tile of elements, each with a part of the queries, for small heads.
template <int kOwn, int kHalves>
__global__ void __launch_bounds__(kPagedThreads, 2) attend_prompt_tiles(const __grid_constant__ AttendPages call) {
  constexpr int kQueries = 8 * kOwn, kParts = kPromptQueries / kQueries, kPartOwn = kOwn / kHalves;
  using Shared = PromptShared<kQueries>;
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  auto* const queries = reinterpret_cast<float*>(bytes + sizeof(Shared));
  // Tiles behind each other see ever more: the longest ones first, of all heads.
  const int tile_and_part = static_cast<int>(call.tile_count) * kParts - 1 - static_cast<int>(blockIdx.y);
  const int index = tile_and_part / kParts, skipped = tile_and_part % kParts * kQueries;
  PagedTile tile = part_of_tile(call, index, static_cast<int>(blockIdx.x), skipped, kQueries);
  const bool apart = call.results != nullptr;
  if (tile.count <= 0) return;
  if (apart) {  // results lie by the first span of the whole tile
    const int first = part_of_tile(call, index, tile.kv_head, 0, 1).first_span;
    const int span = first + static_cast<int>(blockIdx.z);
    if (span < tile.first_span || span >= tile.first_span + tile.spans) return;
    tile.first_span = first;
  }
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, d = static_cast<int>(call.kv.head_dim);
  load_prompt<kQueries>(call, tile, queries, shared);
  const int begin = tile.first_span + (apart ? static_cast<int>(blockIdx.z) : 0);
  const int end = apart ? begin + 1 : begin + tile.spans;
  constexpr int kDimTilesAtOnce = kPromptWarps / kHalves;
  const int first = warp / kDimTilesAtOnce * (kQueries / kHalves), first_dim_tile = warp % kDimTilesAtOnce;
  uint4* const copy = &shared.copies[thread];
  const uint16_t* keys = keys_of_warp(call, tile, PromptSpan(call, tile, begin));
  if (keys != nullptr) start_keys(keys, d, copy);
  for (int span = begin; span < end; ++span) {
    const PromptSpan of(call, tile, span);
    const int mine = warp * kOfWarp, page = thread * static_cast<int>(kKvPage);
    if (thread < kSpanPages && page < of.high && page + int{kKvPage} > of.low)
      shared.values[thread] = page_rows(call, tile, span * int{kSpanPages} + thread, 1);
    {
      float scores[kOwn][kMine];
      if (keys != nullptr) {
        score_positions<kOwn>(call, keys, queries, shared.stage[warp], copy, scores);
        if (mine < of.all_low || mine + kOfWarp > of.all_high) hide_unseen<kOwn>(call, shared, of.first + mine, scores);
        largest_of_positions<kOwn>(scores, shared.stage[warp]);
      } else {
        for (int q = thread % 32; q < kQueries; q += 32) shared.stage[warp][q] = -INFINITY;
      }
      __syncthreads();
      if (first_dim_tile * kDimTile < d) start_values(of.low / kValueSteps, first_dim_tile, d, shared);
      exponentials_of_prompt<kOwn>(scores, keys != nullptr, shared);
    }
    __syncthreads();
    sum_prompt<kQueries>(call, of, span, shared);
    __syncthreads();
    for (int dim_tile = first_dim_tile; dim_tile * kDimTile < d; dim_tile += kDimTilesAtOnce) {
      float sums[kPartOwn][4];
      weigh_dim_tile<kPartOwn, kQueries>(call, of, dim_tile, first, shared, shared.stage[warp], sums);
      if ((dim_tile + kDimTilesAtOnce) * kDimTile < d)
        start_values(of.low / kValueSteps, dim_tile + kDimTilesAtOnce, d, shared);
      put_dim_tile<kPartOwn, kQueries>(call, tile, index, skipped, span, dim_tile, first, shared, sums);
    }
    if (span + 1 < end) {
      keys = keys_of_warp(call, tile, PromptSpan(call, tile, span + 1));
      if (keys != nullptr) start_keys(keys, d, copy);
    }
    __syncthreads();
  }
}

template <int kOwn, int kHalves>
cudaError_t launch_prompt(const AttendPages& call, const Device& device) {
  auto* const kernel = &attend_prompt_tiles<kOwn, kHalves>;
  constexpr int kParts = kPromptQueries / (8 * kOwn);
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(call.kv.kv_heads), static_cast<unsigned>(call.tile_count * kParts),
                  call.results == nullptr ? 1u : static_cast<unsigned>(call.spans));
  return launch(kernel, grid, dim3(kPagedThreads), static_cast<size_t>(prompt_shared_bytes<8 * kOwn>(call.kv.head_dim)),
                static_cast<cudaStream_t>(call.stream), false, call);
}

}  // namespace

Status block::attend_prompt(const AttendPages& call) {
  Device device{};
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "attention");
  const int64_t blocks = call.tile_count * call.kv.kv_heads * (call.results == nullptr ? 1 : call.spans);
  const bool small = blocks < device.processors || prompt_shared_bytes<64>(call.kv.head_dim) > device.shared_bytes;
  const auto e = small                              ? launch_prompt<4, 1>(call, device)
                 : call.kv.head_dim <= 4 * kDimTile ? launch_prompt<8, 2>(call, device)
                                                    : launch_prompt<8, 1>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
