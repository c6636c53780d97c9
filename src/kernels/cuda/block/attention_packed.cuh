#pragma once
// Shared by attention kernels on packed pages: the queries of a thread block, and the form of each page that they read.

#include "kernels/cuda/block/attention.cuh"
#include "kernels/cuda/block/page_values.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda_packed_api.h"

namespace lowbit::cuda::block {

/// A team of warps has a span, a warp each of its pages.
constexpr int kPagePositions = static_cast<int>(kKvPage), kTeamPages = static_cast<int>(kSpanPages), kTeamThreads = 128;
static_assert(kTeamPages * 32 == kTeamThreads);

__device__ __forceinline__ PagedTile packed_tile(const AttendPages& call) {
  PagedTile t = paged_tile(call);
  t.count = static_cast<int>(
      queries_of_packed_tile(t.sequence.position, t.sequence.rows, t.group, t.first, call.tile_queries));
  t.spans = t.position(t.count - 1) / kSpan + 1 - t.first_span;
  return t;
}

/// A page as a warp reads it.
enum class PageForm { kF16, kPacked, kOld };
struct PageOfWarp {
  int page, first;  // of the sequence; its first position, within the span
  PageForm form;
  bool there;
};
__device__ __forceinline__ bool reads_so(const PackedPages& pages, const PagedTile& tile, int page) {
  return page >= 1 && page <= tile.sequence.most_packed && tile.position(0) / kPagePositions >= page + 1 + pages.behind;
}
__device__ __forceinline__ PageForm form_of(const PackedKv& kv, const PagedTile& tile, int page) {
  if (!reads_so(kv.packed, tile, page)) return PageForm::kF16;
  return kv.old.tables != nullptr && reads_so(kv.old, tile, page) ? PageForm::kOld : PageForm::kPacked;
}
__device__ __forceinline__ const PackedPages& pages_of(const PackedKv& kv, PageForm form) {
  return form == PageForm::kOld ? kv.old : kv.packed;
}
/// Whether the page is read by products of codes, not in the order of f16 pages.
__device__ __forceinline__ bool multiplies_codes(const PackedKv& kv, PageForm form) {
  return form == PageForm::kOld || (form == PageForm::kPacked && !kv.packed.fp8);
}
__device__ __forceinline__ PageOfWarp page_of(const AttendPacked& call, const PagedTile& tile, int span, int warp) {
  const int page = span * kTeamPages + warp, last = tile.position(tile.count - 1);
  const bool there =
      page * kPagePositions <= last && (page + 1) * kPagePositions > first_seen(tile.position(0), call.attend.window);
  return {page, warp * kPagePositions, form_of(call.kv, tile, page), there};
}
/// Packed pages of the tile's sequence, that of page 1 first.
__device__ __forceinline__ const uint64_t* packed_table(const PackedKv& kv, const PackedPages& form,
                                                        const PagedTile& tile) {
  return form.tables + (tile.pages - kv.pages.tables);
}
/// A head of a packed page: codes and sides of its keys, with those of its values behind them.
struct PackedHeadOf {
  const uint8_t *codes, *side;
};
__device__ __forceinline__ int64_t head_of(const PackedKv& kv, int kv_head) {
  return kv.pages.index * kv.pages.kv_heads + kv_head;
}
__device__ __forceinline__ PackedHeadOf packed_head_of(const PackedKv& kv, const PackedPages& form,
                                                       const PagedTile& tile, int page) {
  const auto* const data = reinterpret_cast<const uint8_t*>(packed_table(kv, form, tile)[page - 1]);
  const int64_t head = head_of(kv, tile.kv_head);
  return {data + head * form.codes, data + form.sides_at + head * form.sides};
}
/// Keys and values of an fp8 page.
struct Fp8Head {
  Fp8Rows keys, values;
};
__device__ __forceinline__ Fp8Head fp8_head_of(const PackedKv& kv, const PagedTile& tile, int page) {
  const PackedHeadOf at = packed_head_of(kv, kv.packed, tile, page);
  const auto exponents = [](const uint8_t* side) { return reinterpret_cast<const int8_t*>(side); };
  return {{at.codes, exponents(at.side), kPagePositions},
          {at.codes + kv.packed.key_codes, exponents(at.side + kv.packed.key_side), kv.pages.head_dim}};
}

/// How a span joins those before it.
struct Joining {
  Merging by;
  int seen;  // 0: nothing of it, 1: it is the first, 2: some are before it
};
__device__ __forceinline__ float joined(const Joining& join, float sum, float all) {
  if (join.seen == 1) return sum;
  return join.seen == 2 ? __fmaf_rn(sum, join.by.here, __fmul_rn(all, join.by.before)) : all;
}

/// Heads of 64 and 128 elements, and keys and values of 8, 4, 3 or 2 bits each or 4 and 2: all sizes known.
bool takes_packed_spans(const AttendPacked& call, const Device& device);
/// Whether attend_packed_spans() puts results together itself.
bool joins_packed_spans(const AttendPacked& call, const Device& device);
cudaError_t attend_packed_spans(const AttendPacked& call, const Device& device);

/// Such pages and heads by products of f16 (attention_codes.cu): not the CPU's bits.
bool takes_codes(const AttendPacked& call, const Device& device);
cudaError_t attend_codes(const AttendPacked& call, const Device& device);

}  // namespace lowbit::cuda::block
