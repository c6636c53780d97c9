#pragma once
// What attention kernels on packed pages share: whose queries a thread block has, and which pages they read how.

#include "kernels/cuda/block/attention.cuh"
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
struct PageOfWarp {
  int page, first;  // of the sequence; its first position, within the span
  bool packed, there;
};
__device__ __forceinline__ bool reads_packed(const PackedKv& kv, int page, int position) {
  return page >= 1 && position / kPagePositions >= page + 1 + kv.residual_pages;
}
__device__ __forceinline__ PageOfWarp page_of(const AttendPacked& call, const PagedTile& tile, int span, int warp) {
  const int page = span * kTeamPages + warp, last = tile.position(tile.count - 1);
  const bool there =
      page * kPagePositions <= last && (page + 1) * kPagePositions > first_seen(tile.position(0), call.attend.window);
  return {page, warp * kPagePositions, reads_packed(call.kv, page, tile.position(0)), there};
}
__device__ __forceinline__ const uint8_t* packed_page(const PackedKv& kv, const PagedTile& tile, int page) {
  return reinterpret_cast<const uint8_t*>(kv.tables[tile.pages - kv.pages.tables + page - 1]);
}
__device__ __forceinline__ int64_t head_of(const PackedKv& kv, int kv_head) {
  return kv.pages.index * kv.pages.kv_heads + kv_head;
}

/// Heads of 128 elements, up to four queries, and 2 or 4 bits of keys and values: what comes next is fetched ahead.
bool takes_packed_128(const AttendPacked& call);
cudaError_t attend_packed_128(const AttendPacked& call, const Device& device);

}  // namespace lowbit::cuda::block
