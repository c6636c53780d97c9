#include "model/linear.h"

#include "base/try.h"

namespace lowbit {

Activation layer_activation(FormatId weights, Activation wanted) {
  return format_info(weights).kind == ValueKind::kInteger ? wanted : Activation::kF32;
}

void LinearInput::set(const float* x, int64_t m, int64_t k) {
  x_ = x;
  m_ = m;
  k_ = k;
  float_rows_.ready = int8_rows_.ready = false;
}

Status LinearInput::run(const Linear& linear, float* y, int64_t ldy) {
  if (observer_) observer_(linear.name, x_, m_, k_);
  Rows& input = linear.plan.activation() == Activation::kInt8 ? int8_rows_ : float_rows_;
  if (!input.ready) {
    LOWBIT_TRY(input.rows.prepare(linear.plan.activation(), x_, m_, k_, k_, isa_, *pool_));
    input.ready = true;
  }
  return linear.plan.run(input.rows, linear.bias_or_null(), y, ldy, *pool_);
}

}  // namespace lowbit
