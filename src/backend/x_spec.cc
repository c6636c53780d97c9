#include "backend/x_spec.h"

#include "ops/matmul.h"

namespace lowbit {
namespace {

/// Networks of such weights are trained with one scale of x per token.
bool trained_per_token(const QTensor& w) {
  const bool low =
      w.format == FormatId::kTernary || w.format == FormatId::kTernaryPacked || w.format == FormatId::kBinary;
  return low && w.group() >= w.k;
}

}  // namespace

XSpec choose_x(const QTensor& w, const XPolicy& policy) {
  XSpec x;
  x.group = policy.by_weight && trained_per_token(w) ? 0 : policy.group;
  x.rounding = policy.rounding;
  if (policy.activation == Activation::kF32 || is_dense(w.format)) return x;
  if (policy.activation == Activation::kFp8) {
    if (w.format != FormatId::kFp8) {
      x.reason = std::string("f32 activations: fp8 ones go with fp8 weights, not ") + format_info(w.format).name;
    } else if (w.scaling.zero != ZeroKind::kNone) {
      x.reason = "f32 activations: fp8 ones go with weights without zero points";
    } else {
      x.activation = Activation::kFp8;
    }
    return x;
  }
  const std::string floats = why_float_sums(w, x.group);
  if (floats.empty()) {
    x.activation = policy.activation;
    x.rounding.exact_scales = policy.by_weight && policy.rounding.is_default() && takes_exact_scales(w);
  } else {
    x.reason = "f32 activations: " + floats;
  }
  return x;
}

MatmulOptions host_options(const XSpec& x) {
  MatmulOptions options;
  options.activation = x.activation;
  options.exact_scales = x.rounding.exact_scales;
  options.activation_group = options.exact_scales ? kExactScaleColumns : x.group;
  return options;
}

}  // namespace lowbit
