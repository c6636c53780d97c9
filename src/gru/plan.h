#pragma once
// From a cell's numbers to what kernels compute with: folded biases, derived shifts, and the proof that nothing
// overflows.

#include <memory>

#include "gru/cell.h"
#include "kernels/gru_api.h"

namespace lowbit {

/// Immutable. The spec's pointers point into this object's own vectors.
class GruPlan {
 public:
  /// Errors: kCorrupt (sizes, codes or zero points outside their formats), kUnsupported (a stage whose largest possible
  /// value needs more than 63 bits; says which).
  static Result<std::shared_ptr<const GruPlan>> make(GruCell cell);

  const GruCell& cell() const { return cell_; }
  const GruSpec& spec() const { return spec_; }
  const GruWidths& widths() const { return widths_; }
  /// Right shifts between tensors in a fixed order, for files and their check (docs/gru.md).
  std::vector<int32_t> derived_shifts() const;

  GruPlan(const GruPlan&) = delete;
  GruPlan& operator=(const GruPlan&) = delete;

 private:
  GruPlan() = default;
  Status fold();
  Status prove();

  GruCell cell_;
  std::vector<int32_t> w_, r_;  // codes minus zero points
  std::vector<int64_t> x_bias_, h_bias_;
  std::vector<int32_t> x_shift_, h_shift_;
  GruSpec spec_;
  GruWidths widths_;
};

}  // namespace lowbit
