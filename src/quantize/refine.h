#pragma once
// A row's scales and codes, improved against the full second moments. Internal to src/quantize.

#include "quantize/feedback.h"
#include "quantize/row_codes.h"

namespace lowbit {

class RowRefiner {
 public:
  /// `damping` is added to H's diagonal (absolute), as the feedback did.
  RowRefiner(const SecondMoments& moments, float damping);

  /// e H e^T without damping, for a row e [k].
  double output_energy(const float* e);

  /// The scales that minimize the loss for the row's codes, each rounded to its storage kind; kept only where the loss falls.
  void refit_scales(RowCodes& row, ScaleKind kind);

  /// Sweeps over the columns: each takes the code that minimizes the loss with all others fixed, until a sweep changes nothing
  /// (at most three).
  void descend(RowCodes& row);

 private:
  void start(const RowCodes& row);  // gradient_ = (w - q) H
  const float* h(int64_t i) const { return moments_->h.data() + i * moments_->k; }

  const SecondMoments* moments_;
  float damping_;
  std::vector<float> gradient_, by_group_;
};

}  // namespace lowbit
