#pragma once
// Which vector operation a gated product is.

#include "arch/spec.h"
#include "kernels/api.h"

namespace lowbit {

/// Null: no backend has it.
inline GluFunction glu_function(const VectorOps& ops, Glu glu) {
  switch (glu) {
    case Glu::kSilu:
      return ops.silu_mul;
    case Glu::kSquaredRelu:
      return ops.squared_relu_mul;
    case Glu::kGeluTanh:
      break;
  }
  return nullptr;
}

/// The error where there is no such function.
inline constexpr const char* kGluNames = "SiLU or squared ReLU";

}  // namespace lowbit
