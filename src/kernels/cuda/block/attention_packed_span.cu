// attention_packed.cu for heads of 64 and 128 elements whose codes have 2, 4 or 8 bits, with all sizes known. A span
// whose pages are packed and seen whole is one warp's, which meets others only where spans join; any other span is a
// thread block's, with its f16 pages in shared memory.

#include "kernels/cuda/block/packed_any_span.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// Whether a thread block may take all spans of a tile, one after the other. On an H100 and an H200, not on fibers, the
/// second span that is not whole saw the f16 pages of the first one, and contexts of one span were wrong in a program:
/// until that is understood the general kernel does such tiles (docs/adr/0185-packed-spans-apart.md).
constexpr bool kTakesSpansTogether = false;

/// How a launch with results for each span is divided: blockIdx.z below `blocks` has one of the spans that are not
/// whole, the others `each` whole ones.
struct SpanPlan {
  int blocks = 0, each = 0;
  bool no_whole = false;  // all spans are thread blocks'
  bool joins = false;     // the last block of a tile puts its spans together
};

/// A whole span, by one warp: weighted values at shared.out(), the largest scores and sums beside them. `next`: the
/// warp's next span, whose keys' sides are asked for, or -1.
template <class F>
__device__ __forceinline__ void attend_whole_span(const AttendPacked& call, const PagedTile& tile, int next, int parity,
                                                  const float (&queries)[F::kQueries][F::kHead],
                                                  WarpShared<F>& shared) {
  using KeyTile = typename F::KeyTile;
  using ValueTile = typename F::ValueTile;
  constexpr int kQueries = F::kQueries, kParts = KeyTile::kParts;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / kGroupLanes, j = lane % kGroupLanes;
  const uint8_t* const* const pages = shared.pages[parity];
  copy_sides(key_side(call, tile, pages[group]) + F::kKeySide, F::kValueSide,
             shared.value_sides + group * F::kValuePitch, j, kGroupLanes);
  KeyTile keys;
  keys.fetch(true, key_codes(call, tile, pages[0]), 0);
  const uint8_t* const next_page =
      load_pointer_once(packed_table(call.kv, call.kv.packed, tile) + max(next, 1) * kTeamPages + group - 1);
  {
    RowScales<F::kPairs> rows;
    rows.load(shared.key_sides + group * F::kKeyPitch, j);
    const auto to = [&](int q) { return shared.x + (group * kQueries + q) * F::kKeyX + j * F::kPairs; };
    if constexpr (F::kPairs == 4) {
#pragma unroll 1
      for (int q = 0; q < kQueries; q += 4)
        prepare_four<F::kPairs>(
            rows, queries[q] + 2 * j, F::kHead, [&](int i) { return to(q + i); }, shared.by + group * kQueries + q);
    } else {  // four at once would take more registers than there are
#pragma unroll 1
      for (int q = 0; q < kQueries; ++q)
        prepare_one<F::kPairs>(rows, queries[q] + 2 * j, to(q), shared.by + group * kQueries + q);
    }
  }
  if (j == 0) shared.pages[parity ^ 1][group] = next_page;
  sync_warp();
  if (next >= 0)
    copy_sides(key_side(call, tile, shared.pages[parity ^ 1][group]), F::kKeySide,
               shared.key_sides + group * F::kKeyPitch, j, kGroupLanes);
#pragma unroll 1
  for (int at = 0; at < kTeamPages * kParts; ++at) {
    const int page = at / kParts, part = at % kParts, behind = at + 1;
    const bool more = behind < kTeamPages * kParts;
    multiply_keys<kQueries, F::kKeyX>(keys, more, key_codes(call, tile, pages[more ? behind / kParts : 0]),
                                      behind % kParts, shared.x + page * kQueries * F::kKeyX,
                                      shared.by + page * kQueries, call.attend.scale,
                                      shared.weights + weights_at(page) + 32 * part);
  }
  ValueTile values[F::kSets][ValueTile::kParts];
  const auto fetch = [&](auto& tiles, int block, int page) {
#pragma unroll
    for (int part = 0; part < ValueTile::kParts; ++part)
      tiles[part].fetch(block < F::kBlocks,
                        key_codes(call, tile, pages[page]) + call.kv.packed.key_codes + block * F::kBlockCodes, part);
  };
#pragma unroll
  for (int set = 0; set < F::kSets; ++set) fetch(values[set], 0, set);
  sync_warp();
#pragma unroll 1
  for (int q = 0; q < kQueries; ++q) {
    const float most = weigh_scores<false>(shared.weights + q * kWeightPitch, {});
    if (lane == 0) shared.most[q] = most;
  }
  wait_for_all_copies();
  sync_warp();
#pragma unroll
  for (int q = 0; q < kQueries; q += 4) {
    const float total = sum_of_weights(shared.weights + (q + group) * kWeightPitch);
    if (j == 0) shared.total[q + group] = total;
  }
  const int g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int block = 0; block < F::kBlocks; ++block) {
    {
      RowScales<kPagePositions / kLanes> rows;
      rows.load(shared.value_sides + group * F::kValuePitch + block * F::kBlockSide, j);
      constexpr int kPairs = kPagePositions / kLanes;
#pragma unroll 1
      for (int q = 0; q < kQueries; q += 4)
        prepare_four<kPairs>(
            rows, shared.weights + q * kWeightPitch + weights_at(group) + 2 * j, kWeightPitch,
            [&](int i) { return shared.x + (group * kQueries + q + i) * kValueX + value_lane(i, j) * kPairs; },
            shared.by + group * kQueries + q);
    }
    sync_warp();
    float sums[ValueTile::kParts][ValueTile::kTiles][2][kQueries / 4] = {};
#pragma unroll 1
    for (int first = 0; first < kTeamPages; first += F::kSets)
#pragma unroll
      for (int set = 0; set < F::kSets; ++set) {
        const int page = first + set, behind = page + F::kSets;
#pragma unroll
        for (int part = 0; part < ValueTile::kParts; ++part)
          multiply_values<kQueries>(values[set][part], shared.x + page * kQueries * kValueX,
                                    shared.by + page * kQueries, sums[part]);
        fetch(values[set], block + behind / kTeamPages, behind % kTeamPages);
      }
#pragma unroll
    for (int part = 0; part < ValueTile::kParts; ++part)
#pragma unroll
      for (int n = 0; n < ValueTile::kTiles; ++n)
#pragma unroll
        for (int i = 0; i < kQueries / 4; ++i)
          *reinterpret_cast<float2*>(shared.out() + (kQueries == 4 ? t : 2 * t + i) * F::kOutPitch + block * F::kWidth +
                                     32 * part + 16 * n + 2 * g) = {sums[part][n][0][i], sums[part][n][1][i]};
    sync_warp();
  }
}

/// The first span of a warp: pages and sides of its keys.
template <class F>
__device__ __forceinline__ void begin_spans(const AttendPacked& call, const PagedTile& tile, int span, int parity,
                                            WarpShared<F>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / kGroupLanes, j = lane % kGroupLanes;
  const uint8_t* const page = packed_page(call.kv, tile, span * kTeamPages + group);
  if (j == 0) shared.pages[parity][group] = page;
  copy_sides(key_side(call, tile, page), F::kKeySide, shared.key_sides + group * F::kKeyPitch, j, kGroupLanes);
  wait_for_all_copies();
  sync_warp();
}

/// How a span joins those before, and Running behind it: a lane for each query.
template <class F>
__device__ __forceinline__ void join_span(const AttendPacked& call, int span, const float* most, const float* total,
                                          SpanShared<F>& shared) {
  const int q = static_cast<int>(threadIdx.x) % 32;
  if (q >= F::kQueries) return;
  const Seen seen = seen_of(shared.positions[q], span, call.attend.window);
  const Merging by = merge(seen, most[q], total[q], shared.running[q]);
  shared.joining[q] = {by, seen.nothing() ? 0 : seen.is_first ? 1 : 2};
}

/// Joins all spans of a round at once: a warp for each query, a lane for each span.
template <class F>
__device__ __forceinline__ void join_round(const AttendPacked& call, int first, int count, SpanShared<F>& shared) {
  const int q = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (q >= F::kQueries) return;
  const Seen seen = seen_of(shared.positions[q], first + lane, call.attend.window);
  const bool there = lane < count && !seen.nothing();
  const WarpShared<F>& of = shared.of_warp[min(lane, count - 1)];
  const float own = there ? of.most[q] : -INFINITY, total = of.total[q];
  const Running running = shared.running[q];
  float most = fmaxf(own, running.most);
#pragma unroll
  for (int w = 1; w < F::kWarps; w *= 2) most = fmaxf(most, __shfl_sync(0xffffffffu, most, max(lane - w, 0), 32));
  const float last = __shfl_sync(0xffffffffu, most, max(lane - 1, 0), 32), before = lane == 0 ? running.most : last;
  const Joining own_join = {{exp_f32(__fsub_rn(before, shift_of(most))), exp_f32(__fsub_rn(own, shift_of(most)))},
                            !there          ? 0
                            : seen.is_first ? 1
                                            : 2};
  shared.joins[q][lane] = own_join;
  shared.totals[q][lane] = total;
  sync_warp();
  float sum = running.total;
#pragma unroll 4
  for (int s = 0; s < count; ++s) sum = joined(shared.joins[q][s], shared.totals[q][s], sum);
  const float newest = __shfl_sync(0xffffffffu, most, count - 1, 32);
  if (lane == 0) shared.running[q] = {newest, sum};
}

/// Whole spans by a warp each, in rounds: [begin, end).
template <class F>
__device__ __forceinline__ void attend_rounds(const AttendPacked& call, const PagedTile& tile, int begin, int end,
                                              SpanShared<F>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  WarpShared<F>& own = shared.of_warp[warp];
  int parity = 0;
#pragma unroll 1
  for (int first = begin; first < end; first += F::kWarps, parity ^= 1) {
    const int count = min(F::kWarps, end - first), span = first + warp, next = span + F::kWarps;
    if (warp < count) {
      if (first == begin) begin_spans<F>(call, tile, span, parity, own);
      attend_whole_span<F>(call, tile, next < end ? next : -1, parity, shared.queries, own);
    }
    __syncthreads();
    join_round<F>(call, first, count, shared);
    __syncthreads();
    for (int at = thread; at < F::kQueries * F::kHead; at += F::kThreads) {
      const int q = at / F::kHead, i = at % F::kHead;
      float all = shared.all[q][i];
#pragma unroll 4
      for (int s = 0; s < count; ++s)
        all = joined(shared.joins[q][s], shared.of_warp[s].out()[q * F::kOutPitch + i], all);
      shared.all[q][i] = all;
    }
    __syncthreads();
  }
}

/// Puts the results of a tile's few spans together, in ascending order: a warp for each query works out how they join,
/// a lane for each span.
template <class F>
__device__ __forceinline__ void join_results(const AttendPages& attend, const PagedTile& tile, SpanShared<F>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  if (warp < tile.count) {
    const Seen seen = seen_of(shared.positions[warp], tile.first_span + lane, attend.window);
    const bool there = lane < tile.spans && !seen.nothing();
    const float* const from = result_of(attend, min(lane, tile.spans - 1), warp);
    const float own = there ? load_from_others(from) : -INFINITY;
    shared.totals[warp][lane] = load_from_others(from + 1);
    float most = own;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) most = fmaxf(most, __shfl_sync(0xffffffffu, most, max(lane - w, 0), 32));
    const float last = __shfl_sync(0xffffffffu, most, max(lane - 1, 0), 32), before = lane == 0 ? -INFINITY : last;
    shared.joins[warp][lane] = {{exp_f32(__fsub_rn(before, shift_of(most))), exp_f32(__fsub_rn(own, shift_of(most)))},
                                !there          ? 0
                                : seen.is_first ? 1
                                                : 2};
  }
  __syncthreads();
  for (int at = thread; at < tile.count * F::kHead; at += F::kThreads) {
    const int q = at / F::kHead, i = at % F::kHead;
    float all = 0, total = 0;
#pragma unroll 16
    for (int s = 0; s < tile.spans; ++s) {
      const float sum = load_from_others(result_of(attend, s, q) + 2 + i);
      all = joined(shared.joins[q][s], sum, all);
      total = joined(shared.joins[q][s], shared.totals[q][s], total);
    }
    attend.out[tile.offset(attend, q) + i] = __fmul_rn(all, __fdiv_rn(1.0f, total));
  }
}

/// A span that is not whole, with results of its own.
template <class F>
__device__ __forceinline__ void attend_any_apart(const AttendPacked& call, const PagedTile& tile, int span,
                                                 SpanShared<F>& shared) {
  float sums[F::kOwn][2];
  attend_any_span<F>(call, tile, span, shared, sums);
#pragma unroll
  for (int k = 0; k < 2 * F::kOwn; ++k) {
    const int at = static_cast<int>(threadIdx.x) + k / 2 * F::kThreads, q = at / F::kHead * 2 + k % 2,
              i = at % F::kHead;
    if (q >= tile.count) continue;
    float* const to = result_of(call.attend, span - tile.first_span, q);
    to[2 + i] = sums[k / 2][k % 2];
    if (i == 0) to[0] = shared.of_block.most[q], to[1] = shared.of_block.total[q];
  }
}

/// A whole span of a warp, with results of its own.
template <class F>
__device__ __forceinline__ void attend_whole_apart(const AttendPacked& call, const PagedTile& tile, int span,
                                                   WarpShared<F>& own, const SpanShared<F>& shared) {
  begin_spans<F>(call, tile, span, 0, own);
  attend_whole_span<F>(call, tile, -1, 0, shared.queries, own);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int q = 0; q < tile.count; ++q) {
    float* const to = result_of(call.attend, span - tile.first_span, q);
#pragma unroll
    for (int i = lane; i < F::kHead; i += 32) to[2 + i] = own.out()[q * F::kOutPitch + i];
    if (lane == 0) to[0] = own.most[q], to[1] = own.total[q];
  }
}

/// The thread block's spans, each with results of its own. The last block of a tile joins them, if it is asked to.
template <class F>
__device__ __forceinline__ void attend_apart(const AttendPacked& call, const PagedTile& tile, const SpanPlan& plan,
                                             WholeSpans whole, SpanShared<F>& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, z = static_cast<int>(blockIdx.z);
  const int end = tile.first_span + tile.spans;
  if (plan.no_whole) whole = {tile.first_span, tile.first_span};
  const int before = min(whole.begin, end) - tile.first_span, behind = max(end - whole.end, 0);
  const int blocks_of_whole = (whole.end - whole.begin + plan.each - 1) / plan.each;
  if (z < plan.blocks ? z >= before + behind : z - plan.blocks >= blocks_of_whole) return;
  if (z < plan.blocks) {
    attend_any_apart<F>(call, tile, z < before ? tile.first_span + z : whole.end + z - before, shared);
  } else {
    const int span = whole.begin + (z - plan.blocks) * plan.each + warp;
    if (warp < plan.each && span < whole.end) attend_whole_apart<F>(call, tile, span, shared.of_warp[warp], shared);
  }
  if (!plan.joins) return;
  __syncthreads();
  if (threadIdx.x == 0)
    shared.is_last = arrives_last(call.arrived + blockIdx.x * call.kv.pages.kv_heads + blockIdx.y,
                                  static_cast<uint32_t>(before + behind + blocks_of_whole));
  __syncthreads();
  if (shared.is_last) join_results<F>(call.attend, tile, shared);
}

/// All spans of the tile.
template <class F>
__device__ __forceinline__ void attend_together(const AttendPacked& call, const PagedTile& tile, WholeSpans whole,
                                                SpanShared<F>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, end = tile.first_span + tile.spans;
#pragma unroll 1
  for (int span = tile.first_span; span < end;) {
    if (span == whole.begin && span < whole.end) {
      attend_rounds<F>(call, tile, span, whole.end, shared);
      span = whole.end;
      continue;
    }
    float sums[F::kOwn][2];
    attend_any_span<F>(call, tile, span, shared, sums);
    if (warp == 0) join_span<F>(call, span, shared.of_block.most, shared.of_block.total, shared);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2 * F::kOwn; ++k) {
      const int at = thread + k / 2 * F::kThreads, q = at / F::kHead * 2 + k % 2;
      if (q >= F::kQueries) continue;
      float& all = shared.all[q][at % F::kHead];
      all = joined(shared.joining[q], sums[k / 2][k % 2], all);
    }
    ++span;
  }
  __syncthreads();
  for (int at = thread; at < tile.count * F::kHead; at += F::kThreads) {
    const int q = at / F::kHead, i = at % F::kHead;
    call.attend.out[tile.offset(call.attend, q) + i] =
        __fmul_rn(shared.all[q][i], __fdiv_rn(1.0f, shared.running[q].total));
  }
}

template <class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    attend_spans(const __grid_constant__ AttendPacked call, SpanPlan plan) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  auto& shared = *reinterpret_cast<SpanShared<F>*>(bytes);
  const AttendPages& attend = call.attend;
  const PagedTile tile = packed_tile(attend);
  wait_for_predecessor();
  const int thread = static_cast<int>(threadIdx.x);
  const bool apart = attend.results != nullptr;
  for (int at = thread; at < F::kQueries * F::kHead; at += F::kThreads) {
    const int q = at / F::kHead, i = at % F::kHead;
    shared.queries[q][i] = q < tile.count ? attend.q[tile.offset(attend, q) + i] : 0.0f;
    shared.all[q][i] = 0;
  }
  if (thread < F::kQueries) {
    shared.positions[thread] = thread < tile.count ? tile.position(thread) : -1;
    shared.running[thread] = {-INFINITY, 0};
  }
  __syncthreads();
  const WholeSpans whole = whole_spans(call, tile);
  if (apart) {
    attend_apart<F>(call, tile, plan, whole, shared);
  } else {
    attend_together<F>(call, tile, whole, shared);
  }
}

template <class F>
cudaError_t launch_spans(const AttendPacked& call, const Device& device) {
  const AttendPages& a = call.attend;
  auto* const kernel = &attend_spans<F>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  SpanPlan plan;
  int64_t depth = 1;
  if (a.results != nullptr) {
    // Beside whole spans: the first, one that a window cuts, and those of pages that are not packed yet.
    const int64_t others = std::min(a.spans, 2 + (call.kv.packed.behind + 7) / kTeamPages);
    const int64_t total = a.tile_count * a.kv.kv_heads * a.spans;
    plan.no_whole = total <= device.processors;
    plan.blocks = static_cast<int>(plan.no_whole ? a.spans : others);
    plan.each =
        static_cast<int>(std::clamp<int64_t>((total + device.processors - 1) / device.processors, 1, F::kWarps));
    plan.joins = joins_packed_spans(call, device);
    depth = plan.blocks + (plan.no_whole ? 0 : (a.spans + plan.each - 1) / plan.each);
  }
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  static_cast<unsigned>(depth));
  return launch(kernel, grid, dim3(F::kThreads), sizeof(SpanShared<F>), static_cast<cudaStream_t>(a.stream),
                device.bulk_copies, call, plan);
}

template <int kHead>
cudaError_t launch_bits(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  if (keys == 8) return launch_spans<PackedForm<kHead, 4, 8, 8>>(call, device);
  if (keys == 2) return launch_spans<PackedForm<kHead, 4, 2, 2>>(call, device);
  return values == 2 ? launch_spans<PackedForm<kHead, 4, 4, 2>>(call, device)
                     : launch_spans<PackedForm<kHead, 4, 4, 4>>(call, device);
}

}  // namespace

bool block::takes_packed_spans(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.packed.key_bits, values = call.kv.packed.value_bits;
  const int64_t head = call.attend.kv.head_dim;
  constexpr auto kMostShared = static_cast<int64_t>(sizeof(SpanShared<PackedForm<128, 4, 2, 2>>));
  if (call.kv.packed.fp8 || call.kv.old.tables != nullptr || keys == 3) return false;
  if (!kTakesSpansTogether && call.attend.results == nullptr) return false;
  return (head == 64 || head == 128) && call.attend.tile_queries == 4 && call.teams == 0 &&
         (keys == values || (keys == 4 && values == 2)) && device.shared_bytes >= kMostShared;
}

bool block::joins_packed_spans(const AttendPacked& call, const Device& device) {
  return call.arrived != nullptr && call.attend.spans <= kMostJoined && takes_packed_spans(call, device);
}

cudaError_t block::attend_packed_spans(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_bits<64>(call, device) : launch_bits<128>(call, device);
}

}  // namespace lowbit::cuda
