// attention_packed.cu for heads of 128 elements and up to four queries of a kv head, as many models decode: the same
// operations, with all sizes known. A page's values come while its keys are multiplied, the next keys while its values
// are.

#include "kernels/cuda/block/attention_packed.cuh"
#include "kernels/cuda/block/packed_product.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kHead = 128, kTileQueries = 4, kManyTeams = 4, kSideBytes = 832;
constexpr int kHeadPitch = x_pitch(kHead), kMostBlocks = 4;

/// What becomes of a span when it joins those before it.
struct Joining {
  Merging by;
  int seen;  // 0: nothing of it, 1: it is the first, 2: some are before it
};

template <int kTeams>
struct Shared128 {
  float queries[kTileQueries][kHead];
  float weights[kTeams][kTileQueries][kSpan];  // scores, then their exponentials
  float products[kTeams][kTeamPages][kTileQueries][kHead];
  float2 by[kTeams][kTeamPages][kMostBlocks * kTileQueries];
  uint16_t x[kTeams][kTeamPages][kMostBlocks / 2 * kTileQueries * kHeadPitch];
  uint8_t sides[kTeams][2][kTeamPages][kSideBytes];
  float page_most[kTeams][kTileQueries][kTeamPages];
  float most[kTeams][kTileQueries], total[kTeams][kTileQueries];
  Joining joining[kTeams][kTileQueries];
  Running running[kTileQueries];
  int positions[kTileQueries];
};

/// What a thread knows of its page.
struct Page128 {
  int first;  // its first position, within the span
  bool there, packed;
  const uint8_t *codes, *side;
};
__device__ __forceinline__ Page128 page_128(const AttendPacked& call, const PagedTile& tile, int span, int warp) {
  const PageOfWarp page = page_of(call, tile, span, warp);
  Page128 p = {page.first, page.there, page.there && page.packed, nullptr, nullptr};
  if (!p.packed) return p;
  const uint8_t* const from = packed_page(call.kv, tile, page.page);
  const int64_t head = head_of(call.kv, tile.kv_head);
  p.codes = from + head * call.kv.codes;
  p.side = from + call.kv.sides_at + head * call.kv.sides;
  return p;
}
__device__ __forceinline__ void fetch_side(const Page128& page, int64_t bytes, uint8_t* to) {
  if (!page.packed) return;
  for (int at = static_cast<int>(threadIdx.x) % 32 * 8; at < bytes; at += 32 * 8)
    copy_to_shared_8(to + at, page.side + at);
}

/// The slot of row 16 i + lane, from that of row `lane`.
template <int kBits, int kN>
__device__ __forceinline__ int slot_behind(int first, int i) {
  return kBits == 2 && kN == 2 ? first + i / 2 * kStep + i % 2 * 8 : first + i * kLanes;
}

/// prepare_x() of kOwn times 16 rows, whose x the lane has: of queries `half` and `half` + 2.
template <int kBits, int kN, int kOwn>
__device__ __forceinline__ void prepare_128(const uint8_t* side, const float (&x)[2][kOwn], uint16_t* to, float2* by) {
  constexpr int kRows = kOwn * kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, half = static_cast<int>(threadIdx.x) % 32 / kLanes;
  const float2 units = *reinterpret_cast<const float2*>(side);
  float scaled[2][kOwn], offset[2] = {};
  uint32_t most[2] = {};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int row = i * kLanes + lane;
    const float step = __fmul_rn(units.x, static_cast<float>(side[8 + row]));
    const float least = __fmul_rn(units.y, static_cast<float>(static_cast<int8_t>(side[8 + kRows + row])));
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      scaled[q][i] = __fmul_rn(x[q][i], step);
      most[q] = max(most[q], __float_as_uint(scaled[q][i]) & 0x7fffffffu);
      offset[q] = __fmaf_rn(x[q][i], least, offset[q]);
    }
  }
#pragma unroll
  for (int w = kLanes / 2; w > 0; w /= 2)
#pragma unroll
    for (int q = 0; q < 2; ++q) most[q] = max(most[q], __shfl_xor_sync(0xffffffffu, most[q], w, 32));
  const int first = slot_of<kBits, kN>(lane);
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const float folded = fold_lanes(offset[q]), a = __uint_as_float(most[q]);
    const bool finite = most[q] <= 0x7f7fffffu, some = finite && a >= 0x1p-100f;
    const float inverse = some ? __fdiv_rn(kPackedX, a) : 0.0f;
    const int query = half + 2 * q;
    if (lane == 0) by[query] = {some ? __fdiv_rn(a, kPackedX) : finite ? 0.0f : __uint_as_float(0x7fc00000u), folded};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {  // adding 1.5 * 2^23 rounds; an integer's bits lie lowest then
      const float v = some ? __fmul_rn(scaled[q][i], inverse) : 0.0f;
      to[query * kHeadPitch + slot_behind<kBits, kN>(first, i)] =
          static_cast<uint16_t>(__float_as_uint(__fadd_rn(v, 12582912.0f)));
    }
  }
}

/// Products of fetched codes: give(i, column, product) with query 2 t + i % 2, for lanes with t < 2.
template <int kBits, int kN, int kSteps, class Give>
__device__ __forceinline__ void multiply_128(const RawCodes<kBits, kN, kSteps>& codes, const uint16_t* x,
                                             const float2* by, const Give& give) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  int high[kN][4] = {}, low[kN][4] = {};
  const uint16_t* const from = x + g % kTileQueries * kHeadPitch + t * 4;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint2 first = *reinterpret_cast<const uint2*>(from + step * kStep);
    const uint2 second = *reinterpret_cast<const uint2*>(from + step * kStep + 16);
    const uint32_t high0 = choose_bytes(first.x, first.y, 0x7531), high1 = choose_bytes(second.x, second.y, 0x7531);
    const uint32_t low0 = choose_bytes(first.x, first.y, 0x6420), low1 = choose_bytes(second.x, second.y, 0x6420);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      uint32_t a[4];
      codes_of_step<kBits, kN>(codes.raw[step], n, a);
      multiply_bytes<true>(high[n], a, high0, high1);
      multiply_bytes<false>(low[n], a, low0, low1);
    }
  }
  if (t >= kTileQueries / 2) return;
  const float4 two = *reinterpret_cast<const float4*>(by + 2 * t);
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int sum = static_cast<int>(static_cast<uint32_t>(high[n][i]) * 256u + static_cast<uint32_t>(low[n][i]));
      const float scale = i % 2 == 0 ? two.x : two.z, offset = i % 2 == 0 ? two.y : two.w;
      give(i % 2, 16 * n + 2 * g + i / 2, __fmaf_rn(static_cast<float>(sum), scale, offset));
    }
}

template <int kKeys>
__device__ __forceinline__ void score_128(const float (&queries)[kTileQueries][kHead], const uint8_t* side,
                                          const RawCodes<kKeys, 4, kHead / kStep>& codes, float scale, uint16_t* x,
                                          float2* by, float (*weights)[kSpan], int first) {
  constexpr int kOwn = kHead / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / kLanes;
  float own[2][kOwn];
#pragma unroll
  for (int q = 0; q < 2; ++q)
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own[q][i] = queries[half + 2 * q][i * kLanes + lane % kLanes];
  prepare_128<kKeys, 4>(side, own, x, by);
  sync_warp();
  float* const to = weights[lane % 2 * 2] + first;  // of query 2 t where t < 2
  multiply_128<kKeys, 4>(codes, x, by,
                         [&](int i, int column, float y) { to[i * kSpan + column] = __fmul_rn(scale, y); });
  sync_warp();
}

/// Scores of an f16 page: a lane has two positions.
__device__ __forceinline__ void score_f16_128(const AttendPacked& call, const PagedTile& tile, int page,
                                              const float (&queries)[kTileQueries][kHead], float (*weights)[kSpan],
                                              int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint16_t* const keys = page_rows(call.attend, tile, page, 0) + lane;
  float sums[kTileQueries][2] = {};
#pragma unroll 32
  for (int i = 0; i < kHead; ++i) {
    const float a = f16_value(keys[i * kPagePositions]), b = f16_value(keys[i * kPagePositions + 32]);
#pragma unroll
    for (int q = 0; q < kTileQueries; ++q) {
      sums[q][0] = __fmaf_rn(queries[q][i], a, sums[q][0]);
      sums[q][1] = __fmaf_rn(queries[q][i], b, sums[q][1]);
    }
  }
#pragma unroll
  for (int q = 0; q < kTileQueries; ++q)
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[q][first + lane + 32 * i] = __fmul_rn(call.attend.scale, sums[q][i]);
}

/// Exponentials of the team's span, zeros where a query does not see; its largest scores and sums.
template <int kTeams>
__device__ __forceinline__ void exponentials_128(const AttendPacked& call, int span, int team, bool there, int first,
                                                 Shared128<kTeams>& shared) {
  const int thread = static_cast<int>(threadIdx.x) % kTeamThreads, lane = thread % 32, warp = thread / 32;
  float scores[kTileQueries][2];
  bool sees[kTileQueries][2];
#pragma unroll
  for (int q = 0; q < kTileQueries; ++q) {
    const Seen seen = seen_of(shared.positions[q], span, call.attend.window);
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = first + lane + 32 * i;
      sees[q][i] = there && seen.has(at);
      scores[q][i] = shared.weights[team][q][at];
      if (sees[q][i]) most = scores[q][i] > most ? scores[q][i] : most;  // a NaN is never the largest
    }
    most = largest_of_warp(most);
    if (lane == 0) shared.page_most[team][q][warp] = most;
  }
  sync_team(team);
#pragma unroll
  for (int q = 0; q < kTileQueries; ++q) {
    const float4 four = *reinterpret_cast<const float4*>(shared.page_most[team][q]);
    const float low = four.y > four.x ? four.y : four.x, high = four.w > four.z ? four.w : four.z;
    const float most = high > low ? high : low, shift = shift_of(most);
    if (thread == 0) shared.most[team][q] = most;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      shared.weights[team][q][first + lane + 32 * i] = sees[q][i] ? exp_f32(__fsub_rn(scores[q][i], shift)) : 0.0f;
  }
  sync_team(team);
  const int query = thread / kLanes;
  if (query >= kTileQueries) return;
  float sum = 0;
#pragma unroll
  for (int at = 0; at < kSpan; at += kLanes) sum = __fadd_rn(sum, shared.weights[team][query][at + lane % kLanes]);
  sum = fold_lanes(sum);
  if (lane % kLanes == 0) shared.total[team][query] = sum;
}

template <int kValues>
struct Values128 {
  static constexpr int kN = kValues == 2 ? 2 : 4, kBlocks = kHead / 16 / kN;
  static constexpr int kBlockCodes = kPagePositions * 16 * kN * kValues / 8, kBlockSide = 8 + 2 * kPagePositions;
  RawCodes<kValues, kN, kPagePositions / kStep> raw[kBlocks];

  __device__ __forceinline__ void fetch(const uint8_t* codes) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) raw[b].fetch(codes + b * kBlockCodes, kPagePositions / kStep);
  }
  /// Two blocks' x lie side by side.
  static __device__ __forceinline__ uint16_t* x_of(uint16_t* x, int b) {
    return x + b / 2 * kTileQueries * kHeadPitch + b % 2 * kPagePositions;
  }
  __device__ __forceinline__ void weigh(const uint8_t* side, const float (*weights)[kSpan], int first, uint16_t* x,
                                        float2* by, float (*products)[kHead]) const {
    constexpr int kOwn = kPagePositions / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % 32, half = lane / kLanes;
    float own[2][kOwn];
#pragma unroll
    for (int q = 0; q < 2; ++q)
#pragma unroll
      for (int i = 0; i < kOwn; ++i) own[q][i] = weights[half + 2 * q][first + i * kLanes + lane % kLanes];
    float* const to = products[lane % 2 * 2];  // of query 2 t where t < 2
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      prepare_128<kValues, kN>(side + b * kBlockSide, own, x_of(x, b), by + b * kTileQueries);
    sync_warp();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      multiply_128<kValues, kN>(raw[b], x_of(x, b), by + b * kTileQueries,
                                [&](int i, int column, float y) { to[i * kHead + b * 16 * kN + column] = y; });
    sync_warp();
  }
};

/// How the spans of a round join those before, and Running behind them: one warp.
template <int kTeams>
__device__ __forceinline__ void join_128(const AttendPacked& call, int round, int count, Shared128<kTeams>& shared) {
  const int q = static_cast<int>(threadIdx.x);
  if (q >= kTileQueries) return;
  for (int s = 0; s < count; ++s) {
    const Seen seen = seen_of(shared.positions[q], round + s, call.attend.window);
    const Merging by = merge(seen, shared.most[s][q], shared.total[s][q], shared.running[q]);
    shared.joining[s][q] = {by, seen.nothing() ? 0 : seen.is_first ? 1 : 2};
  }
}

/// Weighted values of element i over a span, for queries q, q + kTeams, ..: pages in ascending order.
template <int kTeams>
__device__ __forceinline__ void sum_of_span_128(const AttendPacked& call, const PagedTile& tile, int span, int team,
                                                int q, int i, const Shared128<kTeams>& shared,
                                                float (&sums)[kTileQueries / kTeams]) {
  constexpr int kOwn = kTileQueries / kTeams;
#pragma unroll
  for (float& sum : sums) sum = 0;
  Seen seen[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) seen[k] = seen_of(shared.positions[q + k * kTeams], span, call.attend.window);
  bool whole = span > 0 && reads_packed(call.kv, span * kTeamPages + kTeamPages - 1, tile.sequence.position);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) whole = whole && (seen[k].nothing() || (seen[k].begin == 0 && seen[k].end == kSpan));
  if (whole) {
#pragma unroll
    for (int p = 0; p < kTeamPages; ++p)
#pragma unroll
      for (int k = 0; k < kOwn; ++k) sums[k] = __fadd_rn(sums[k], shared.products[team][p][q + k * kTeams][i]);
    return;
  }
#pragma unroll 1
  for (int p = 0; p < kTeamPages; ++p) {
    const int page = span * kTeamPages + p, start = p * kPagePositions, end = start + kPagePositions;
    if (reads_packed(call.kv, page, tile.sequence.position)) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k)
        if (max(seen[k].begin, start) < min(seen[k].end, end))
          sums[k] = __fadd_rn(sums[k], shared.products[team][p][q + k * kTeams][i]);
      continue;
    }
    int low = end, high = start;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (max(seen[k].begin, start) >= min(seen[k].end, end)) continue;
      low = min(low, max(seen[k].begin, start));
      high = max(high, min(seen[k].end, end));
    }
    if (low >= high) continue;
    const uint16_t* const values = page_rows(call.attend, tile, page, 1) + i;
#pragma unroll 16
    for (int t = low; t < high; ++t) {
      const float v = f16_value(values[(t - start) * kHead]);
#pragma unroll
      for (int k = 0; k < kOwn; ++k)  // 0 * infinity would be NaN
        if (seen[k].has(t)) sums[k] = __fmaf_rn(shared.weights[team][q + k * kTeams][t], v, sums[k]);
    }
  }
}

template <int kKeys, int kValues, int kTeams>
__global__ void __launch_bounds__(kTeams* kTeamThreads, kTeams == 1 ? 4 : 1)
    attend_packed_of_128(const __grid_constant__ AttendPacked call) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  wait_for_predecessor();
  auto& shared = *reinterpret_cast<Shared128<kTeams>*>(bytes);
  const AttendPages& attend = call.attend;
  const PagedTile tile = packed_tile(attend);
  const int thread = static_cast<int>(threadIdx.x), team = thread / kTeamThreads, warp = thread % kTeamThreads / 32;
  const bool apart = attend.results != nullptr;
  const int part = static_cast<int>(blockIdx.z);
  if (apart && part >= tile.spans) return;
  const int first = tile.first_span + part, last = apart ? first + 1 : first + tile.spans;
  RawCodes<kKeys, 4, kHead / kStep> keys;
  Values128<kValues> values;
  Page128 page = page_128(call, tile, first + team, warp);
  fetch_side(page, call.kv.sides, shared.sides[team][0][warp]);
  if (page.packed) keys.fetch(page.codes, kHead / kStep);
  for (int at = thread; at < kTileQueries * kHead; at += kTeams * kTeamThreads)
    shared.queries[at / kHead][at % kHead] =
        at / kHead < tile.count ? attend.q[tile.offset(attend, at / kHead) + at % kHead] : 0.0f;
  if (thread < kTileQueries) shared.positions[thread] = thread < tile.count ? tile.position(thread) : -1;
  constexpr int kOwn = kTileQueries / kTeams;
  const int own_query = thread / kHead, element = thread % kHead;  // and queries own_query + kTeams, ..
  float all[kOwn] = {};
  __syncthreads();
  uint16_t* const x = shared.x[team][warp];
  float2* const by = shared.by[team][warp];
  int parity = 0;
  for (int round = first; round < last; round += kTeams, parity ^= 1) {
    const int span = round + team;  // beyond the last: nothing of it is there
    const uint8_t* const side = shared.sides[team][parity][warp];
    Page128 next = {};
    wait_for_all_copies();
    sync_warp();
    if (kTeams > 1 && round + kTeams < last) {
      next = page_128(call, tile, span + kTeams, warp);
      fetch_side(next, call.kv.sides, shared.sides[team][parity ^ 1][warp]);
    }
    if (page.packed) {
      values.fetch(page.codes + call.kv.key_codes);
      score_128<kKeys>(shared.queries, side, keys, attend.scale, x, by, shared.weights[team], page.first);
      if (next.packed) keys.fetch(next.codes, kHead / kStep);
    } else {
      if (page.there)
        score_f16_128(call, tile, span * kTeamPages + warp, shared.queries, shared.weights[team], page.first);
      if (next.packed) keys.fetch(next.codes, kHead / kStep);
    }
    exponentials_128<kTeams>(call, span, team, page.there, page.first, shared);
    if (page.packed)
      values.weigh(side + 8 + 2 * kHead, shared.weights[team], page.first, x, by, shared.products[team][warp]);
    __syncthreads();
    if (!apart) {
      join_128<kTeams>(call, round, min(kTeams, last - round), shared);
      __syncthreads();
    }
#pragma unroll 1
    for (int s = 0; s < kTeams && round + s < last; ++s) {
      float sums[kOwn];
      sum_of_span_128<kTeams>(call, tile, round + s, s, own_query, element, shared, sums);
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const int q = own_query + k * kTeams;
        if (apart) {
          if (q >= tile.count) continue;
          float* const to = result_of(attend, part, q);
          to[2 + element] = sums[k];
          if (element == 0) to[0] = shared.most[0][q], to[1] = shared.total[0][q];
          continue;
        }
        const Joining join = shared.joining[s][q];
        if (join.seen == 1) all[k] = sums[k];
        if (join.seen == 2) all[k] = __fmaf_rn(sums[k], join.by.here, __fmul_rn(all[k], join.by.before));
      }
    }
    __syncthreads();
    page = next;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int q = own_query + k * kTeams;
    if (apart || q >= tile.count) continue;
    attend.out[tile.offset(attend, q) + element] = __fmul_rn(all[k], __fdiv_rn(1.0f, shared.running[q].total));
  }
}

template <int kKeys, int kValues, int kTeams>
cudaError_t launch_128(const AttendPacked& call, const Device& device) {
  const AttendPages& a = call.attend;
  auto* const kernel = &attend_packed_of_128<kKeys, kValues, kTeams>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  a.results != nullptr ? static_cast<unsigned>(a.spans) : 1u);
  return launch(kernel, grid, dim3(kTeams * kTeamThreads), sizeof(Shared128<kTeams>),
                static_cast<cudaStream_t>(a.stream), device.bulk_copies, call);
}

template <int kKeys, int kValues>
cudaError_t launch_128(const AttendPacked& call, const Device& device) {
  const bool many =
      call.attend.results == nullptr && static_cast<int64_t>(sizeof(Shared128<kManyTeams>)) <= device.shared_bytes;
  return many ? launch_128<kKeys, kValues, kManyTeams>(call, device) : launch_128<kKeys, kValues, 1>(call, device);
}

}  // namespace

bool block::takes_packed_128(const AttendPacked& call) {
  const int keys = call.kv.key_bits, values = call.kv.value_bits;
  return call.attend.kv.head_dim == kHead && call.attend.tile_queries == kTileQueries && call.teams == 0 &&
         call.kv.sides <= kSideBytes && keys <= 4 && values <= keys;
}

cudaError_t block::attend_packed_128(const AttendPacked& call, const Device& device) {
  if (call.kv.key_bits == 2) return launch_128<2, 2>(call, device);
  return call.kv.value_bits == 2 ? launch_128<4, 2>(call, device) : launch_128<4, 4>(call, device);
}

}  // namespace lowbit::cuda
