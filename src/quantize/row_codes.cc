#include "quantize/row_codes.h"

#include <algorithm>

namespace lowbit {

RowCodes::RowCodes(const FitPlan& plan, const float* w, const ScaleRow& at)
    : plan_(&plan),
      w_(w),
      scales_(at.scales),
      supers_(at.supers),
      zeros_(at.zeros),
      group_(static_cast<uint32_t>(plan.group())) {
  level_.assign(static_cast<size_t>(plan.k), static_cast<uint8_t>(plan.grid.zero_level));
  real_.resize(static_cast<size_t>(plan.k));
}

float RowCodes::real_of(int64_t c) const {
  const int64_t g = group_of(c);
  switch (plan_->options.scaling.zero) {
    case ZeroKind::kNone:
      break;
    case ZeroKind::kPointI8:
    case ZeroKind::kPointF16:
      return (value(c) - zeros_[g]) * scales_[g];
    case ZeroKind::kOffset:
      return value(c) * scales_[g] + zeros_[g];
  }
  return value(c) * scales_[g];
}

float RowCodes::choose(int64_t c, float target) {
  const int64_t g = group_of(c);
  const float scale = scales_[g];
  int level = plan_->grid.zero_level;
  if (scale != 0) {
    float v = target / scale;
    if (plan_->options.scaling.zero == ZeroKind::kOffset) v = (target - zeros_[g]) / scale;
    if (plan_->options.scaling.zero == ZeroKind::kPointI8 || plan_->options.scaling.zero == ZeroKind::kPointF16)
      v = target / scale + zeros_[g];
    level = plan_->grid.nearest(v);
  }
  level_[static_cast<size_t>(c)] = static_cast<uint8_t>(level);
  return real_[static_cast<size_t>(c)] = real_of(c);
}

void RowCodes::set_scales(const float* scales, const float* supers) {
  std::copy_n(scales, groups(), scales_);
  if (supers != nullptr) std::copy_n(supers, plan_->super_cols(), supers_);
  for (int64_t c = 0; c < k(); ++c) real_[static_cast<size_t>(c)] = real_of(c);
}

void RowCodes::write(uint8_t* codes) const {
  for (size_t c = 0; c < level_.size(); ++c) codes[c] = plan_->grid.codes[level_[c]];
}

}  // namespace lowbit
