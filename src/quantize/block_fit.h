#pragma once
// One scale block: gathers its elements, runs the method, and picks the scale and zero to store.
// Internal to src/quantize.

#include <cstdint>
#include <utility>
#include <vector>

#include "format/registry.h"
#include "quantize/fit.h"
#include "quantize/grid.h"
#include "quantize/group_fit.h"

namespace lowbit {

/// Everything that all blocks of a tensor share.
struct FitPlan {
  int64_t n = 0, k = 0;
  FitOptions options;                    // method resolved, codebook filled in
  Grid grid;                             // of options.format
  const TrellisInfo* trellis = nullptr;  // of options.format, or none
  OffsetRule rule = OffsetRule::kNone;
  std::vector<float> weights;         // [k] importance, scaled and kept above 0; empty for none
  const float* importance = nullptr;  // as given

  int64_t group() const;  // columns of a block, at most
  int64_t scale_cols() const;
  int64_t scale_rows() const;
  int64_t super_cols() const;
  std::pair<int64_t, int64_t> rows_of(int64_t scale_row) const;  // [first, last)
};

/// Rows [first, ...) of the matrix, row-major.
struct RowSlice {
  const float* data;
  int64_t first;
  const float* row(int64_t r, int64_t k) const { return data + (r - first) * k; }
};

/// Where a row of blocks puts its results, each indexed by scale column.
struct ScaleRow {
  float* scales;
  float* supers;  // kDouble only
  float* zeros;   // unless ZeroKind::kNone
};

/// Scratch of one thread.
struct BlockScratch {
  std::vector<float> x, h;
};

/// Fits the blocks [col_begin, col_end) of one row of blocks; col_begin is a multiple of
/// kSuperGroup. False when a weight is NaN or infinite.
bool fit_blocks(const FitPlan& plan, const RowSlice& w, int64_t scale_row, int64_t col_begin, int64_t col_end,
                const ScaleRow& out, BlockScratch& scratch);

struct RowError {
  double error = 0, energy = 0, weighted_error = 0, weighted_energy = 0;
};

/// Adds what n elements x lose as `real`; h: their importance, or null.
void add_error(const float* x, const float* real, const float* h, int64_t n, RowError& sums);

/// codes[0..k) of one row from its blocks' scales and zeros, and what the row lost.
RowError encode_row(const FitPlan& plan, const float* row, const float* scales, const float* zeros, uint8_t* codes);

}  // namespace lowbit
