// Attention on pages of which some are packed. A team of four warps has a span, a warp each of its pages; a thread
// block has some queries of one kv head and takes as many spans at a time as it has teams. The order of sums is that of
// docs/kv-cache.md.

#include <algorithm>

#include "kernels/cuda/block/attention_packed.cuh"
#include "kernels/cuda/block/packed_product.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/status.h"
#include "kernels/cuda_packed_api.h"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

constexpr int kMostTeams = 4, kMostQueries = 8;

/// Rows that x of keys has room for.
constexpr LOWBIT_HD int key_rows(int64_t d) { return d <= 128 ? 128 : 256; }

/// Shared memory of a thread block, in floats from its beginning.
struct PackedLayout {
  int d, queries, pitch;
  constexpr LOWBIT_HD PackedLayout(int64_t head_dim, int tile_queries)
      : d(static_cast<int>(head_dim)), queries(tile_queries), pitch(x_pitch(key_rows(head_dim))) {}
  constexpr LOWBIT_HD int team_floats() const {
    return queries * kSpan + kTeamPages * queries * d + kTeamPages * (queries * pitch / 2 + 2 * queries) +
           (kTeamPages + 4) * queries;
  }
  /// Queries, what is merged of them, and Running.
  constexpr LOWBIT_HD int common_floats() const { return 2 * queries * d + 2 * queries; }
  constexpr LOWBIT_HD int floats(int teams) const { return common_floats() + teams * team_floats(); }
};

/// Shared memory of a team: weights [query][kSpan], products [page][query][d], x and its factors for each warp, and for
/// each query the largest score of each page, of the span, the sum, and how the span is merged.
struct TeamShared {
  float *weights, *products;
  SharedX x;  // of the thread's warp
  float *page_most, *most, *total, *merging;
};
__device__ __forceinline__ TeamShared team_shared(float* base, const PackedLayout& p, int team, int warp) {
  TeamShared s;
  s.weights = base + p.common_floats() + team * p.team_floats();
  s.products = s.weights + p.queries * kSpan;
  float* const x = s.products + kTeamPages * p.queries * p.d;
  s.x = {reinterpret_cast<uint16_t*>(x + warp * (p.queries * p.pitch / 2)),
         reinterpret_cast<float2*>(x + kTeamPages * (p.queries * p.pitch / 2) + warp * 2 * p.queries), p.pitch,
         p.queries};
  s.page_most = x + kTeamPages * (p.queries * p.pitch / 2 + 2 * p.queries);
  s.most = s.page_most + kTeamPages * p.queries;
  s.total = s.most + p.queries;
  s.merging = s.total + p.queries;
  return s;
}

/// Scores of a page in the order of f16 pages: a lane has two positions. key(element, position).
template <class Key>
__device__ __forceinline__ void score_in_order(const AttendPacked& call, const PagedTile& tile, const PageOfWarp& page,
                                               const Key& key, const float* queries, float* weights) {
  const int d = static_cast<int>(call.kv.pages.head_dim), lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kMostQueries][2] = {};
#pragma unroll 8
  for (int i = 0; i < d; ++i) {
    const float a = key(i, lane), b = key(i, lane + 32);
#pragma unroll
    for (int q = 0; q < kMostQueries; ++q) {
      if (q >= tile.count) break;
      const float x = queries[q * d + i];
      sums[q][0] = __fmaf_rn(x, a, sums[q][0]);
      sums[q][1] = __fmaf_rn(x, b, sums[q][1]);
    }
  }
#pragma unroll
  for (int q = 0; q < kMostQueries; ++q)
#pragma unroll
    for (int i = 0; i < 2 && q < tile.count; ++i)
      weights[q * kSpan + page.first + lane + 32 * i] = __fmul_rn(call.attend.scale, sums[q][i]);
}

__device__ __forceinline__ void score_packed(const AttendPacked& call, const PagedTile& tile, const PageOfWarp& page,
                                             const float* queries, const TeamShared& shared) {
  const PackedPages& form = pages_of(call.kv, page.form);
  const int64_t d = call.kv.pages.head_dim;
  const auto [codes, side] = packed_head_of(call.kv, form, tile, page.page);
  const PackedShape shape = {form.key_bits, d, kKvPage};
  const auto x = [&](int q, int row) { return queries[q * static_cast<int>(d) + row]; };
  const auto give = [&](int q, int column, float y) {
    shared.weights[q * kSpan + page.first + column] = __fmul_rn(call.attend.scale, y);
  };
  if (d <= 128) {
    packed_product<128, 4>(shape, codes, side, tile.count, shared.x, x, give);
  } else {
    packed_product<256, 4>(shape, codes, side, tile.count, shared.x, x, give);
  }
}

/// Scores of a page of any form.
__device__ __forceinline__ void score_page(const AttendPacked& call, const PagedTile& tile, const PageOfWarp& page,
                                           const float* queries, const TeamShared& shared) {
  if (multiplies_codes(call.kv, page.form)) return score_packed(call, tile, page, queries, shared);
  if (page.form == PageForm::kF16) {
    const uint16_t* const keys = page_rows(call.attend, tile, page.page, 0);
    const auto key = [&](int i, int t) { return f16_value(keys[i * kPagePositions + t]); };
    return score_in_order(call, tile, page, key, queries, shared.weights);
  }
  const Fp8Rows keys = fp8_head_of(call.kv, tile, page.page).keys;
  const auto key = [&](int i, int t) { return keys.value(i, t); };
  score_in_order(call, tile, page, key, queries, shared.weights);
}

/// Exponentials of the span's scores in shared.weights, zeros where a query does not see; its largest scores and sums.
__device__ __forceinline__ void exponentials_of_team(const AttendPacked& call, const PagedTile& tile, int span,
                                                     int team, const PageOfWarp& page, const TeamShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kTeamThreads / 32;
  for (int q = 0; q < tile.count; ++q) {
    const Seen seen = seen_of(tile.position(q), span, call.attend.window);
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = page.first + lane + 32 * i;
      if (!page.there || !seen.has(at)) continue;
      const float s = shared.weights[q * kSpan + at];
      most = s > most ? s : most;  // a NaN is never the largest
    }
#pragma unroll
    for (int w = 16; w > 0; w /= 2) {
      const float other = __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(most), w, 32));
      most = other > most ? other : most;
    }
    if (lane == 0) shared.page_most[q * kTeamPages + warp] = most;
  }
  sync_team(team);
  for (int q = 0; q < tile.count; ++q) {
    const Seen seen = seen_of(tile.position(q), span, call.attend.window);
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTeamPages; ++i) {
      const float s = shared.page_most[q * kTeamPages + i];
      most = s > most ? s : most;
    }
    if (lane == 0 && warp == 0) shared.most[q] = most;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = page.first + lane + 32 * i;
      float& weight = shared.weights[q * kSpan + at];
      weight = seen.has(at) ? exp_f32(__fsub_rn(weight, shift_of(most))) : 0.0f;
    }
  }
  sync_team(team);
  const int half = static_cast<int>(threadIdx.x) % kTeamThreads / kLanes, of_half = lane % kLanes;
  float sum = 0;
  const float* const from = shared.weights + min(half, tile.count - 1) * kSpan + of_half;
#pragma unroll
  for (int at = 0; at < kSpan; at += kLanes) sum = __fadd_rn(sum, from[at]);
  sum = reduce_lanes(sum);
  if (of_half == 0 && half < tile.count) shared.total[half] = sum;
}

__device__ __forceinline__ void weigh_packed(const AttendPacked& call, const PagedTile& tile, const PageOfWarp& page,
                                             int warp, const TeamShared& shared) {
  const PackedPages& form = pages_of(call.kv, page.form);
  const int64_t d = call.kv.pages.head_dim, width = value_columns(form.value_bits);
  const PackedHeadOf head = packed_head_of(call.kv, form, tile, page.page);
  const uint8_t *codes = head.codes + form.key_codes, *side = head.side + form.key_side;
  const auto x = [&](int q, int row) { return shared.weights[q * kSpan + page.first + row]; };
  float* const to = shared.products + warp * call.attend.tile_queries * static_cast<int>(d);
  for (int64_t first = 0; first < d; first += width) {
    const PackedShape shape = {form.value_bits, kKvPage, width < d - first ? width : d - first};
    const auto give = [&](int q, int column, float y) { to[q * static_cast<int>(d) + first + column] = y; };
    packed_product<kPagePositions, 2>(shape, codes, side, tile.count, shared.x, x, give);
    codes += shape.code_bytes();
    side += shape.side_bytes();
  }
}

/// Weighted values of one element over a span: pages in ascending order.
__device__ __forceinline__ float sum_of_span(const AttendPacked& call, const PagedTile& tile, int span, int q, int i,
                                             const TeamShared& shared) {
  const int d = static_cast<int>(call.kv.pages.head_dim);
  const Seen seen = seen_of(tile.position(q), span, call.attend.window);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p) {
    const int from = max(seen.begin, p * kPagePositions), to = min(seen.end, (p + 1) * kPagePositions);
    if (from >= to) continue;
    const int page = span * kTeamPages + p;
    const PageForm form = form_of(call.kv, tile, page);
    const float* const weights = shared.weights + q * kSpan;
    const auto add = [&](const auto& value) {
#pragma unroll 16
      for (int t = from; t < to; ++t) sum = __fmaf_rn(weights[t], value(t - p * kPagePositions), sum);
    };
    if (multiplies_codes(call.kv, form)) {
      sum = __fadd_rn(sum, shared.products[(p * call.attend.tile_queries + q) * d + i]);
    } else if (form == PageForm::kF16) {
      const uint16_t* const values = page_rows(call.attend, tile, page, 1) + i;
      add([&](int t) { return f16_value(values[t * d]); });
    } else {
      const Fp8Rows values = fp8_head_of(call.kv, tile, page).values;
      add([&](int t) { return values.value(t, i); });
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kMostTeams* kTeamThreads)
    attend_packed_tiles(const __grid_constant__ AttendPacked call, int teams) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  let_successor_start();
  wait_for_predecessor();
  const AttendPages& attend = call.attend;
  const PagedTile tile = packed_tile(attend);
  const PackedLayout layout(attend.kv.head_dim, attend.tile_queries);
  const int thread = static_cast<int>(threadIdx.x), team = thread / kTeamThreads, warp = thread % kTeamThreads / 32;
  const int threads = teams * kTeamThreads, d = layout.d;
  const bool apart = attend.results != nullptr;
  const int part = static_cast<int>(blockIdx.z);
  if (apart && part >= tile.spans) return;
  auto* const base = reinterpret_cast<float*>(bytes);
  float *const queries = base, *const all = base + attend.tile_queries * d;
  auto* const running = reinterpret_cast<Running*>(all + attend.tile_queries * d);
  const TeamShared shared = team_shared(base, layout, team, warp);
  for (int at = thread; at < attend.tile_queries * d; at += threads)
    queries[at] = at / d < tile.count ? attend.q[tile.offset(attend, at / d) + at % d] : 0.0f;
  __syncthreads();
  const int first = tile.first_span + part, last = apart ? first + 1 : first + tile.spans;
  for (int round = first; round < last; round += teams) {
    const int span = round + team;  // beyond the last: nothing of it is there
    const PageOfWarp page = page_of(call, tile, span, warp);
    if (page.there) score_page(call, tile, page, queries, shared);
    sync_warp();
    exponentials_of_team(call, tile, span, team, page, shared);
    if (page.there && multiplies_codes(call.kv, page.form)) weigh_packed(call, tile, page, warp, shared);
    __syncthreads();
    if (thread < tile.count && !apart) {
      for (int i = 0; i < teams && round + i < last; ++i) {
        const TeamShared of = team_shared(base, layout, i, 0);
        const Seen seen = seen_of(tile.position(thread), round + i, attend.window);
        const Merging by = merge(seen, of.most[thread], of.total[thread], running[thread]);
        of.merging[2 * thread] = by.before;
        of.merging[2 * thread + 1] = by.here;
      }
    }
    __syncthreads();
    for (int at = thread; at < tile.count * d; at += threads) {
      const int q = at / d, i = at % d;
      if (apart) {
        float* const to = result_of(attend, part, q);
        to[2 + i] = sum_of_span(call, tile, round, q, i, shared);
        if (i == 0) to[0] = shared.most[q], to[1] = shared.total[q];
        continue;
      }
      float o = all[at];
      for (int s = 0; s < teams && round + s < last; ++s) {
        const Seen seen = seen_of(tile.position(q), round + s, attend.window);
        if (seen.nothing()) continue;
        const TeamShared of = team_shared(base, layout, s, 0);
        const Merging by = {of.merging[2 * q], of.merging[2 * q + 1]};
        o = merged(seen, by, sum_of_span(call, tile, round + s, q, i, of), o);
      }
      all[at] = o;
    }
    __syncthreads();
  }
  for (int at = thread; at < tile.count * d && !apart; at += threads)
    attend.out[tile.offset(attend, at / d) + at % d] = __fmul_rn(all[at], __fdiv_rn(1.0f, running[at / d].total));
}

__global__ void __launch_bounds__(kPagedThreads) merge_packed_tiles(const __grid_constant__ AttendPages call) {
  __shared__ SpanFactors factors[kPagedThreads];
  let_successor_start();
  wait_for_predecessor();
  const PagedTile tile = packed_tile(call);
  const MergePart part = merge_part(call);
  if (part.query < tile.count)
    merge_elements(call, tile, static_cast<int>(blockIdx.x), part.query, part.begin, factors + threadIdx.x / 32 * 32);
}

cudaError_t launch_packed(const AttendPacked& call, const Device& device) {
  const AttendPages& a = call.attend;
  auto* const kernel = &attend_packed_tiles;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const PackedLayout layout(a.kv.head_dim, a.tile_queries);
  const bool apart = a.results != nullptr;
  int teams = apart || a.spans < 2 ? 1 : a.spans < kMostTeams ? 2 : kMostTeams;
  if (call.teams > 0) teams = call.teams;
  while (teams > 1 && layout.floats(teams) * int64_t{sizeof(float)} > device.shared_bytes) teams /= 2;
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  apart ? static_cast<unsigned>(a.spans) : 1u);
  return launch(kernel, grid, dim3(static_cast<unsigned>(teams * kTeamThreads)),
                static_cast<size_t>(layout.floats(teams)) * sizeof(float), static_cast<cudaStream_t>(a.stream),
                device.bulk_copies, call, teams);
}

/// Tiles of one launch, and their results together where spans are apart.
cudaError_t attend_at_once(const AttendPacked& call, const Device& device) {
  const AttendPages& a = call.attend;
  auto e = takes_packed_spans(call, device) ? attend_packed_spans(call, device) : launch_packed(call, device);
  if (e == cudaSuccess && a.results != nullptr && !joins_packed_spans(call, device))
    e = launch(merge_packed_tiles, merge_grid(a), dim3(kPagedThreads), 0, static_cast<cudaStream_t>(a.stream),
               device.bulk_copies, a);
  return e;
}

/// Tiles whose results the room holds, such as many rows have, of spans that fill the device; 0: all at once, together.
int64_t tiles_of_turn(const AttendPacked& call, const Device& device) {
  const AttendPages& a = call.attend;
  if (a.results != nullptr || call.room == nullptr || a.spans < 1) return 0;
  AttendPacked apart = call;
  apart.attend.results = call.room;
  const int64_t one = attend_results_floats(1, a.tile_queries, a.spans, a.kv.kv_heads, a.kv.head_dim);
  const int64_t tiles = std::min(call.room_floats / one, a.tile_count);
  return tiles * a.kv.kv_heads * a.spans >= device.processors && takes_packed_spans(apart, device) ? tiles : 0;
}

}  // namespace

Status attend_packed(const AttendPacked& call) {
  const AttendPages& a = call.attend;
  if (a.tile_count == 0) return {};
  Device device{};
  auto e = current_device(&device);
  if (e != cudaSuccess) return check_cuda(e, "attention");
  if (takes_codes(call, device)) return check_cuda(attend_codes(call, device), "attention");
  const int64_t turn = tiles_of_turn(call, device);
  if (turn == 0) return check_cuda(attend_at_once(call, device), "attention");
  AttendPacked part = call;
  part.attend.results = call.room;
  part.arrived = nullptr;
  for (int64_t first = 0; first < a.tile_count && e == cudaSuccess; first += turn) {
    part.attend.tiles = a.tiles + first;
    part.attend.tile_count = std::min(turn, a.tile_count - first);
    e = attend_at_once(part, device);
  }
  return check_cuda(e, "attention");
}

}  // namespace lowbit::cuda
