#pragma once
// The contract between backend/cuda/ and the kernels of steps that know a batch: rows of several sequences, their
// positions, and pages of keys and values. What needs rows alone is in kernels/cuda_block_api.h. No CUDA types;
// kernels/cuda/block/ implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/numerics.md, so that the bits are those of the CPU. Pointers are device memory. Calls enqueue work on
// `stream` and return: no allocation, no wait, so they may be captured into a graph. Errors: what CUDA says.

#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// The sequence of the batch that a row belongs to, and its position there.
struct BatchRow {
  int32_t sequence = 0, position = 0;
};
/// Rows [row, row + rows) of the batch are positions [position, position + rows) of a sequence.
struct BatchSequence {
  int32_t row = 0, rows = 0, position = 0;
  int32_t most_packed = INT32_MAX;  // of a quantized cache: pages behind this one are read as f16
};
/// Queries of one sequence and kv head that are computed together, from query `first` on: query i is head i % group of
/// row i / group.
struct QueryTile {
  int32_t sequence = 0, first = 0;
};

/// Pages of the batch's sequences (KvFormat::kF16), as one layer finds itself in them.
struct PagedKv {
  const uint64_t* tables = nullptr;  // [sequences, stride]: addresses of pages
  int64_t stride = 0;
  int64_t index = 0;  // of the layer among those that share the page
  int64_t kv_heads = 0, head_dim = 0;
};

/// Heads of at most so many elements.
inline constexpr int64_t kMostHeadDim = 256;

/// Rotates q [m, heads * head_dim] in place; k, rotated, and v [m, kv_heads * head_dim] enter their pages as f16.
struct StoreRows {
  float* q = nullptr;
  const float *k = nullptr, *v = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // [positions, head_dim / 2], of positions from 0 on
  const BatchRow* rows = nullptr;              // [m]
  PagedKv kv;
  int64_t m = 0, heads = 0;
  void* stream = nullptr;
};
Status rotate_and_store(const StoreRows& call);

/// Causal attention: out[r, h] = sum_t softmax_t(scale * q[r, h] . key[t]) value[t] over the positions that row r sees,
/// in spans.
struct AttendPages {
  const float* q = nullptr;  // [m, heads * head_dim]
  float* out = nullptr;      // as q
  const BatchSequence* sequences = nullptr;
  const QueryTile* tiles = nullptr;  // tile_queries queries each
  int64_t tile_count = 0;
  int tile_queries = 16;  // attention_tile_queries() or kPromptQueries
  PagedKv kv;
  int64_t heads = 0;
  float scale = 0;
  int64_t window = 0;  // a row sees so many positions, its own the last of them; 0: all up to its own
  /// attend_results_floats(), for spans that different thread blocks compute: then another kernel puts them together,
  /// with the same bits. Null: a thread block does all spans of its tile.
  float* results = nullptr;
  int64_t spans = 0;  // with results: the most that a tile sees
  void* stream = nullptr;
  bool exact = true;  // in the CPU's order of sums; else on tensor cores, if they take the heads
};
Status attend_pages(const AttendPages& call);
/// Queries of a tile where a sequence has many rows.
inline constexpr int kPromptQueries = 64;
/// 4, 8 or 16: enough for `queries` that belong together, if that is possible.
constexpr int attention_tile_queries(int64_t queries) { return queries <= 4 ? 4 : queries <= 8 ? 8 : 16; }
constexpr int64_t attend_results_floats(int64_t tiles, int tile_queries, int64_t spans, int64_t kv_heads,
                                        int64_t head_dim) {
  return tiles * kv_heads * spans * tile_queries * (head_dim + 2);
}

/// attend_pages() and rotate_and_store() in one, for sequences of one row each: q and k come as products leave them; q
/// stays as it is. Tile i is sequence i with all heads of a kv head, and results are there if a tile sees several
/// spans.
struct AttendStep {
  AttendPages attend;
  const float *k = nullptr, *v = nullptr;      // [m, kv_heads * head_dim]
  const float *cos = nullptr, *sin = nullptr;  // as in StoreRows
  /// The kernel may start while its predecessor finishes: pages of positions before the rows' must not be written by
  /// it.
  bool overlap = false;
  /// With results: [tiles, kv heads] zeros, and zeros again when the kernel ends. The last block of a tile puts its
  /// spans together.
  uint32_t* arrived = nullptr;
};
Status attend_step(const AttendStep& call);
/// Whether a thread block of the current device has room for a span of such keys and values.
bool has_attend_step(const AttendPages& call);

/// y[r] = table[index[r]], rows of n.
Status gather_rows(const float* table, const int32_t* index, int64_t rows, int64_t n, float* y, void* stream);

/// int8 codes of x [m, k] and their scales: VectorOps::quantize_groups_int8 and, with another `largest`, round_groups()
/// (ops/activation_rounding.h). group 0: one scale per row. codes [m, ldq], zeros from k on; scales [m, ceil(k /
/// group)].
struct RoundRows {
  const float* x = nullptr;
  int64_t m = 0, k = 0, group = 0;
  int largest = 127;
  int8_t* codes = nullptr;
  int64_t ldq = 0;
  float* scales = nullptr;
  void* stream = nullptr;
};
Status round_rows(const RoundRows& call);
/// norm_rows() and then codes and scales of its rows, largest 127, as in RoundRows; the normed rows are not kept. With
/// one scale per row codes are those of x * norm, and the scale is times the norm's factor.
struct NormCodes {
  const float* x = nullptr;
  const float* norm = nullptr;  // [k]
  float eps = 0;
  int64_t m = 0, k = 0, group = 0;
  int8_t* codes = nullptr;
  int64_t ldq = 0;
  float* scales = nullptr;
  void* stream = nullptr;
  bool exact_scales = false;  // RowCodes::exact_scales
};
Status norm_codes(const NormCodes& call);
/// Whether a thread block of the current device has room for a row.
bool has_norm_codes(int64_t k);
/// y [m, k] = x, clipped row by row to the (out + 1)-th largest magnitude; rows with a NaN stay (clip_row()). 0 < out <
/// k; y may be x.
Status clip_rows(const float* x, int64_t m, int64_t k, int64_t out, float* y, void* stream);

// ---- Between host and device, in the order of a stream. The host's memory may change as soon as the call returns.

Status upload_on(void* stream, void* to, const void* from, int64_t bytes);
/// `to` holds the bytes once the stream is done.
Status download_on(void* stream, void* to, const void* from, int64_t bytes);
/// Either may be the host's.
Status copy_on(void* stream, void* to, const void* from, int64_t bytes);

}  // namespace lowbit::cuda
