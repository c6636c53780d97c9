#pragma once
// Integers of canonical rows with the format as an argument: for kernels that run once per weight, where one kernel for
// all formats is worth more than its branches cost.

#include "format/formats.h"

namespace lowbit::cuda {

/// Sets `value` and returns true when F is `format`.
template <class F>
__device__ __forceinline__ bool integer_value_if(FormatId format, const uint8_t* row, int64_t k, int& value) {
  if (F::kId != format) return false;
  const uint8_t* const pack = row + k / F::kElems * F::kPackBytes;
  if constexpr (F::Codec::kKind == CodecKind::kInteger) {
    value = int(F::decode(pack, int(k % F::kElems)));
  } else {
    value = int(F::code_at(pack, int(k % F::kElems)));
  }
  return true;
}

template <class... F>
__device__ __forceinline__ int integer_value_of(TypeList<F...>, FormatId format, const uint8_t* row, int64_t k) {
  int value = 0;
  (void)(integer_value_if<F>(format, row, k, value) || ...);
  return value;
}

/// The value at column k of a canonical row, or its code where values are no integers.
__device__ __forceinline__ int integer_value(FormatId format, const uint8_t* row, int64_t k) {
  return integer_value_of(RandomAccessFormatList{}, format, row, k);
}

}  // namespace lowbit::cuda
