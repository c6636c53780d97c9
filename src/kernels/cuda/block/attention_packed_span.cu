// attention_packed.cu for heads of 64 and 128 elements whose codes have 2, 4 or 8 bits, with all sizes known. A span
// whose pages are packed and seen whole is one warp's, which meets others only where spans join; any other span is a
// thread block's, with its f16 pages in shared memory.

#include "kernels/cuda/block/packed_span.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {
namespace {

using namespace block;  // NOLINT

/// Bytes of what stands beside codes, apart enough that lanes of different pages read different banks.
constexpr int side_pitch(int bytes) { return bytes % 16 == 0 ? bytes : bytes + 8; }

template <int kHeadDim, int kTileQueries, int kKeyBits, int kValueBits>
struct PackedForm {
  static constexpr int kHead = kHeadDim, kQueries = kTileQueries;
  static constexpr int kWarps = kQueries == 4 ? 16 : 8, kThreads = 32 * kWarps;
  static constexpr int kPairs = kHead / kLanes, kKeyX = kXWords<kPairs> + (kQueries == 4 ? 0 : 4);
  static constexpr int kWidth = kValueBits == 2 ? 32 : 64, kBlocks = kHead / kWidth;
  static constexpr int kKeySide = 8 + 2 * kHead, kBlockSide = 8 + 2 * kPagePositions, kValueSide = kBlocks * kBlockSide;
  static constexpr int kKeyPitch = side_pitch(kKeySide), kValuePitch = side_pitch(kValueSide);
  static constexpr int kOutPitch = kHead + 8, kOut = kQueries * kOutPitch;  // of a span's weighted values
  static constexpr int kBlockCodes = kPagePositions * kWidth * kValueBits / 8;
  static constexpr int kOwn = (kQueries / 2 * kHead + kThreads - 1) / kThreads;  // elements of a thread, of two queries
  using KeyTile = RawTile<kKeyBits, kHead, kPagePositions>;
  using ValueTile = RawTile<kValueBits, kPagePositions, kWidth>;
  /// Tiles of values on their way: what is multiplied next must have been asked for long before.
  static constexpr int kSets = kValueBits == 2 ? 4 : kValueBits == 4 ? 2 : 1;
};

/// What a warp has of its span. x of values takes half the room of x of keys at the most; behind it: results.
template <class F>
struct alignas(16) WarpShared {
  static constexpr int kValueWords = kTeamPages * F::kQueries * kValueX;
  static constexpr int kWords = kTeamPages * F::kQueries * F::kKeyX;
  float weights[F::kQueries * kWeightPitch];
  union alignas(16) {
    uint32_t x[kWords > kValueWords + F::kOut ? kWords : kValueWords + F::kOut];
    float room[kValueWords + F::kOut];
  };
  float2 by[kTeamPages * F::kQueries];
  alignas(8) uint8_t key_sides[kTeamPages * F::kKeyPitch];
  alignas(8) uint8_t value_sides[kTeamPages * F::kValuePitch];
  const uint8_t* pages[2][kTeamPages];  // of this span and of the next
  float most[F::kQueries], total[F::kQueries];

  __device__ __forceinline__ float* out() { return room + kValueWords; }
};

/// What a thread block has of a span of any kind.
template <class F>
struct alignas(16) BlockShared {
  static constexpr int kTasks = kTeamPages * F::kBlocks, kValueWords = F::kQueries * kValueX;
  static constexpr int kKeyWords = kTeamPages * F::kQueries * F::kKeyX;
  float weights[F::kQueries * kWeightPitch];
  uint32_t x[kKeyWords > kTasks * kValueWords ? kKeyWords : kTasks * kValueWords];
  float2 by[kTasks * F::kQueries];
  alignas(8) uint8_t key_sides[kTeamPages * F::kKeyPitch];
  alignas(8) uint8_t value_sides[kTeamPages * F::kValuePitch];
  float products[kTeamPages][F::kOut];
  float most[F::kQueries], total[F::kQueries];
  uint16_t f16[2][kTeamPages][kPagePositions * F::kHead];  // keys, values
};

template <class F>
struct alignas(16) SpanShared {
  float queries[F::kQueries][F::kHead];
  float all[F::kQueries][F::kHead];  // weighted values of the spans so far
  Joining joining[F::kQueries];
  Running running[F::kQueries];
  int positions[F::kQueries];  // -1: there is no such query
  int turn;                    // the span that joins next
  union alignas(16) {
    WarpShared<F> of_warp[F::kWarps];
    BlockShared<F> of_block;
  };
};

/// Spans of a tile that are packed and seen whole.
struct WholeSpans {
  int begin, end;
};
__device__ __forceinline__ WholeSpans whole_spans(const AttendPacked& call, const PagedTile& tile) {
  const int page = tile.position(0) / kPagePositions - static_cast<int>(call.kv.residual_pages);
  const int first = first_seen(tile.position(tile.count - 1), call.attend.window);
  const int begin = max(max(1, (first + kSpan - 1) / kSpan), tile.first_span);
  return {begin, max(begin, max(page, 0) / kTeamPages)};
}

/// How a launch with results for each span is divided: blockIdx.z below `blocks` has one of the spans that are not
/// whole, the others `each` whole ones.
struct SpanPlan {
  int blocks = 0, each = 0;
  bool no_whole = false;  // all spans are thread blocks'
};

__device__ __forceinline__ void copy_sides(const uint8_t* from, int bytes, uint8_t* to, int lane, int lanes) {
  for (int at = lane * 8; at < bytes; at += lanes * 8) copy_to_shared_8(to + at, from + at);
}

__device__ __forceinline__ const uint8_t* key_side(const AttendPacked& call, const PagedTile& tile,
                                                   const uint8_t* page) {
  return page + call.kv.sides_at + head_of(call.kv, tile.kv_head) * call.kv.sides;
}
__device__ __forceinline__ const uint8_t* key_codes(const AttendPacked& call, const PagedTile& tile,
                                                    const uint8_t* page) {
  return page + head_of(call.kv, tile.kv_head) * call.kv.codes;
}

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
      load_pointer_once(packed_table(call.kv, tile) + max(next, 1) * kTeamPages + group - 1);
  {
    RowScales<F::kPairs> rows;
    rows.load(shared.key_sides + group * F::kKeyPitch, j);
    const auto to = [&](int q) { return shared.x + (group * kQueries + q) * F::kKeyX + j * F::kPairs; };
    if constexpr (F::kPairs == 4) {
#pragma unroll 1
      for (int q = 0; q < kQueries; q += 4)
        prepare_four<F::kPairs>(rows, queries[q] + 2 * j, F::kHead, [&](int i) { return to(q + i); },
                                shared.by + group * kQueries + q);
    } else {  // four at once would take more registers than there are
#pragma unroll 1
      for (int q = 0; q < kQueries; ++q)
        prepare_x<F::kPairs>(rows, queries[q] + 2 * j, to(q), shared.by + group * kQueries + q);
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
                        key_codes(call, tile, pages[page]) + call.kv.key_codes + block * F::kBlockCodes, part);
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
          *reinterpret_cast<float2*>(shared.out() + (kQueries == 4 ? t : 2 * t + i) * F::kOutPitch +
                                     block * F::kWidth + 32 * part + 16 * n + 2 * g) = {sums[part][n][0][i],
                                                                                        sums[part][n][1][i]};
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

/// Scores of an f16 page in shared memory, for its share of the threads; a thread has a position and some queries.
template <class F>
__device__ __forceinline__ void score_f16_page(const AttendPacked& call, int page, int thread,
                                               const float (&queries)[F::kQueries][F::kHead], BlockShared<F>& shared) {
  constexpr int kOwn = F::kQueries * kPagePositions / (F::kThreads / kTeamPages);
  const int position = thread % kPagePositions, first = thread / kPagePositions * kOwn;
  const uint16_t* const keys = shared.f16[0][page] + position;
  float sums[kOwn] = {};
#pragma unroll 4
  for (int i = 0; i < F::kHead; i += 4) {
    float k[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) k[e] = f16_value(keys[(i + e) * kPagePositions]);
#pragma unroll
    for (int q = 0; q < kOwn; ++q) {
      const float4 x = *reinterpret_cast<const float4*>(&queries[first + q][i]);
      sums[q] = __fmaf_rn(x.w, k[3], __fmaf_rn(x.z, k[2], __fmaf_rn(x.y, k[1], __fmaf_rn(x.x, k[0], sums[q]))));
    }
  }
#pragma unroll
  for (int q = 0; q < kOwn; ++q)
    shared.weights[(first + q) * kWeightPitch + weights_at(page) + position] = __fmul_rn(call.attend.scale, sums[q]);
}

/// Scores of a packed page, by one warp. keys: the first part of its codes.
template <class F>
__device__ __forceinline__ void score_packed_page(const AttendPacked& call, const uint8_t* codes, int page,
                                                  typename F::KeyTile& keys,
                                                  const float (&queries)[F::kQueries][F::kHead],
                                                  BlockShared<F>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / kGroupLanes, j = lane % kGroupLanes;
  uint32_t* const x = shared.x + page * F::kQueries * F::kKeyX;
  float2* const by = shared.by + page * F::kQueries;
  RowScales<F::kPairs> rows;
  rows.load(shared.key_sides + page * F::kKeyPitch, j);
#pragma unroll
  for (int q = group; q < F::kQueries; q += 4)
    prepare_x<F::kPairs>(rows, queries[q] + 2 * j, x + q * F::kKeyX + j * F::kPairs, by + q);
  sync_warp();
#pragma unroll 1
  for (int part = 0; part < F::KeyTile::kParts; ++part)
    multiply_keys<F::kQueries, F::kKeyX>(keys, part + 1 < F::KeyTile::kParts, codes, part + 1, x, by,
                                         call.attend.scale, shared.weights + weights_at(page) + 32 * part);
}

/// Weighted values of a block of a packed page, by one warp.
template <class F>
__device__ __forceinline__ void weigh_packed_block(const typename F::ValueTile (&values)[F::ValueTile::kParts],
                                                   int page, int block, BlockShared<F>& shared) {
  using ValueTile = typename F::ValueTile;
  constexpr int kPairs = kPagePositions / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / kGroupLanes, j = lane % kGroupLanes;
  const int task = page * F::kBlocks + block, g = lane / 4, t = lane % 4;
  uint32_t* const x = shared.x + task * BlockShared<F>::kValueWords;
  float2* const by = shared.by + task * F::kQueries;
  RowScales<kPairs> rows;
  rows.load(shared.value_sides + page * F::kValuePitch + block * F::kBlockSide, j);
#pragma unroll
  for (int q = group; q < F::kQueries; q += 4)
    prepare_x<kPairs>(rows, shared.weights + q * kWeightPitch + weights_at(page) + 2 * j,
                      x + q * kValueX + value_lane(q, j) * kPairs, by + q);
  sync_warp();
#pragma unroll
  for (int part = 0; part < ValueTile::kParts; ++part) {
    float sums[ValueTile::kTiles][2][F::kQueries / 4] = {};
    multiply_values<F::kQueries>(values[part], x, by, sums);
#pragma unroll
    for (int n = 0; n < ValueTile::kTiles; ++n)
#pragma unroll
      for (int i = 0; i < F::kQueries / 4; ++i)
        *reinterpret_cast<float2*>(shared.products[page] + (F::kQueries == 4 ? t : 2 * t + i) * F::kOutPitch +
                                   block * F::kWidth + 32 * part + 16 * n + 2 * g) = {sums[n][0][i], sums[n][1][i]};
  }
}

/// What a thread block knows of a span's pages.
struct SpanPages {
  uint32_t there_bits, packed_bits;
  __device__ __forceinline__ bool there(int p) const { return (there_bits >> p & 1) != 0; }
  __device__ __forceinline__ bool packed(int p) const { return (packed_bits >> p & 1) != 0; }
};

/// Sides of packed pages and f16 pages into shared memory; all threads.
template <class F>
__device__ __forceinline__ void stage_span(const AttendPacked& call, const PagedTile& tile, int span,
                                           const SpanPages& pages, BlockShared<F>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int p = 0; p < kTeamPages; ++p) {
    if (!pages.there(p)) continue;
    const int page = span * kTeamPages + p;
    if (pages.packed(p)) {
      const uint8_t* const side = key_side(call, tile, packed_page(call.kv, tile, page));
      copy_sides(side, F::kKeySide, shared.key_sides + p * F::kKeyPitch, thread, F::kThreads);
      copy_sides(side + F::kKeySide, F::kValueSide, shared.value_sides + p * F::kValuePitch, thread, F::kThreads);
      continue;
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint16_t* const from = page_rows(call.attend, tile, page, which);
      for (int at = thread * 8; at < kPagePositions * F::kHead; at += F::kThreads * 8)
        copy_to_shared_16(shared.f16[which][p] + at, from + at);
    }
  }
}

/// One f16 page's weighted values of an element, for kQueries that see the same of it, behind those of pages before.
template <int kHead, int kQueries>
__device__ __forceinline__ void weigh_f16_page(const uint16_t* values, const float* weights, int from, int to,
                                               float* sums) {
  const auto add = [&](int t, const float(&w)[kQueries]) {
    const float v = f16_value(values[t * kHead]);
#pragma unroll
    for (int q = 0; q < kQueries; ++q) sums[q] = __fmaf_rn(w[q], v, sums[q]);
  };
  const auto add_one = [&](int t) {
    float w[kQueries];
#pragma unroll
    for (int q = 0; q < kQueries; ++q) w[q] = weights[q * kWeightPitch + t];
    add(t, w);
  };
  int t = from;
#pragma unroll 1
  for (; t < to && t % 4 != 0; ++t) add_one(t);
#pragma unroll 4
  for (; t + 4 <= to; t += 4) {
    float4 four[kQueries];
#pragma unroll
    for (int q = 0; q < kQueries; ++q) four[q] = *reinterpret_cast<const float4*>(weights + q * kWeightPitch + t);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float w[kQueries];
#pragma unroll
      for (int q = 0; q < kQueries; ++q)
        w[q] = e == 0 ? four[q].x : e == 1 ? four[q].y : e == 2 ? four[q].z : four[q].w;
      add(t + e, w);
    }
  }
#pragma unroll 1
  for (; t < to; ++t) add_one(t);
}

/// Weighted values of one element of queries q and q + 1: pages in ascending order.
template <class F>
__device__ __forceinline__ void weigh_element(const AttendPacked& call, const SpanPages& pages, int span, int q, int i,
                                              const SpanShared<F>& all, float (&sums)[2]) {
  const BlockShared<F>& shared = all.of_block;
  const Seen first = seen_of(all.positions[q], span, call.attend.window),
             second = seen_of(all.positions[q + 1], span, call.attend.window);
  sums[0] = sums[1] = 0;
#pragma unroll 1
  for (int p = 0; p < kTeamPages; ++p) {
    const int start = p * kPagePositions;
    const int from[2] = {max(first.begin - start, 0), max(second.begin - start, 0)};
    const int to[2] = {min(first.end - start, kPagePositions), min(second.end - start, kPagePositions)};
    const float* const products = shared.products[p] + q * F::kOutPitch + i;
    const float* const weights = shared.weights + q * kWeightPitch + weights_at(p);
    const uint16_t* const values = shared.f16[1][p] + i;
    if (!pages.packed(p) && from[0] == from[1] && to[0] == to[1]) {
      weigh_f16_page<F::kHead, 2>(values, weights, from[0], to[0], sums);
      continue;
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (from[k] >= to[k]) continue;
      if (pages.packed(p)) {
        sums[k] = __fadd_rn(sums[k], products[k * F::kOutPitch]);
      } else {
        weigh_f16_page<F::kHead, 1>(values, weights + k * kWeightPitch, from[k], to[k], sums + k);
      }
    }
  }
}

/// A span of any kind, by the thread block: sums of the thread's elements, thread + k kThreads of [pair of
/// queries][element].
template <class F>
__device__ __forceinline__ void attend_any_span(const AttendPacked& call, const PagedTile& tile, int span,
                                                SpanShared<F>& all, float (&sums)[F::kOwn][2]) {
  BlockShared<F>& shared = all.of_block;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  SpanPages pages = {0, 0};
#pragma unroll
  for (int p = 0; p < kTeamPages; ++p) {
    const PageOfWarp page = page_of(call, tile, span, p);
    pages.there_bits |= static_cast<uint32_t>(page.there) << p;
    pages.packed_bits |= static_cast<uint32_t>(page.there && page.packed) << p;
  }
  stage_span(call, tile, span, pages, shared);
  // A page's warps: its keys are the first one's, a block of values is each one's, the first one's last.
  constexpr int kPageWarps = F::kWarps / kTeamPages;
  static_assert(F::kBlocks <= kPageWarps);
  const int own_page = warp / kPageWarps, block = (warp + kPageWarps - 1) % kPageWarps;
  const PageOfWarp own = page_of(call, tile, span, own_page);
  const bool packed = own.there && own.packed;
  typename F::KeyTile keys;
  typename F::ValueTile values[F::ValueTile::kParts];
  const uint8_t* codes = nullptr;
  if (packed) {
    codes = key_codes(call, tile, packed_page(call.kv, tile, own.page));
    if (warp % kPageWarps == 0) keys.fetch(true, codes, 0);
#pragma unroll
    for (int part = 0; part < F::ValueTile::kParts; ++part)
      values[part].fetch(block < F::kBlocks, codes + call.kv.key_codes + block * F::kBlockCodes, part);
  }
  wait_for_all_copies();
  __syncthreads();
  if (own.there && !packed) score_f16_page<F>(call, own_page, thread % (32 * kPageWarps), all.queries, shared);
  if (packed && warp % kPageWarps == 0) score_packed_page<F>(call, codes, own_page, keys, all.queries, shared);
  __syncthreads();
  if (warp < F::kQueries) {
    float* const scores = shared.weights + warp * kWeightPitch;
    const float most = weigh_scores<true>(scores, seen_of(all.positions[warp], span, call.attend.window));
    sync_warp();
    const float total = sum_of_weights(scores);
    if (thread % 32 == 0) shared.most[warp] = most, shared.total[warp] = total;
  }
  __syncthreads();
  if (packed && block < F::kBlocks) weigh_packed_block<F>(values, own_page, block, shared);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < F::kOwn; ++k) {
    const int at = thread + k * F::kThreads, q = at / F::kHead * 2;
    if (q < F::kQueries) weigh_element<F>(call, pages, span, q, at % F::kHead, all, sums[k]);
  }
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

/// A warp's span joins those before, when it is its turn.
template <class F>
__device__ __forceinline__ void join_in_turn(const AttendPacked& call, int span, WarpShared<F>& own,
                                             SpanShared<F>& shared) {
  constexpr int kOfLane = F::kHead / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_turn(&shared.turn, span);
  join_span<F>(call, span, own.most, own.total, shared);
  sync_warp();
#pragma unroll
  for (int q = 0; q < F::kQueries; ++q) {
    const Joining join = shared.joining[q];
    float* const all = &shared.all[q][lane * kOfLane];
    const float* const sums = own.out() + q * F::kOutPitch + lane * kOfLane;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) all[i] = joined(join, sums[i], all[i]);
  }
  give_turn(&shared.turn, span + 1);
}

/// The thread block's spans, each with results of its own.
template <class F>
__device__ __forceinline__ void attend_apart(const AttendPacked& call, const PagedTile& tile, const SpanPlan& plan,
                                             WholeSpans whole, SpanShared<F>& shared) {
  const AttendPages& attend = call.attend;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int z = static_cast<int>(blockIdx.z), end = tile.first_span + tile.spans;
  if (plan.no_whole) whole = {tile.first_span, tile.first_span};
  if (z < plan.blocks) {
    const int before = min(whole.begin, end) - tile.first_span;
    const int span = z < before ? tile.first_span + z : max(whole.end, whole.begin) + z - before;
    if (span >= end) return;
    float sums[F::kOwn][2];
    attend_any_span<F>(call, tile, span, shared, sums);
#pragma unroll
    for (int k = 0; k < 2 * F::kOwn; ++k) {
      const int at = thread + k / 2 * F::kThreads, q = at / F::kHead * 2 + k % 2, i = at % F::kHead;
      if (q >= tile.count) continue;
      float* const to = result_of(attend, span - tile.first_span, q);
      to[2 + i] = sums[k / 2][k % 2];
      if (i == 0) to[0] = shared.of_block.most[q], to[1] = shared.of_block.total[q];
    }
    return;
  }
  const int span = whole.begin + (z - plan.blocks) * plan.each + warp;
  if (warp >= plan.each || span >= whole.end) return;
  WarpShared<F>& own = shared.of_warp[warp];
  begin_spans<F>(call, tile, span, 0, own);
  attend_whole_span<F>(call, tile, -1, 0, shared.queries, own);
  for (int q = 0; q < tile.count; ++q) {
    float* const to = result_of(attend, span - tile.first_span, q);
#pragma unroll
    for (int i = lane; i < F::kHead; i += 32) to[2 + i] = own.out()[q * F::kOutPitch + i];
    if (lane == 0) to[0] = own.most[q], to[1] = own.total[q];
  }
}

/// All spans of the tile: those that are whole by a warp each, which join in their order.
template <class F>
__device__ __forceinline__ void attend_together(const AttendPacked& call, const PagedTile& tile, WholeSpans whole,
                                                SpanShared<F>& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, end = tile.first_span + tile.spans;
#pragma unroll 1
  for (int span = tile.first_span; span < end;) {
    if (span == whole.begin && span < whole.end) {
      WarpShared<F>& own = shared.of_warp[warp];
      if (thread == 0) shared.turn = span;
      __syncthreads();
      int parity = 0;
#pragma unroll 1
      for (int of = span + warp; of < whole.end; of += F::kWarps, parity ^= 1) {
        if (of == span + warp) begin_spans<F>(call, tile, of, parity, own);
        attend_whole_span<F>(call, tile, of + F::kWarps < whole.end ? of + F::kWarps : -1, parity, shared.queries,
                             own);
        join_in_turn<F>(call, of, own, shared);
      }
      __syncthreads();
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
  if (apart && static_cast<int>(blockIdx.z) >= plan.blocks + tile.spans) return;
  for (int at = thread; at < F::kQueries * F::kHead; at += F::kThreads) {
    const int q = at / F::kHead, i = at % F::kHead;
    shared.queries[q][i] = q < tile.count ? attend.q[tile.offset(attend, q) + i] : 0.0f;
    shared.all[q][i] = 0;
  }
  if (thread < F::kQueries) shared.positions[thread] = thread < tile.count ? tile.position(thread) : -1;
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
    const int64_t others = std::min(a.spans, 2 + (call.kv.residual_pages + 7) / kTeamPages);
    const int64_t total = a.tile_count * a.kv.kv_heads * a.spans;
    plan.no_whole = total <= device.processors;
    plan.blocks = static_cast<int>(plan.no_whole ? a.spans : others);
    plan.each = static_cast<int>(std::clamp<int64_t>((total + device.processors - 1) / device.processors, 1, F::kWarps));
    depth = plan.blocks + (plan.no_whole ? 0 : (a.spans + plan.each - 1) / plan.each);
  }
  const dim3 grid(static_cast<unsigned>(a.tile_count), static_cast<unsigned>(a.kv.kv_heads),
                  static_cast<unsigned>(depth));
  return launch(kernel, grid, dim3(F::kThreads), sizeof(SpanShared<F>), static_cast<cudaStream_t>(a.stream),
                device.bulk_copies, call, plan);
}

template <int kHead>
cudaError_t launch_bits(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.key_bits, values = call.kv.value_bits;
  if (keys == 8) return launch_spans<PackedForm<kHead, 4, 8, 8>>(call, device);
  if (keys == 2) return launch_spans<PackedForm<kHead, 4, 2, 2>>(call, device);
  return values == 2 ? launch_spans<PackedForm<kHead, 4, 4, 2>>(call, device)
                     : launch_spans<PackedForm<kHead, 4, 4, 4>>(call, device);
}

}  // namespace

bool block::takes_packed_spans(const AttendPacked& call, const Device& device) {
  const int keys = call.kv.key_bits, values = call.kv.value_bits;
  const int64_t head = call.attend.kv.head_dim;
  constexpr auto kMostShared = static_cast<int64_t>(sizeof(SpanShared<PackedForm<128, 4, 2, 2>>));
  return (head == 64 || head == 128) && call.attend.tile_queries == 4 && call.teams == 0 &&
         (keys == values || (keys == 4 && values == 2)) && device.shared_bytes >= kMostShared;
}

cudaError_t block::attend_packed_spans(const AttendPacked& call, const Device& device) {
  return call.attend.kv.head_dim == 64 ? launch_bits<64>(call, device) : launch_bits<128>(call, device);
}

}  // namespace lowbit::cuda
