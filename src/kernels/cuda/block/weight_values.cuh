#pragma once
// Weights as ValueType has them, decoded a word at a time.

#include "base/float.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda_matmul_api.h"

namespace lowbit::cuda::block {

/// Columns of a word, and of 16 bytes.
template <ValueType kType>
constexpr int kWordColumns = kType == ValueType::kF32                                ? 1
                             : kType == ValueType::kF16 || kType == ValueType::kBf16 ? 2
                                                                                     : 4;
template <ValueType kType>
constexpr int kPieceColumns = 4 * kWordColumns<kType>;

__device__ __forceinline__ void e4m3_values(uint32_t word, float (&v)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair[2];  // of f16, which holds all of E4M3
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair[0]) : "h"(static_cast<uint16_t>(word)));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair[1]) : "h"(static_cast<uint16_t>(word >> 16)));
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = f16_value(static_cast<uint16_t>(pair[i / 2] >> (16 * (i % 2))));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = e4m3_to_f32(static_cast<uint8_t>(word >> (8 * i)));
#endif
}

template <ValueType kType>
__device__ __forceinline__ void values_of_word(uint32_t word, float (&v)[kWordColumns<kType>]) {
  if constexpr (kType == ValueType::kF32) {
    v[0] = __uint_as_float(word);
  } else if constexpr (kType == ValueType::kBf16) {
    v[0] = __uint_as_float(word << 16), v[1] = __uint_as_float(word & 0xffff0000u);
  } else if constexpr (kType == ValueType::kF16) {
    v[0] = f16_value(static_cast<uint16_t>(word)), v[1] = f16_value(static_cast<uint16_t>(word >> 16));
  } else if constexpr (kType == ValueType::kE4m3) {
    e4m3_values(word, v);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = static_cast<float>(static_cast<int8_t>(word >> (8 * i)));
  }
}

/// fn.operator()<type>(), on the host.
template <class Fn>
auto with_value_type(ValueType type, const Fn& fn) {
  switch (type) {
    case ValueType::kInt8:
      return fn.template operator()<ValueType::kInt8>();
    case ValueType::kE4m3:
      return fn.template operator()<ValueType::kE4m3>();
    case ValueType::kF16:
      return fn.template operator()<ValueType::kF16>();
    case ValueType::kBf16:
      return fn.template operator()<ValueType::kBf16>();
    case ValueType::kF32:
      break;
  }
  return fn.template operator()<ValueType::kF32>();
}

}  // namespace lowbit::cuda::block
