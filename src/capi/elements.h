#pragma once
// Elements of a C program's arrays, and numbers of its enums.

#include <cstdint>
#include <cstring>

#include "base/float.h"
#include "lowbit/lowbit.h"

namespace lowbit::capi {

/// An enum of C may hold any number; reading one of C++ that is not its own is undefined.
template <class E>
int number_of(const E& e) {
  int number = 0;
  static_assert(sizeof number == sizeof e);
  std::memcpy(&number, &e, sizeof number);
  return number;
}

/// Element i of an array of LB_F32, LB_F16 or LB_BF16.
inline float read(const void* p, lb_type type, int64_t i) {
  if (type == LB_F32) return static_cast<const float*>(p)[i];
  const uint16_t half = static_cast<const uint16_t*>(p)[i];
  return type == LB_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}
inline void write(void* p, lb_type type, int64_t i, float v) {
  if (type == LB_F32) {
    static_cast<float*>(p)[i] = v;
  } else {
    static_cast<uint16_t*>(p)[i] = type == LB_F16 ? f32_to_f16(v) : f32_to_bf16(v);
  }
}

}  // namespace lowbit::capi
