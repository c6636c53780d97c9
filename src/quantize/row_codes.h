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

  /// Gives column c the code whose real value is nearest to `target`; returns that real value. Not on a trellis.
  float choose(int64_t c, float target);
  /// Gives column c a code. On a trellis alone, where codes are not levels of the grid.
  void set(int64_t c, uint8_t code);
  uint8_t code(int64_t c) const { return code_of_level_[level_[static_cast<size_t>(c)]]; }
  /// scales [groups()] and supers as double_quantize makes them, or null. Real values follow.
  void set_scales(const float* scales, const float* supers);

  const FitPlan& plan() const { return *plan_; }
  int64_t k() const { return plan_->k; }
  int64_t group() const { return group_; }
  int64_t groups() const { return plan_->scale_cols(); }
  const float* weights() const { return w_; }
  float scale(int64_t g) const { return scales_[g]; }
  float scale_at(int64_t c) const { return scales_[group_of(c)]; }
  float value(int64_t c) const { return values_[level_[static_cast<size_t>(c)]]; }  // in steps of the scale
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
  const float* values_;           // by level: the grid's, or a trellis's table
  const uint8_t* code_of_level_;  // likewise
  std::vector<uint8_t> level_;
  std::vector<float> real_;
};

}  // namespace lowbit
