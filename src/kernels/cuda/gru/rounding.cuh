#pragma once
// The rounding shift and the clamp on 32 bits.

#include <cstdint>

namespace lowbit::cuda::gru {

/// Right shift, half to even, where nothing but 0 is ever shifted by more than 31 places.
struct Shift32 {
  int left, right, add, odd;
  __device__ __forceinline__ explicit Shift32(int k)
      : left(k < 0 ? min(-k, 31) : 0),
        right(k > 0 ? min(k, 31) : 0),
        add(k > 0 ? (1 << (right - 1)) - 1 : 0),
        odd(k > 0) {}
  __device__ __forceinline__ int32_t operator()(int32_t v) const {
    v = int32_t(uint32_t(v) << left);
    return (v + add + ((v >> right) & odd)) >> right;
  }
};

template <class T>
__device__ __forceinline__ T clamp(T v, T low, T high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

}  // namespace lowbit::cuda::gru
