#pragma once
// Scales and codes of a few rows, improved against the full the Hessian. Internal to src/quantize.

#include <span>
#include <vector>

#include "quantize/column_strips.h"
#include "quantize/feedback.h"
#include "quantize/row_codes.h"
#include "quantize/trellis_feedback.h"

namespace lowbit {

/// Works on H with damping on its diagonal, as the feedback did; reports losses without it. The rows do not influence
/// each other; they share each pass over H.
class RowRefiner {
 public:
  /// `h`: H with `damping` (absolute) added to its diagonal.
  RowRefiner(const ColumnStrips& h, float damping, std::span<RowCodes> rows);

  /// The scales that minimize each row's loss for its codes, rounded to their storage kind; kept only where the loss
  /// falls.
  void refit_scales(ScaleKind kind);

  /// Sweeps over the columns: each takes the code that minimizes the loss with all others fixed, until a sweep changes
  /// nothing (at most three).
  void descend();

  /// Coordinate descent on a trellis: `blocks` of columns (trellis_blocks()) one after the other, all others fixed.
  /// Blocks keep the states at their ends, so another offset comes next.
  void descend_blocks(std::span<const TrellisBlock> blocks);

  /// (w - q) H (w - q)^T of row r; set_gradients() or a step above must have run since the codes last changed.
  double output_error(size_t r) const;
  double output_energy(size_t r) const;  // w H w^T
  /// Follows codes that were chosen elsewhere.
  void set_gradients();

 private:
  struct Row {
    std::vector<float> hw;        // [padded] w H
    std::vector<float> gradient;  // [padded] (w - q) H
    std::vector<float> by_group;  // [groups, padded]: v_g H, v_g the values of group g and zeros elsewhere
    std::vector<float> values;    // [k] that by_group was computed from
    bool changed = false;         // in this sweep
    std::vector<uint8_t> states;  // [k + 1] of a trellis before each column
  };
  using Target = std::vector<float> Row::*;

  void multiply_groups();
  void solve_scales(size_t r, ScaleKind kind);
  void sweep_block(int64_t block);
  void search_block(size_t r, const TrellisBlock& block, TrellisStripScratch& scratch);
  std::vector<float*> starts(Target target, int64_t offset = 0);

  const ColumnStrips* h_;
  float damping_;
  std::span<RowCodes> codes_;
  std::vector<Row> rows_;
  std::vector<SparseVector> vectors_;  // scratch, one per row
};

}  // namespace lowbit
