#include "quantize/row_codes.h"

#include <algorithm>

namespace lowbit {
namespace {

constexpr uint8_t kSameCode[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace

RowCodes::RowCodes(const FitPlan& plan, const float* w, const ScaleRow& at)
    : plan_(&plan),
      w_(w),
      scales_(at.scales),
      supers_(at.supers),
      zeros_(at.zeros),
      group_(static_cast<uint32_t>(plan.group())),
      values_(plan.trellis != nullptr ? plan.options.codebook.data() : plan.grid.values.data()),
      code_of_level_(plan.trellis != nullptr ? kSameCode : plan.grid.codes.data()) {
  level_.assign(static_cast<size_t>(plan.k),
                plan.trellis != nullptr ? uint8_t{0} : static_cast<uint8_t>(plan.grid.zero_level));
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

void RowCodes::set(int64_t c, uint8_t code) {
  level_[static_cast<size_t>(c)] = code;
  real_[static_cast<size_t>(c)] = real_of(c);
}

void RowCodes::set_scales(const float* scales, const float* supers) {
  std::copy_n(scales, groups(), scales_);
  if (supers != nullptr) std::copy_n(supers, plan_->super_cols(), supers_);
  for (int64_t c = 0; c < k(); ++c) real_[static_cast<size_t>(c)] = real_of(c);
}

void RowCodes::write(uint8_t* codes) const {
  for (int64_t c = 0; c < k(); ++c) codes[c] = code(c);
}

}  // namespace lowbit
