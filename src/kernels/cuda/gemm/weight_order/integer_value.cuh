#pragma once
// Integer values of canonical rows with the format as an argument: for kernels that run once per weight, where one
// kernel for all formats is worth more than its branches cost.

#include "format/formats.h"

namespace lowbit::cuda {

/// Sets `value` and returns true when F is `format`. Of a table it is the index; formats whose values are no integers
/// never are.
template <class F>
__device__ __forceinline__ bool integer_value_if(FormatId format, const uint8_t* row, int64_t k, int& value) {
  if constexpr (F::Codec::kKind == CodecKind::kInteger) {
    if (F::kId != format) return false;
    value = int(F::decode(row + k / F::kElems * F::kPackBytes, int(k % F::kElems)));
    return true;
  } else if constexpr (F::Codec::kKind == CodecKind::kTable) {
    if (F::kId != format) return false;
    value = int(F::code_at(row + k / F::kElems * F::kPackBytes, int(k % F::kElems)));
    return true;
  } else {
    return false;
  }
}

template <class... F>
__device__ __forceinline__ int integer_value_of(TypeList<F...>, FormatId format, const uint8_t* row, int64_t k) {
  int value = 0;
  (void)(integer_value_if<F>(format, row, k, value) || ...);
  return value;
}

/// The integer at column k of a canonical row.
__device__ __forceinline__ int integer_value(FormatId format, const uint8_t* row, int64_t k) {
  return integer_value_of(RandomAccessFormatList{}, format, row, k);
}

}  // namespace lowbit::cuda
