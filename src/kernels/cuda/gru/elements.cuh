#pragma once
// Gates, tables and state on the device: kernels/ref/gru.cc in floats where the plan has proved that they are exact, else in
// int64.

#include "base/rounding.h"
#include "kernels/cuda/gru/device_cell.h"

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

/// 64-bit integers: right for whatever the plan lets pass.
struct Integers {
  using T = int64_t;
  static constexpr Number kNumber = Number::kInt64;
  struct Shift {
    int k;
    __device__ __forceinline__ explicit Shift(int shift) : k(shift) {}
    __device__ __forceinline__ T operator()(T v) const { return rounding_shift(v, k); }
  };
  __device__ __forceinline__ static T add(T a, T b) { return a + b; }
  __device__ __forceinline__ static T multiply(T a, T b) { return a * b; }
  __device__ __forceinline__ static T multiply_add(T a, T b, T c) { return a * b + c; }
  __device__ __forceinline__ static T clamp(T v, T low, T high) { return v < low ? low : v > high ? high : v; }
  __device__ __forceinline__ static T from_code(uint32_t code) { return T(code); }
  /// What code_of() wants instead of `zero`, the distance of a centered number from its code.
  __device__ __forceinline__ static T code_base(int32_t zero) { return zero; }
  __device__ __forceinline__ static uint32_t code_of(T centered, T base) { return uint32_t(centered + base); }
  __device__ __forceinline__ static T product(int low_limb, int high_limb, T bias) {
    return bias + low_limb + T{256} * high_limb;
  }
};

/// Integers in f32: adding 1.5 * 2^23 leaves no fraction bits and rounds half to even; scales are powers of two.
struct Floats {
  using T = float;
  static constexpr Number kNumber = Number::kF32;
  static constexpr float kMagic = 12582912.0f, kTwo23 = 8388608.0f;
  struct Shift {
    float scale;
    __device__ __forceinline__ explicit Shift(int k) { scale = __int_as_float((127 - k) << 23); }
    __device__ __forceinline__ T operator()(T v) const { return __fadd_rn(__fmaf_rn(v, scale, kMagic), -kMagic); }
  };
  __device__ __forceinline__ static T add(T a, T b) { return __fadd_rn(a, b); }
  __device__ __forceinline__ static T multiply(T a, T b) { return __fmul_rn(a, b); }
  __device__ __forceinline__ static T multiply_add(T a, T b, T c) { return __fmaf_rn(a, b, c); }
  __device__ __forceinline__ static T clamp(T v, T low, T high) { return fminf(fmaxf(v, low), high); }
  __device__ __forceinline__ static T from_code(uint32_t code) { return float(code); }
  __device__ __forceinline__ static T code_base(int32_t zero) { return kTwo23 + float(zero); }
  __device__ __forceinline__ static uint32_t code_of(T centered, T base) {
    return uint32_t(__float_as_int(__fadd_rn(centered, base))) & 0x7fffff;
  }
  __device__ __forceinline__ static T product(int sum, int, T) { return float(sum); }
};

/// The same in f64, with 1.5 * 2^52.
struct Doubles {
  using T = double;
  static constexpr Number kNumber = Number::kF64;
  static constexpr double kMagic = 6755399441055744.0, kTwo52 = 4503599627370496.0;
  struct Shift {
    double scale;
    __device__ __forceinline__ explicit Shift(int k) { scale = __hiloint2double((1023 - k) << 20, 0); }
    __device__ __forceinline__ T operator()(T v) const { return __dadd_rn(__fma_rn(v, scale, kMagic), -kMagic); }
  };
  __device__ __forceinline__ static T add(T a, T b) { return __dadd_rn(a, b); }
  __device__ __forceinline__ static T multiply(T a, T b) { return __dmul_rn(a, b); }
  __device__ __forceinline__ static T multiply_add(T a, T b, T c) { return __fma_rn(a, b, c); }
  __device__ __forceinline__ static T clamp(T v, T low, T high) {
    v = v < low ? low : v;
    return v > high ? high : v;
  }
  __device__ __forceinline__ static T from_code(uint32_t code) {
    return __dadd_rn(__hiloint2double(0x43300000, int(code)), -kTwo52);
  }
  __device__ __forceinline__ static T code_base(int32_t zero) { return kTwo52 + double(zero); }
  __device__ __forceinline__ static uint32_t code_of(T centered, T base) {
    return uint32_t(__double2loint(__dadd_rn(centered, base)));
  }
  __device__ __forceinline__ static T from_int(int v) {
    return __dadd_rn(__hiloint2double(0x43300000, int(uint32_t(v) ^ 0x80000000u)), -(kTwo52 + 2147483648.0));
  }
  __device__ __forceinline__ static T product(int low_limb, int high_limb, T bias) {
    return __dadd_rn(__fma_rn(256.0, from_int(high_limb), from_int(low_limb)), bias);
  }
};

/// Gates and state of an element on numbers N. What is constant for a cell is found once.
template <class N>
struct Elements {
  using T = typename N::T;
  typename N::Shift ih_u, hh_u, ih_r, hh_r, ih_n, rh_n, n_h, to_h;
  T one, ih_centre, low_u, high_u, low_r, high_r, low_n, high_n, low_h, high_h;

  __device__ __forceinline__ static int between(const Cell& c, int from, int to) {
    return c.grid[from].shift - c.grid[to].shift;
  }
  __device__ __forceinline__ static T low(const GruGrid& g) { return T(g.lo - g.zp); }
  __device__ __forceinline__ static T high(const GruGrid& g) { return T(g.hi - g.zp); }

  __device__ __forceinline__ explicit Elements(const Cell& c)
      : ih_u(between(c, kSlotIh, kSlotUi)),
        hh_u(between(c, kSlotHh, kSlotUi)),
        ih_r(between(c, kSlotIh, kSlotRi)),
        hh_r(between(c, kSlotHh, kSlotRi)),
        ih_n(between(c, kSlotIh, kSlotNi)),
        rh_n(c.grid[kSlotR].shift + between(c, kSlotHh, kSlotNi)),
        n_h(between(c, kSlotN, kSlotH)),
        to_h(c.grid[kSlotU].shift),
        one(T(int64_t{1} << c.grid[kSlotU].shift)),
        ih_centre(low(c.grid[kSlotIh])),
        low_u(low(c.grid[kSlotUi])),
        high_u(high(c.grid[kSlotUi])),
        low_r(low(c.grid[kSlotRi])),
        high_r(high(c.grid[kSlotRi])),
        low_n(low(c.grid[kSlotNi])),
        high_n(high(c.grid[kSlotNi])),
        low_h(low(c.grid[kSlotH])),
        high_h(high(c.grid[kSlotH])) {}

  /// Offset codes of ih, centered hh and h; returns the centered new h. look_up(table, x) goes from centered to centered.
  template <class LookUp>
  __device__ __forceinline__ T operator()(T iu, T ir, T in, T hu, T hr, T hn, T h, const LookUp& look_up) const {
    iu = N::add(iu, ih_centre), ir = N::add(ir, ih_centre), in = N::add(in, ih_centre);
    const T r = look_up(1, N::clamp(N::add(ih_r(ir), hh_r(hr)), low_r, high_r));
    const T u = look_up(0, N::clamp(N::add(ih_u(iu), hh_u(hu)), low_u, high_u));
    const T n = look_up(2, N::clamp(N::add(ih_n(in), rh_n(N::multiply(r, hn))), low_n, high_n));
    const T sum = N::multiply_add(u, h, N::multiply(N::add(one, -u), n_h(n)));
    return N::clamp(to_h(sum), low_h, high_h);
  }
};

/// Distance of a centered number from its offset code.
__device__ __forceinline__ int32_t zero_of(const GruGrid& g) { return g.zp - g.lo; }

/// Row of x, ih and y of step s of a sequence.
__device__ __forceinline__ int64_t row_of(const GruSequences& s, int64_t step, int32_t sequence, int32_t length) {
  const int64_t t = s.reverse ? length - 1 - step : step;
  return s.batch_first ? sequence * s.steps + t : t * s.batch + sequence;
}

}  // namespace lowbit::cuda::gru
