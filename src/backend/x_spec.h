#pragma once
// The type of a linear layer's x: decided here alone, from the weight and what the caller asked for, and never by the
// device. Otherwise two devices would run two models.

#include <cstdint>
#include <string>

#include "format/qtensor.h"
#include "kernels/api.h"
#include "ops/activation_rounding.h"

namespace lowbit {

struct MatmulOptions;  // ops/matmul.h

/// A caller's wish.
struct XPolicy {
  Activation activation = Activation::kInt8;
  int64_t group = 0;  // kInt8, kFp8: columns of x per scale; 0: one scale per row (kInt8)
  /// kInt8: scales as the weight suggests. Ternary and binary weights with one scale per row take one per token, as
  /// such networks are trained; integers of four bits or fewer in groups of 128 one exact scale for these.
  bool by_weight = false;
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
/// (why_float_sums() of ops/matmul.h). Halves go with every weight. by_weight:
/// docs/adr/0047-scales-of-x-as-trained.md, docs/adr/0225-scales-of-x-that-sums-keep-exact.md.
XSpec choose_x(const QTensor& w, const XPolicy& policy);

/// Of a plan on the host, but for its instruction set.
MatmulOptions host_options(const XSpec& x);

}  // namespace lowbit
