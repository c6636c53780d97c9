#pragma once
// The weight of a token when one is drawn: docs/numerics.md#sampling.

#include <cstdint>

#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// exp((logit - largest) / temperature) in steps of 2^-40, rounded down. Integers, so that sums have one result on
/// every device, whatever their order. `largest` weighs 2^40 even where it is infinite.
inline constexpr float kTokenWeightOne = 0x1p40f;
inline uint64_t token_weight(float logit, float largest, float temperature) {
  return uint64_t((logit == largest ? 1.0f : exp_f32((logit - largest) / temperature)) * kTokenWeightOne);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
