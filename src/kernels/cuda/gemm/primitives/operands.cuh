#pragma once
// Properties of a kind of activations on tensor cores: the type of its sums and the bytes of an element.

#include "kernels/cuda/gemm/gemm.h"

namespace lowbit::cuda {

template <GemmActivation X>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<GemmActivation::kInt8> {
  using Type = int;
};
template <>
struct SumOf<GemmActivation::kBit> {
  using Type = int;
};

/// Sums are integers and exact.
template <GemmActivation X>
inline constexpr bool kIntegers = X == GemmActivation::kInt8 || X == GemmActivation::kBit;
template <GemmActivation X>
inline constexpr int kXBytes = kIntegers<X> ? 1 : 2;  // bits: eight at a time

}  // namespace lowbit::cuda
