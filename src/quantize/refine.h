#pragma once
// A row's scales and codes, improved against the full second moments. Internal to src/quantize.

#include <vector>

#include "quantize/feedback.h"
#include "quantize/row_codes.h"

namespace lowbit {

/// Works on H with `damping` (absolute) added to its diagonal, as the feedback did; reports losses without it.
class RowRefiner {
 public:
  RowRefiner(const SecondMoments& moments, float damping, RowCodes& row);

  /// The scales that minimize the loss for the row's codes, each rounded to its storage kind; kept only where the loss falls.
  void refit_scales(ScaleKind kind);

  /// Sweeps over the columns: each takes the code that minimizes the loss with all others fixed, until a sweep changes nothing
  /// (at most three).
  void descend();

  double output_error();         // (w - q) H (w - q)^T
  double output_energy() const;  // w H w^T

 private:
  const float* h(int64_t i) const { return moments_->h.data() + i * moments_->k; }
  void set_gradient_from_reals();
  void set_gradient_from_groups();

  const SecondMoments* moments_;
  float damping_;
  RowCodes* row_;
  std::vector<float> hw_;        // w (H + damping)
  std::vector<float> gradient_;  // (w - q) (H + damping)
  bool gradient_valid_ = false;
  std::vector<float> by_group_;  // [groups, k]: v_g (H + damping), v_g the values of group g and zeros elsewhere
};

}  // namespace lowbit
