#pragma once
// Rounding shifts of the integer GRU, and the end of its products: the bits of kernels/ref/gru.cc.

#include <cstdint>

#include "kernels/cpu/gru_packing.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// One shift for a whole tensor. In int32 the plan has proved that what is added and shifted fits.
template <class T>
struct UniformShift {
  int left, right;
  T add, odd;
  explicit UniformShift(int k) : left(k < 0 ? -k : 0), right(k > 0 ? k : 0) {
    // Where all values are below a half, any larger shift gives the same 0.
    constexpr int kMost = sizeof(T) == 4 ? 31 : 62;
    if (right > kMost) right = kMost;
    add = right > 0 ? T((T{1} << (right - 1)) - 1) : T{0};
    odd = right > 0;
  }
  __attribute__((always_inline)) T operator()(T v) const {
    v = T(v << left);
    return T((v + add + ((v >> right) & odd)) >> right);
  }
};

/// In double: a power of two, then a number that leaves no fraction bits.
template <>
struct UniformShift<double> {
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  double scale;
  explicit UniformShift(int k) {
    const uint64_t bits = uint64_t(1023 - k) << 52;
    __builtin_memcpy(&scale, &bits, 8);
  }
  __attribute__((always_inline)) double operator()(double v) const { return (v * scale + kMagic) - kMagic; }
};

template <class T>
static inline __attribute__((always_inline)) T gru_clamp(T v, T low, T high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

/// centered[r] = clamp(rs(sum + bias, shift)) for rows [first, first + count) of one product; `sums` is that of row
/// `first`, limb l lies l * limb_stride further.
template <class T, class Sum>
void finish_product(const PackedProduct& p, const uint8_t* base, const Sum* sums, int64_t limb_stride, int64_t first,
                    int64_t count, int32_t* centered) {
  const auto* left = reinterpret_cast<const int32_t*>(base + p.left) + first;
  const auto* right = reinterpret_cast<const int32_t*>(base + p.right) + first;
  const T low = p.low, high = p.high;
  const Sum* upper = sums + (p.limbs - 1) * limb_stride;
  const T weight = p.limbs == 2 ? 256 : 0;
  const int down = p.down;
  centered += first;
  if constexpr (sizeof(T) == 4) {
    const auto* bias = reinterpret_cast<const int32_t*>(base + p.bias32) + first;
    for (int64_t r = 0; r < count; ++r) {
      // Unsigned: the parts may leave int32, the sum does not.
      const auto v = int32_t(
          (uint32_t(sums[r] >> down) + uint32_t(upper[r] >> down) * uint32_t(weight) + uint32_t(bias[r])) << left[r]);
      const int32_t k = right[r], odd = k > 0;
      const auto add = int32_t((uint32_t(odd) << ((k - odd) & 31)) - uint32_t(odd));
      centered[r] = gru_clamp<int32_t>((v + add + ((v >> k) & odd)) >> k, low, high);
    }
  } else if constexpr (T(0.5) != T(0)) {
    const auto* bias = reinterpret_cast<const int64_t*>(base + p.bias64) + first;
    for (int64_t r = 0; r < count; ++r) {
      const double v = double(sums[r] >> down) + double(upper[r] >> down) * weight + double(bias[r]);
      const int64_t bits = int64_t(1023 + left[r] - right[r]) << 52;
      double scale;
      __builtin_memcpy(&scale, &bits, 8);
      constexpr double kMagic = UniformShift<double>::kMagic;
      centered[r] = int32_t(gru_clamp<double>((v * scale + kMagic) - kMagic, low, high));
    }
  } else {
    const auto* bias = reinterpret_cast<const int64_t*>(base + p.bias64) + first;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t v =
          int64_t(uint64_t(int64_t(sums[r] >> down) + int64_t(upper[r] >> down) * weight + bias[r]) << left[r]);
      const int64_t k = right[r], odd = k > 0;
      const int64_t add = (odd << (k - odd)) - odd;
      centered[r] = int32_t(gru_clamp<int64_t>((v + add + ((v >> k) & odd)) >> k, low, high));
    }
  }
}

/// The epilogue where there is nothing but a bias and a right shift.
inline void finish_plain(const PackedProduct& p, const uint8_t* base, const int32_t* sums, int64_t first, int64_t count,
                         int32_t* centered) {
  const auto* bias = reinterpret_cast<const int32_t*>(base + p.bias32) + first;
  const auto* right = reinterpret_cast<const int32_t*>(base + p.right) + first;
  const auto* round = reinterpret_cast<const int32_t*>(base + p.round) + first;
  const int32_t low = p.low, high = p.high;
  int32_t* const to = centered + first;
  for (int64_t r = 0; r < count; ++r) {
    const auto v = int32_t(uint32_t(sums[r]) + uint32_t(bias[r]));
    const int32_t k = right[r];
    to[r] = gru_clamp<int32_t>((v + round[r] + ((v >> k) & (k < 1 ? k : 1))) >> k, low, high);
  }
}

/// The epilogue from sums in int32, in the cheapest numbers that hold the result.
inline void finish_rows(const PackedProduct& p, const uint8_t* base, const int32_t* sums, int64_t limb_stride,
                        int64_t first, int64_t count, int32_t* centered) {
  if (p.plain) return finish_plain(p, base, sums, first, count, centered);
  if (p.fits32) return finish_product<int32_t>(p, base, sums, limb_stride, first, count, centered);
  if (p.exact64) return finish_product<double>(p, base, sums, limb_stride, first, count, centered);
  finish_product<int64_t>(p, base, sums, limb_stride, first, count, centered);
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
