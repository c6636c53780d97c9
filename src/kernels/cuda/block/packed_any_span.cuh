#pragma once
// A span of any kind by a thread block: some of its pages are packed, some f16, and some may not be there, or not be
// seen as a whole. f16 pages are in shared memory meanwhile.

#include "kernels/cuda/block/packed_form.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::block {

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
    prepare_one<F::kPairs>(rows, queries[q] + 2 * j, x + q * F::kKeyX + j * F::kPairs, by + q);
  sync_warp();
#pragma unroll 1
  for (int part = 0; part < F::KeyTile::kParts; ++part)
    multiply_keys<F::kQueries, F::kKeyX>(keys, part + 1 < F::KeyTile::kParts, codes, part + 1, x, by, call.attend.scale,
                                         shared.weights + weights_at(page) + 32 * part);
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
    prepare_one<kPairs>(rows, shared.weights + q * kWeightPitch + weights_at(page) + 2 * j,
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

/// The pages of a span: which exist, and which of them are packed.
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
    pages.packed_bits |= static_cast<uint32_t>(page.there && page.form == PageForm::kPacked) << p;
  }
  stage_span(call, tile, span, pages, shared);
  // A page's warps: its keys are the first one's, a block of values is each one's, the first one's last.
  constexpr int kPageWarps = F::kWarps / kTeamPages;
  static_assert(F::kBlocks <= kPageWarps);
  const int own_page = warp / kPageWarps, block = (warp + kPageWarps - 1) % kPageWarps;
  const PageOfWarp own = page_of(call, tile, span, own_page);
  const bool packed = own.there && own.form == PageForm::kPacked;
  typename F::KeyTile keys;
  typename F::ValueTile values[F::ValueTile::kParts];
  const uint8_t* codes = nullptr;
  if (packed) {
    codes = key_codes(call, tile, packed_page(call.kv, tile, own.page));
    if (warp % kPageWarps == 0) keys.fetch(true, codes, 0);
#pragma unroll
    for (int part = 0; part < F::ValueTile::kParts; ++part)
      values[part].fetch(block < F::kBlocks, codes + call.kv.packed.key_codes + block * F::kBlockCodes, part);
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

}  // namespace lowbit::cuda::block
