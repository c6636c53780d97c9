#pragma once
// The type of a linear layer's x: decided here alone, from the weight and what the caller asked for, and never by the
// device. Otherwise two devices would run two models.

#include <cstdint>
#include <string>

#include "format/qtensor.h"
#include "kernels/api.h"
#include "ops/activation_rounding.h"

namespace lowbit {

/// A caller's wish.
struct XPolicy {
  Activation activation = Activation::kInt8;
  int64_t group = 0;  // kInt8, kFp8: columns of x per scale; 0: one scale per row (kInt8)
  /// kInt8: ternary and binary weights with one scale per row take one scale per token, as such networks are trained.
  bool as_trained = false;
  ActivationRounding rounding = {};  // codes: kInt8; halves: kF32
};

/// The decision for one layer.
struct XSpec {
  Activation activation = Activation::kF32;
  int64_t group = 0;
  ActivationRounding rounding = {};
  std::string reason;  // why not what was asked for; empty: it is
};

/// fp8 only for fp8 weights without zero points, 128 columns a scale (docs/adr/0127-fp8-activations-in-models.md). int8
/// only where sums are those of integers, which it keeps exact: not for dense weights and fp8, nor for all codebooks
/// (why_float_sums() of ops/matmul.h). Halves go with every weight. as_trained:
/// docs/adr/0047-scales-of-x-as-trained.md.
XSpec choose_x(const QTensor& w, const XPolicy& policy);

}  // namespace lowbit
