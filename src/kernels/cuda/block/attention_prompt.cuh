#pragma once
// Scores of a prompt's queries in registers, their exponentials and sums: the first half of attention_prompt.cu.

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::block {

constexpr int kPromptWarps = kPagedThreads / 32;
constexpr int kOfWarp = kSpan / kPromptWarps;   // positions
constexpr int kKeySteps = 8;                    // elements of the head that are staged together
constexpr int kValueSteps = 16, kDimTile = 16;  // positions, and elements of each, that are
constexpr int kStage = 256;                     // floats of a warp
constexpr int kMine = 8;                        // positions of a thread
static_assert(kKeySteps * kOfWarp == kStage && kValueSteps * kDimTile == kStage && kOfWarp == 4 * kMine);

/// Shared memory; behind it the queries, [element][query], with zeros up to a multiple of kKeySteps. What belongs to
/// one query lies behind the rows of weights, in what keeps sixteen of them in different banks: two thread blocks have
/// just room on a multiprocessor.
template <int kQueries>
struct PromptShared {
  struct __align__(16) Row {
    float weights[kQueries];  // of a position
    union {
      struct {
        Merging merging;
        Running running;
      } sums;  // row q: of query q
      struct {
        int64_t offset;  // in q and out
        int position;    // -1: there is no such query
        float most;
      } place;  // row kQueries + q
    };
  };
  Row rows[kSpan];
  float stage[kPromptWarps][kStage];  // what a warp reads next; its largest scores between the products
  uint4 copies[kPagedThreads];        // f16 on its way to the stage, of each thread's own
  const uint16_t* values[kSpanPages];

  __device__ __forceinline__ Merging& merging(int q) { return rows[q].sums.merging; }
  __device__ __forceinline__ Running& running(int q) { return rows[q].sums.running; }
  __device__ __forceinline__ int& position(int q) { return rows[kQueries + q].place.position; }
  __device__ __forceinline__ float& most(int q) { return rows[kQueries + q].place.most; }
  __device__ __forceinline__ int64_t& offset(int q) { return rows[kQueries + q].place.offset; }
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
struct LaneTile {
  int queries, columns;
};
__device__ __forceinline__ LaneTile lane_tile() {
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

/// The keys of the warp's positions; null where nobody sees them.
__device__ __forceinline__ const uint16_t* keys_of_warp(const AttendPages& call, const PagedTile& tile,
                                                        const PromptSpan& of) {
  const int mine = static_cast<int>(threadIdx.x) / 32 * kOfWarp;
  if (mine >= of.high || mine + kOfWarp <= of.low) return nullptr;
  return page_rows(call, tile, (of.first + mine) / int{kKvPage}, 0) + mine % int{kKvPage};
}

/// Starts the copy of a thread's share of the first elements of its warp's keys.
__device__ __forceinline__ void start_keys(const uint16_t* keys, int d, uint4* copy) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane / 4 < d) copy_to_shared_16(copy, keys + lane / 4 * int{kKvPage} + lane % 4 * 8);
}

/// Scores of a warp's positions: position kMine * columns + j of them is the thread's j-th. Rows of `stage` are 32
/// positions of an element, halves of eights apart, and those of odd elements swapped: stores meet no bank twice.
/// Behind start_keys().
template <int kOwn>
__device__ __forceinline__ void score_positions(const AttendPages& call, const uint16_t* keys, const float* queries,
                                                float* stage, uint4* copy, float (&scores)[kOwn][kMine]) {
  constexpr int kQueries = 8 * kOwn;
  const LaneTile tile_of_lane = lane_tile();
  const int lane = static_cast<int>(threadIdx.x) % 32, d = static_cast<int>(call.kv.head_dim);
  const int step_of_lane = lane / 4, eight = lane % 4;
  float* const low = stage + step_of_lane * kOfWarp + step_of_lane % 2 * 16 + eight * 4;
  float* const high = stage + step_of_lane * kOfWarp + (1 - step_of_lane % 2) * 16 + eight * 4;
  const uint16_t* from = keys + step_of_lane * int{kKvPage} + eight * 8;
#pragma unroll
  for (int q = 0; q < kOwn; ++q)
#pragma unroll
    for (int j = 0; j < kMine; ++j) scores[q][j] = 0;
  for (int step = 0; step < d; step += kKeySteps) {
    wait_for_all_copies();
    uint4 eights = *copy;
    if (step + step_of_lane >= d) eights = {0, 0, 0, 0};
    __syncwarp();
    expand(eights, *reinterpret_cast<float4*>(low), *reinterpret_cast<float4*>(high));
    from += kKeySteps * int{kKvPage};
    if (step + kKeySteps + step_of_lane < d) copy_to_shared_16(copy, from);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kKeySteps; ++i) {
      float own[kOwn], key[kMine];
      load_own<kOwn>(queries + (step + i) * kQueries, tile_of_lane.queries, own);
      const float* const row = stage + i * kOfWarp + tile_of_lane.columns * 4;
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
__device__ __forceinline__ void hide_unseen(const AttendPages& call, PromptShared<8 * kOwn>& shared, int first,
                                            float (&scores)[kOwn][kMine]) {
  const LaneTile tile_of_lane = lane_tile();
#pragma unroll
  for (int q = 0; q < kOwn; ++q) {
    const int position = shared.position(query_of(tile_of_lane.queries, q)), from = first_seen(position, call.window);
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int t = first + tile_of_lane.columns * kMine + j;
      if (t > position || t < from) scores[q][j] = -INFINITY;
    }
  }
}

/// The warp's largest scores of each query, in its stage.
template <int kOwn>
__device__ __forceinline__ void largest_of_positions(const float (&scores)[kOwn][kMine], float* stage) {
  const LaneTile tile_of_lane = lane_tile();
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
  if (tile_of_lane.columns == 0)
#pragma unroll
    for (int q = 0; q < kOwn; q += 4)
      *reinterpret_cast<float4*>(stage + query_of(tile_of_lane.queries, q)) =
          *reinterpret_cast<const float4*>(&most[q]);
}

/// The thread's exponentials, to shared.rows. Behind a barrier: every warp's largest scores are there.
template <int kOwn>
__device__ __forceinline__ void exponentials_of_prompt(const float (&scores)[kOwn][kMine], bool active,
                                                       PromptShared<8 * kOwn>& shared) {
  const LaneTile tile_of_lane = lane_tile();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float shift[kOwn];
  load_own<kOwn>(shared.stage[0], tile_of_lane.queries, shift);
#pragma unroll
  for (int w = 1; w < kPromptWarps; ++w) {
    float other[kOwn];
    load_own<kOwn>(shared.stage[w], tile_of_lane.queries, other);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) shift[q] = fmaxf(shift[q], other[q]);
  }
  if (warp == 0 && tile_of_lane.columns == 0)
#pragma unroll
    for (int q = 0; q < kOwn; ++q) shared.most(query_of(tile_of_lane.queries, q)) = shift[q];
  if (!active) return;
#pragma unroll
  for (int q = 0; q < kOwn; ++q) shift[q] = shift_of(shift[q]);
  auto* const to = &shared.rows[warp * kOfWarp + tile_of_lane.columns * kMine];
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
      *reinterpret_cast<float4*>(&to[j].weights[query_of(tile_of_lane.queries, q)]) = {e[0], e[1], e[2], e[3]};
    }
  if (plain) return;
    // Some are NaN or nearly nothing: all of the thread once more. Rare, so that the code is short and not fast.
#pragma unroll
  for (int j = 0; j < kMine; ++j)
#pragma unroll
    for (int q = 0; q < kOwn; ++q) to[j].weights[query_of(tile_of_lane.queries, q)] = __fsub_rn(scores[q][j], shift[q]);
#pragma unroll 1
  for (int i = 0; i < kMine * kOwn; ++i) {
    float& e = to[i / kOwn].weights[query_of(tile_of_lane.queries, i % kOwn)];
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
    const float4 e = *reinterpret_cast<const float4*>(&shared.rows[round * kLanes + lane].weights[four * 4]);
    sums[0] = __fadd_rn(sums[0], e.x);
    sums[1] = __fadd_rn(sums[1], e.y);
    sums[2] = __fadd_rn(sums[2], e.z);
    sums[3] = __fadd_rn(sums[3], e.w);
  }
  float total = 0;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float sum = reduce_lanes(sums[q]);
    if (lane == q) total = sum;
  }
  if (lane >= 4) return;
  const int query = four * 4 + lane;
  const float most = shared.most(query);
  if (call.results != nullptr) {
    shared.running(query) = {most, total};
  } else {
    shared.merging(query) =
        merge(seen_of(shared.position(query), span, call.window), most, total, shared.running(query));
  }
}

}  // namespace lowbit::cuda::block
