// Attention of prompts: many queries of a sequence that read one kv head, as two products of f32 in registers. A thread
// block has 64 or 32 of them; span by span it works out all 256 scores of each, their exponentials, and the weighted
// values. Every score is a chain of fma along the head and every output one along the span, as docs/numerics.md wants.
//
// Each warp has 32 positions of the scores, then 16 elements of the values. It converts what it needs of them itself,
// so that threads wait for each other only around the exponentials.

#include <algorithm>

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kPromptWarps = kPagedThreads / 32;
constexpr int kOfWarp = kSpan / kPromptWarps;  // positions
constexpr int kKeySteps = 8;                   // elements of the head that are staged together
constexpr int kValueSteps = 16, kUnit = 16;    // positions, and elements of each, that are
constexpr int kStage = 256;                    // floats of a warp
constexpr int kMine = 8;                       // positions of a thread
constexpr float kLeastPlain = -86.0f;          // from here on exponentials are normal numbers
static_assert(kKeySteps * kOfWarp == kStage && kValueSteps * kUnit == kStage && kOfWarp == 4 * kMine);

/// Shared memory; behind it the queries, [element][query], with zeros up to a multiple of kKeySteps.
template <int kQueries>
struct PromptShared {
  static constexpr int kPitch = kQueries + 4;  // sixteen positions' weights of four queries in different banks
  float weights[kSpan][kPitch];
  float stage[kPromptWarps][kStage];  // what a warp reads next; its largest scores between the products
  const uint16_t* values[kSpanPages];
  int64_t offsets[kQueries];  // in q and out
  int positions[kQueries];    // -1: there is no such query
  float most[kQueries];
  Running running[kQueries];
  Merging merging[kQueries];
};
constexpr LOWBIT_HD int key_steps(int64_t head_dim) {
  return static_cast<int>((head_dim + kKeySteps - 1) / kKeySteps) * kKeySteps;
}
template <int kQueries>
constexpr int64_t prompt_shared_bytes(int64_t head_dim) {
  return static_cast<int64_t>(sizeof(PromptShared<kQueries>)) + int64_t{key_steps(head_dim)} * kQueries * 4;
}

/// Where a lane works: one of eight groups of queries, one of four of columns. So two lanes next to each other, or two
/// apart, read the same 16 bytes, and 32 lanes' reads take two turns of the banks.
struct LanePlace {
  int queries, columns;
};
__device__ __forceinline__ LanePlace lane_place() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane / 2 % 8, lane / 16 * 2 + lane % 2};
}

/// A thread's `kOwn` queries are runs of four, 32 apart.
__device__ __forceinline__ int query_of(int group, int i) { return i / 4 * 32 + group * 4 + i % 4; }

template <int kOwn>
__device__ __forceinline__ void load_own(const float* from, int group, float (&to)[kOwn]) {
#pragma unroll
  for (int i = 0; i < kOwn; i += 4)
    *reinterpret_cast<float4*>(&to[i]) = *reinterpret_cast<const float4*>(from + query_of(group, i));
}

__device__ __forceinline__ void expand(const uint4& packed, float4& low, float4& high) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = f16_value(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
  low = {v[0], v[1], v[2], v[3]};
  high = {v[4], v[5], v[6], v[7]};
}

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

/// A block's queries, the span that it works on, and what of it some query sees, or all.
struct PromptSpan {
  int first;              // position
  int low, high;          // seen by some, in the span
  int all_low, all_high;  // seen by all
  __device__ __forceinline__ PromptSpan(const AttendPages& call, const PagedTile& tile, int span) {
    const int front = tile.position(0), back = tile.position(tile.count - 1);
    first = span * kSpan;
    low = max(first_seen(front, call.window) - first, 0);
    high = min(back + 1 - first, kSpan);
    all_low = max(first_seen(back, call.window) - first, 0);
    all_high = min(front + 1 - first, kSpan);
  }
};

/// Scores of a warp's positions: position kMine * columns + j of them is the thread's j-th. Rows of `stage` are 32
/// positions of an element, halves of eights apart, and those of odd elements swapped: stores meet no bank twice.
template <int kOwn>
__device__ __forceinline__ void score_positions(const AttendPages& call, const uint16_t* keys, const float* queries,
                                                float* stage, float (&scores)[kOwn][kMine]) {
  constexpr int kQueries = 8 * kOwn;
  const LanePlace place = lane_place();
  const int lane = static_cast<int>(threadIdx.x) % 32, d = static_cast<int>(call.kv.head_dim);
  const int step_of_lane = lane / 4, eight = lane % 4;
  float* const low = stage + step_of_lane * kOfWarp + step_of_lane % 2 * 16 + eight * 4;
  float* const high = stage + step_of_lane * kOfWarp + (1 - step_of_lane % 2) * 16 + eight * 4;
  const uint16_t* from = keys + step_of_lane * int{kKvPage} + eight * 8;
  const uint4 none = {0, 0, 0, 0};
  uint4 next = step_of_lane < d ? __ldg(reinterpret_cast<const uint4*>(from)) : none;
#pragma unroll
  for (int q = 0; q < kOwn; ++q)
#pragma unroll
    for (int j = 0; j < kMine; ++j) scores[q][j] = 0;
  for (int step = 0; step < d; step += kKeySteps) {
    __syncwarp();
    expand(next, *reinterpret_cast<float4*>(low), *reinterpret_cast<float4*>(high));
    __syncwarp();
    from += kKeySteps * int{kKvPage};
    next = step + kKeySteps + step_of_lane < d ? __ldg(reinterpret_cast<const uint4*>(from)) : none;
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) {
      float own[kOwn], key[kMine];
      load_own<kOwn>(queries + (step + i) * kQueries, place.queries, own);
      const float* const row = stage + i * kOfWarp + place.columns * 4;
      *reinterpret_cast<float4*>(&key[0]) = *reinterpret_cast<const float4*>(row + i % 2 * 16);
      *reinterpret_cast<float4*>(&key[4]) = *reinterpret_cast<const float4*>(row + (1 - i % 2) * 16);
#pragma unroll
      for (int q = 0; q < kOwn; ++q)
#pragma unroll
        for (int j = 0; j < kMine; ++j) scores[q][j] = __fmaf_rn(own[q], key[j], scores[q][j]);
    }
  }
#pragma unroll
  for (int q = 0; q < kOwn; ++q)
#pragma unroll
    for (int j = 0; j < kMine; ++j) scores[q][j] = __fmul_rn(call.scale, scores[q][j]);
}

/// Scores of positions that a query does not see become -inf: they weigh nothing and are never the largest.
template <int kOwn>
__device__ __forceinline__ void hide_unseen(const AttendPages& call, const int* positions, int first,
                                            float (&scores)[kOwn][kMine]) {
  const LanePlace place = lane_place();
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const int position = positions[query_of(place.queries, q)], from = first_seen(position, call.window);
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int t = first + place.columns * kMine + j;
      if (t > position || t < from) scores[q][j] = -INFINITY;
    }
  }
}

/// The warp's largest scores of each query, in its stage.
template <int kOwn>
__device__ __forceinline__ void largest_of_positions(const float (&scores)[kOwn][kMine], float* stage) {
  const LanePlace place = lane_place();
  float most[kOwn];
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    most[q] = -INFINITY;  // fmaxf passes a NaN over
#pragma unroll
    for (int j = 0; j < kMine; ++j) most[q] = fmaxf(most[q], scores[q][j]);
#pragma unroll
    for (const int apart : {1, 16})
      most[q] = fmaxf(most[q], __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(most[q]), apart, 32)));
  }
  __syncwarp();
  if (place.columns == 0)
#pragma unroll
    for (int q = 0; q < kOwn; q += 4)
      *reinterpret_cast<float4*>(stage + query_of(place.queries, q)) = *reinterpret_cast<const float4*>(&most[q]);
}

/// The thread's exponentials, to shared.weights. Behind a barrier: every warp's largest scores are there.
template <int kOwn>
__device__ __forceinline__ void exponentials_of_prompt(const float (&scores)[kOwn][kMine], bool active,
                                                       PromptShared<8 * kOwn>& shared) {
  const LanePlace place = lane_place();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float shift[kOwn];
  load_own<kOwn>(shared.stage[0], place.queries, shift);
#pragma unroll
  for (int w = 1; w < kPromptWarps; ++w) {
    float other[kOwn];
    load_own<kOwn>(shared.stage[w], place.queries, other);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) shift[q] = fmaxf(shift[q], other[q]);
  }
  if (warp == 0 && place.columns == 0)
#pragma unroll
    for (int q = 0; q < kOwn; ++q) shared.most[query_of(place.queries, q)] = shift[q];
  if (!active) return;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) shift[q] = shift_of(shift[q]);
  float* const to = &shared.weights[warp * kOfWarp + place.columns * kMine][0];
  constexpr int kPitch = PromptShared<8 * kOwn>::kPitch;
  bool plain = true;
#pragma unroll
  for (int j = 0; j < kMine; ++j)
#pragma unroll
    for (int q = 0; q < kOwn; q += 4) {
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = __fsub_rn(scores[q + i][j], shift[q + i]);
        plain = plain && x >= kLeastPlain;
        e[i] = plain_exp(x);
      }
      *reinterpret_cast<float4*>(to + j * kPitch + query_of(place.queries, q)) = {e[0], e[1], e[2], e[3]};
    }
  if (plain) return;
    // Some are NaN or nearly nothing: all of the thread once more. Rare, so that the code is short and not fast.
#pragma unroll
  for (int j = 0; j < kMine; ++j)
#pragma unroll
    for (int q = 0; q < kOwn; ++q) to[j * kPitch + query_of(place.queries, q)] = __fsub_rn(scores[q][j], shift[q]);
#pragma unroll 1
  for (int i = 0; i < kMine * kOwn; ++i) {
    float& e = to[i / kOwn * kPitch + query_of(place.queries, i % kOwn)];
    e = exp_f32(e);
  }
}

/// Sums of exponentials, and what they make of the spans before. Half a warp has four queries, a lane of it a partial
/// sum of each.
template <int kQueries>
__device__ __forceinline__ void sum_prompt(const AttendPages& call, const PromptSpan& of, int span,
                                           PromptShared<kQueries>& shared) {
  const int four = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  if (static_cast<int>(threadIdx.x) / 32 * 8 >= kQueries) return;
  float sums[4] = {0, 0, 0, 0};
  for (int round = of.low / kLanes; round * kLanes < of.high; ++round) {
    const float4 e = *reinterpret_cast<const float4*>(&shared.weights[round * kLanes + lane][four * 4]);
    sums[0] = __fadd_rn(sums[0], e.x);
    sums[1] = __fadd_rn(sums[1], e.y);
    sums[2] = __fadd_rn(sums[2], e.z);
    sums[3] = __fadd_rn(sums[3], e.w);
  }
  float total = 0;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float sum = fold_lanes(sums[q]);
    if (lane == q) total = sum;
  }
  if (lane >= 4) return;
  const int query = four * 4 + lane;
  const float most = shared.most[query];
  if (call.results != nullptr) {
    shared.running[query] = {most, total};
  } else {
    shared.merging[query] =
        merge(seen_of(shared.positions[query], span, call.window), most, total, shared.running[query]);
  }
}

/// Of a position's values the eight from `element` on.
__device__ __forceinline__ uint4 load_values(const uint16_t* row, int element, int d) {
  uint4 v = {0, 0, 0, 0};
  if (d % 8 == 0) {
    if (element < d) v = __ldg(reinterpret_cast<const uint4*>(row + element));
    return v;
  }
  uint32_t words[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (element + i < d) words[i] = row[element + i];
  return {words[0] | words[1] << 16, words[2] | words[3] << 16, words[4] | words[5] << 16, words[6] | words[7] << 16};
}

/// Weighted values of a unit of elements, for the thread's queries behind `first`. Rows of `stage` are a position's
/// elements in fours, and those of positions 2, 3, 6, 7.. swapped: stores meet no bank twice.
template <int kOwn, int kQueries>
__device__ __forceinline__ void weigh_unit(const AttendPages& call, const PromptSpan& of, int unit, int first,
                                           const PromptShared<kQueries>& shared, float* stage, float (&sums)[kOwn][4]) {
  constexpr int kPage = static_cast<int>(kKvPage);
  const LanePlace place = lane_place();
  const int lane = static_cast<int>(threadIdx.x) % 32, d = static_cast<int>(call.kv.head_dim);
  const int step_of_lane = lane / 2, element = unit * kUnit + lane % 2 * 8, swap = step_of_lane / 2 % 2;
  float* const low = stage + step_of_lane * kUnit + (lane % 2 * 2 ^ swap) * 4;
  float* const high = stage + step_of_lane * kUnit + ((lane % 2 * 2 + 1) ^ swap) * 4;
  const auto load = [&](int chunk) {
    const int t = chunk * kValueSteps + step_of_lane;
    return load_values(shared.values[t / kPage] + t % kPage * d, element, d);
  };
#pragma unroll
  for (int q = 0; q < kOwn; ++q) sums[q][0] = sums[q][1] = sums[q][2] = sums[q][3] = 0;
  const int chunks = (of.high + kValueSteps - 1) / kValueSteps;
  int chunk = of.low / kValueSteps;
  uint4 next = load(chunk);
  for (; chunk < chunks; ++chunk) {
    __syncwarp();
    expand(next, *reinterpret_cast<float4*>(low), *reinterpret_cast<float4*>(high));
    __syncwarp();
    if (chunk + 1 < chunks) next = load(chunk + 1);
    const int begin = chunk * kValueSteps;
    const auto add = [&](int t, const auto& sees) {
      float own[kOwn];
      load_own<kOwn>(&shared.weights[begin + t][first], place.queries, own);
      const float4 v = *reinterpret_cast<const float4*>(stage + t * kUnit + (place.columns ^ t / 2 % 2) * 4);
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
          const int position = shared.positions[first + query_of(place.queries, q)], at = of.first + begin + t;
          return at <= position && at >= first_seen(position, call.window);
        });
    }
  }
}

/// A unit's sums to the results of the span, or to the output with those of the spans before.
template <int kOwn, int kQueries>
__device__ __forceinline__ void put_unit(const AttendPages& call, const PagedTile& tile, int index, int skipped,
                                         int span, int unit, int first, const PromptShared<kQueries>& shared,
                                         const float (&sums)[kOwn][4]) {
  const LanePlace place = lane_place();
  const int d = static_cast<int>(call.kv.head_dim), element = unit * kUnit + place.columns * 4;
  const int part = span - tile.first_span;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const int query = first + query_of(place.queries, q);
    if (query >= tile.count) continue;
    if (call.results != nullptr) {
      float* const to = result_of(call, index, tile.kv_head, part, skipped + query);
      if (element == 0) to[0] = shared.running[query].most, to[1] = shared.running[query].total;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (element + i < d) to[2 + element + i] = sums[q][i];
      continue;
    }
    const Seen seen = seen_of(shared.positions[query], span, call.window);
    const Merging by = shared.merging[query];
    float* const to = call.out + shared.offsets[query] + element;
    const float scale = part + 1 == tile.spans ? __fdiv_rn(1.0f, shared.running[query].total) : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (element + i >= d) continue;
      const float all = merged(seen, by, sums[q][i], part == 0 ? 0.0f : to[i]);
      to[i] = part + 1 == tile.spans ? __fmul_rn(all, scale) : all;
    }
  }
}

/// kHalves: as many warps share a unit of elements, each with a part of the queries, for small heads.
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
  const PagedTile tile = part_of_tile(call, index, static_cast<int>(blockIdx.x), skipped, kQueries);
  const bool apart = call.results != nullptr;
  if (tile.count <= 0 || (apart && static_cast<int>(blockIdx.z) >= tile.spans)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, d = static_cast<int>(call.kv.head_dim);
  if (thread < kQueries) {
    shared.positions[thread] = thread < tile.count ? tile.position(thread) : -1;
    shared.offsets[thread] = thread < tile.count ? tile.offset(call, thread) : 0;
  }
  __syncthreads();
  for (int at = thread; at < key_steps(d) * kQueries; at += kPagedThreads) {
    const int q = at % kQueries, i = at / kQueries;
    queries[at] = q < tile.count && i < d ? call.q[shared.offsets[q] + i] : 0.0f;
  }
  __syncthreads();
  const int begin = tile.first_span + (apart ? static_cast<int>(blockIdx.z) : 0);
  const int end = apart ? begin + 1 : begin + tile.spans;
  for (int span = begin; span < end; ++span) {
    const PromptSpan of(call, tile, span);
    const int mine = warp * kOfWarp, page = thread * static_cast<int>(kKvPage);
    if (thread < kSpanPages && page < of.high && page + int{kKvPage} > of.low)
      shared.values[thread] = page_rows(call, tile, span * int{kSpanPages} + thread, 1);
    const bool active = mine < of.high && mine + kOfWarp > of.low;
    {
      float scores[kOwn][kMine];
      if (active) {
        const uint16_t* const keys = page_rows(call, tile, (of.first + mine) / int{kKvPage}, 0) + mine % int{kKvPage};
        score_positions<kOwn>(call, keys, queries, shared.stage[warp], scores);
        if (mine < of.all_low || mine + kOfWarp > of.all_high)
          hide_unseen<kOwn>(call, shared.positions, of.first + mine, scores);
        largest_of_positions<kOwn>(scores, shared.stage[warp]);
      } else {
        for (int q = thread % 32; q < kQueries; q += 32) shared.stage[warp][q] = -INFINITY;
      }
      __syncthreads();
      exponentials_of_prompt<kOwn>(scores, active, shared);
    }
    __syncthreads();
    sum_prompt<kQueries>(call, of, span, shared);
    __syncthreads();
    constexpr int kUnitsAtOnce = kPromptWarps / kHalves;
    const int first = warp / kUnitsAtOnce * (kQueries / kHalves);
    for (int unit = warp % kUnitsAtOnce; unit * kUnit < d; unit += kUnitsAtOnce) {
      float sums[kPartOwn][4];
      weigh_unit<kPartOwn, kQueries>(call, of, unit, first, shared, shared.stage[warp], sums);
      put_unit<kPartOwn, kQueries>(call, tile, index, skipped, span, unit, first, shared, sums);
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
  const auto e = small                           ? launch_prompt<4, 1>(call, device)
                 : call.kv.head_dim <= 4 * kUnit ? launch_prompt<8, 2>(call, device)
                                                 : launch_prompt<8, 1>(call, device);
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
