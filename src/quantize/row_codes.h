#pragma once
// One row while its codes are being chosen one at a time. Internal to src/quantize.

#include <cstdint>
#include <vector>

#include "quantize/block_fit.h"

namespace lowbit {

class RowCodes {
 public:
  /// Scales (and super-scales, of ScaleKind::kDouble) are changed in place by set_scales().
  RowCodes(const FitPlan& plan, const float* w, const ScaleRow& at);

  /// Gives column c the code whose real value is nearest to `target`; returns that real value.
  float choose(int64_t c, float target);
  /// scales [groups()] and supers as double_quantize makes them, or null. Real values follow.
  void set_scales(const float* scales, const float* supers);

  int64_t k() const { return plan_->k; }
  int64_t group() const { return group_; }
  int64_t groups() const { return plan_->scale_cols(); }
  const float* weights() const { return w_; }
  float scale(int64_t g) const { return scales_[g]; }
  float value(int64_t c) const { return plan_->grid.values[level_[static_cast<size_t>(c)]]; }  // in steps of the scale
  float real(int64_t c) const { return real_[static_cast<size_t>(c)]; }
  const std::vector<float>& reals() const { return real_; }
  void write(uint8_t* codes) const;

 private:
  float real_of(int64_t c) const;
  int64_t group_of(int64_t c) const { return static_cast<uint32_t>(c) / group_; }  // half the latency of 64 bits

  const FitPlan* plan_;
  const float* w_;
  float* scales_;
  float* supers_;
  const float* zeros_;
  uint32_t group_;
  std::vector<uint8_t> level_;
  std::vector<float> real_;
};

}  // namespace lowbit
