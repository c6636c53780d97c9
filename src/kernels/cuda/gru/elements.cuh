#pragma once
// Gates, tables and state on the device: kernels/ref/gru.cc in floats, where the plan has proved that they are exact.

#include "base/rounding.h"
#include "kernels/cuda/gru/device_cell.h"
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/gru/rounding.cuh"

namespace lowbit::cuda::gru {

/// Integers in f32. Adding 1.5 * 2^23 leaves no fraction bits and rounds half to even; scales are powers of two. A
/// number is *biased* while that constant is in it: comparing, shifting and storing do not need it gone.
struct Floats {
  using T = float;
  static constexpr Number kNumber = Number::kF32;
  static constexpr float kMagic = 12582912.0f, kTwo23 = 8388608.0f;
  static constexpr int kDigits = 24;
  __device__ __forceinline__ static T power(int k) { return __int_as_float((127 + k) << 23); }
  __device__ __forceinline__ static T add(T a, T b) { return __fadd_rn(a, b); }
  __device__ __forceinline__ static T multiply(T a, T b) { return __fmul_rn(a, b); }
  __device__ __forceinline__ static T multiply_add(T a, T b, T c) { return __fmaf_rn(a, b, c); }
  __device__ __forceinline__ static T clamp(T v, T low, T high) { return fminf(fmaxf(v, low), high); }
  /// A code plus `centre`: word holds the code below kExponent, which is to say 2^23 and the code.
  static constexpr uint32_t kExponent = 0x4b000000u;
  __device__ __forceinline__ static T from_word(uint32_t word, T centre) {
    return __fadd_rn(__int_as_float(int(word)), centre - kTwo23);
  }
  /// A biased number, modulo 2^22.
  __device__ __forceinline__ static uint32_t bits(T biased) { return uint32_t(__float_as_int(biased)); }
  __device__ __forceinline__ static T product(int sum, int, T) { return float(sum); }
  /// Where a table's entry of 4 bytes lies, `origin` being address_of_zero(): the bits of a denormal number, exactly.
  __device__ __forceinline__ static T address_of_zero(uint32_t address) { return __int_as_float(int(address)); }
  __device__ __forceinline__ static uint32_t address(T centered, T origin) {
    return uint32_t(__float_as_int(__fmaf_rn(centered, __int_as_float(4), origin)));
  }
};

/// Numbers in f64, rounded with 1.5 * 2^52.
struct Doubles {
  using T = double;
  static constexpr Number kNumber = Number::kF64;
  static constexpr double kMagic = 6755399441055744.0, kTwo52 = 4503599627370496.0;
  static constexpr int kDigits = 53;
  __device__ __forceinline__ static T power(int k) { return __hiloint2double((1023 + k) << 20, 0); }
  __device__ __forceinline__ static T add(T a, T b) { return __dadd_rn(a, b); }
  __device__ __forceinline__ static T multiply(T a, T b) { return __dmul_rn(a, b); }
  __device__ __forceinline__ static T multiply_add(T a, T b, T c) { return __fma_rn(a, b, c); }
  __device__ __forceinline__ static T clamp(T v, T low, T high) {
    v = v < low ? low : v;
    return v > high ? high : v;
  }
  static constexpr uint32_t kExponent = 0;
  __device__ __forceinline__ static T from_word(uint32_t word, T centre) {
    return __dadd_rn(__hiloint2double(0x43300000, int(word)), centre - kTwo52);
  }
  __device__ __forceinline__ static uint32_t bits(T biased) { return uint32_t(__double2loint(biased)); }
  __device__ __forceinline__ static T from_int(int v) {
    return __dadd_rn(__hiloint2double(0x43300000, int(uint32_t(v) ^ 0x80000000u)), -(kTwo52 + 2147483648.0));
  }
  __device__ __forceinline__ static T product(int low_limb, int high_limb, T bias) {
    return __dadd_rn(__fma_rn(256.0, from_int(high_limb), from_int(low_limb)), bias);
  }
  __device__ __forceinline__ static T address_of_zero(uint32_t) { return 0; }
};

/// Gates and state of an element on numbers N. What is constant for a cell is found once and held in registers.
template <class N>
struct Elements {
  using T = typename N::T;
  T ih[3], ih_centre;        // scales to the gates' inputs
  T hu, hr, back_u, back_r;  // biased hh times hu plus back_u: hh shifted, biased
  T rh, n_h, to_h, one;
  T low_hh, high_hh, low_h, high_h;  // of biased numbers
  T low[3], high[3];                 // of the gates' inputs

  __device__ __forceinline__ static int between(const Cell& c, int from, int to) {
    return c.grid[from].shift - c.grid[to].shift;
  }
  __device__ __forceinline__ static T lowest(const GruGrid& g) { return T(g.lo - g.zp); }
  __device__ __forceinline__ static T highest(const GruGrid& g) { return T(g.hi - g.zp); }
  /// Codes have 16 bits: a larger right shift gives the same 0, and magic (1 - scale) stays exact.
  __device__ __forceinline__ static int limited(int k) { return min(k, N::kDigits - 2); }

  __device__ __forceinline__ explicit Elements(const Cell& c)
      : ih{N::power(-between(c, kSlotIh, kSlotUi)), N::power(-between(c, kSlotIh, kSlotRi)),
           N::power(-between(c, kSlotIh, kSlotNi))},
        ih_centre(lowest(c.grid[kSlotIh])),
        hu(N::power(-limited(between(c, kSlotHh, kSlotUi)))),
        hr(N::power(-limited(between(c, kSlotHh, kSlotRi)))),
        back_u(N::multiply_add(-N::kMagic, hu, N::kMagic)),
        back_r(N::multiply_add(-N::kMagic, hr, N::kMagic)),
        rh(N::power(-(c.grid[kSlotR].shift + between(c, kSlotHh, kSlotNi)))),
        n_h(N::power(-between(c, kSlotN, kSlotH))),
        to_h(N::power(-c.grid[kSlotU].shift)),
        one(N::power(c.grid[kSlotU].shift)),
        low_hh(N::kMagic + T(c.r.low)),
        high_hh(N::kMagic + T(c.r.high)),
        low_h(N::kMagic + lowest(c.grid[kSlotH])),
        high_h(N::kMagic + highest(c.grid[kSlotH])) {
    constexpr int kInputs[3] = {kSlotUi, kSlotRi, kSlotNi};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      low[i] = lowest(c.grid[kInputs[i]]);
      high[i] = highest(c.grid[kInputs[i]]);
      hold(ih[i]), hold(low[i]), hold(high[i]);
    }
    hold(ih_centre), hold(hu), hold(hr), hold(back_u), hold(back_r), hold(rh), hold(to_h), hold(one);
    hold(low_hh), hold(high_hh), hold(low_h), hold(high_h);
  }

  __device__ __forceinline__ static T shifted(T v, T scale) {
    return N::add(N::multiply_add(v, scale, N::kMagic), -N::kMagic);
  }
  /// A gate's share of an offset code of ih, less the bias of the numbers that are added to it.
  __device__ __forceinline__ T part(int gate, uint32_t word) const {
    return part_of(gate, N::from_word(word, ih_centre));
  }
  __device__ __forceinline__ T part_of(int gate, T v) const {
    return N::add(N::multiply_add(v, ih[gate], N::kMagic), -2 * N::kMagic);
  }
  // Centered inputs of the tables, from parts and R h, shifted and biased. Then the new state, biased as the old one.
  __device__ __forceinline__ T clamped_hh(T shifted_hh) const { return N::clamp(shifted_hh, low_hh, high_hh); }
  __device__ __forceinline__ T reset_input(T part, T hh) const {
    return N::clamp(N::add(N::multiply_add(clamped_hh(hh), hr, back_r), part), low[1], high[1]);
  }
  __device__ __forceinline__ T update_input(T part, T hh) const {
    return N::clamp(N::add(N::multiply_add(clamped_hh(hh), hu, back_u), part), low[0], high[0]);
  }
  __device__ __forceinline__ T new_input(T part, T hh, T r) const {
    const T product = N::multiply(r, N::add(clamped_hh(hh), -N::kMagic));
    return N::clamp(N::add(N::multiply_add(product, rh, N::kMagic), part), low[2], high[2]);
  }
  __device__ __forceinline__ T kept(T u, T h) const { return N::multiply(u, N::add(h, -N::kMagic)); }
  /// `n` is aligned with h.
  __device__ __forceinline__ T next_state(T u, T n, T kept_h) const {
    const T next = N::multiply_add(N::add(one, -u), n, kept_h);
    return N::clamp(N::multiply_add(next, to_h, N::kMagic), low_h, high_h);
  }
  /// All of it. `hh` goes from gate to R h; look_up(table, x) from centered to centered.
  template <class Hh, class LookUp>
  __device__ __forceinline__ T operator()(const T (&parts)[3], const Hh& hh, T h, const LookUp& look_up) const {
    const T r = look_up(1, reset_input(parts[1], hh(1)));
    const T u = look_up(0, update_input(parts[0], hh(0)));
    const T x = new_input(parts[2], hh(2), r);
    const T kept_h = kept(u, h);
    return next_state(u, look_up(2, x), kept_h);
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
