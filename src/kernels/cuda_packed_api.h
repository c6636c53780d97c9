#pragma once
// The contract between backend/cuda/ and the kernels of a quantized KV cache: packing pages, and attention that reads
// packed ones. No CUDA types; kernels/cuda/block/ implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/kv-cache.md; codes and sums have the bits of the CPU. Pointers are device memory, calls as in
// kernels/cuda_step_api.h.

#include <cstdint>

#include "kernels/cuda_step_api.h"

namespace lowbit::cuda {

/// Packed pages of one format, as one layer finds itself in them.
struct PackedPages {
  const uint64_t* tables = nullptr;  // [sequences, stride of f16 pages]: that of page 1 first; null: there are none
  int key_bits = 0, value_bits = 0;  // 2, 3, 4 or 8
  bool fp8 = false;                  // E4M3 (kernels/fp8_rows.h), read in the order of f16 pages
  int64_t behind = 0;                // pages: a query at p reads page g so if g >= 1 and p / 64 >= g + 1 + behind
  // Bytes of one head: all codes, codes of keys, all scales and least values, and those of keys.
  int64_t codes = 0, key_codes = 0, sides = 0, key_side = 0;
  int64_t sides_at = 0;  // in a page
};

/// Pages of a quantized cache (KvFormat): f16 ones, packed ones, and old ones that were packed once more.
struct PackedKv {
  PagedKv pages;  // f16; an address is 0 where a page has gone
  PackedPages packed, old;
};

/// Rotates q [m, heads * head_dim] in place, k likewise, and transforms q, k and v by Hadamard, `hadamard` elements at
/// a time; k and v enter their f16 pages.
struct StoreTransformed {
  StoreRows rows;
  int64_t hadamard = 1;
  float scale = 1;  // 1 / sqrt(hadamard)
};
Status rotate_transform_and_store(const StoreTransformed& call);

/// A page of a sequence that is to be packed: one from 1 on, whose f16 page is there and full.
struct PackTask {
  int32_t sequence = 0, page = 0;
};
/// Packs pages of one layer: pack_rows() of each head's keys, and of its values block by block, or pack_fp8_rows().
struct PackPages {
  PackedKv kv;
  const PackTask* tasks = nullptr;
  int64_t count = 0;
  void* stream = nullptr;
  bool demotes = false;  // packed pages to old ones, from what their codes say (KvFormat::demote_after)
};
Status pack_pages(const PackPages& call);

/// attend_pages() on such pages. All queries of a tile read each page in the same form: a tile ends where the block of
/// 64 positions of its first query ends (packed_tile_queries()).
struct AttendPacked {
  AttendPages attend;  // its kv: as `kv` has it; tile_queries 4 or 8
  PackedKv kv;
  int teams = 0;  // spans that a thread block takes at a time: 1, 2 or 4; 0: chosen
  /// [tiles, kv heads] as AttendStep::arrived, so that few spans need no other launch. Null: they are put together by
  /// one.
  uint32_t* arrived = nullptr;
  /// Room for results of some tiles, which go in turns: without `results`, where a kernel with all sizes known takes
  /// them and their spans fill the device; and for the fast kernel, fast_packed_floats() of it at least. None: null.
  float* room = nullptr;
  int64_t room_floats = 0;
  /// The predecessor writes no packed page, so that reading them may begin before it has ended.
  bool overlap = false;
  float hadamard = 0;  // the fast kernel transforms each head of out and multiplies it by this; 0: it does not
};
/// Not exact: by the fast kernel, if has_fast_packed(), there are arrivals and room, and no page is demoted or fp8.
Status attend_packed(const AttendPacked& call);
/// Pages that a kernel with all sizes known reads, four queries at a time; not fp8, and none that are demoted.
constexpr bool has_packed_form(int key_bits, int value_bits, int64_t head_dim) {
  return (head_dim == 64 || head_dim == 128) && (key_bits == value_bits || (key_bits == 4 && value_bits == 2));
}
/// Whether the fast kernel takes the call.
bool is_fast_packed(const AttendPacked& call);
/// Whether the current device has the fast kernel for such pages: not the CPU's bits (docs/numerics.md).
bool has_fast_packed(int key_bits, int value_bits, int64_t head_dim);
/// Thread blocks of a tile at most, where so many run at once.
constexpr int64_t fast_packed_parts(int64_t at_once, int64_t kv_heads) {
  return at_once > kv_heads ? at_once / kv_heads : 1;
}
/// Floats of results of a tile of 8 queries at most.
constexpr int64_t fast_packed_floats(int64_t processors, int64_t kv_heads, int64_t head_dim) {
  return attend_results_floats(1, 8, fast_packed_parts(2 * processors, kv_heads), kv_heads, head_dim);
}
/// 4 or 8 for `queries` that belong together. `known`: that kernel takes the pages.
constexpr int packed_tile_queries(int64_t queries, bool known) { return queries <= 4 || known ? 4 : 8; }
/// Queries of a tile that begins with query `first` of rows at `position`, `group` of them to a row.
constexpr int64_t queries_of_packed_tile(int64_t position, int64_t rows, int64_t group, int64_t first, int64_t most) {
  constexpr int64_t kPage = 64;
  const int64_t block_end = ((position + first / group) / kPage + 1) * kPage - position;  // in rows
  const int64_t end = (block_end < rows ? block_end : rows) * group;
  return end - first < most ? end - first : most;
}

}  // namespace lowbit::cuda
