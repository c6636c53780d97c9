#pragma once
// VectorOps for any instruction set that has 16 lanes, in one vector or two: what kernels/ref/vector_ops.cc does, 16
// elements at a time. `L` is the vocabulary (kernels/cpu/avx2/lanes.h, kernels/cpu/avx512/lanes.h). Lane i holds
// partial sum i, so the order of every sum is the reference's. The last n % 16 elements take the same operations on the
// first lanes alone.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/lane_loops.h"
#include "kernels/token_weight.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct LaneOps : LaneLoops<L> {
  using F = typename L::F;
  using I = typename L::I;
  using LaneLoops<L>::each, LaneLoops<L>::exp, LaneLoops<L>::load, LaneLoops<L>::store;

  static float dot_f32(const float* a, const float* b, int64_t n) {
    F s = L::zero();
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          s = count == kLanes
                  ? L::fma(L::load(a + i), L::load(b + i), s)
                  : L::keep_first(L::fma(L::load_first(a + i, count), L::load_first(b + i, count), s), s, count);
        });
    return L::reduce(s);
  }

  /// The squares of the first n of 64 elements onto as many sums.
  __attribute__((always_inline)) static void add_squares(const float* x, int64_t n, F (&s)[4]) {
    for (int v = 0; v < 4 && n > v * kLanes; ++v) {
      const F of = load(x + v * kLanes, n - v * kLanes < kLanes ? int(n - v * kLanes) : kLanes);
      s[v] = L::fma(of, of, s[v]);
    }
  }

  /// The norm's sums, half of them at a time, so that they are in registers.
  static float sum_of_squares(const float* x, int64_t n) {
    constexpr int kHalf = 4 * kLanes;
    static_assert(kNormSums == 2 * kHalf);
    float halves[2] = {};
    for (int half = 0; half < 2 && half * kHalf < n; ++half) {
      F s[4] = {L::zero(), L::zero(), L::zero(), L::zero()};
      int64_t i = half * kHalf;
      for (; i + kHalf <= n; i += kNormSums) add_squares(x + i, kHalf, s);
      if (i < n) add_squares(x + i, n - i, s);
      halves[half] = L::reduce_neighbours(s);
    }
    return halves[0] + halves[1];
  }

  static float rms_factor(const float* x, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / float(n) + eps);
  }

  static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
    const F r = L::set(rms_factor(x, n, eps));
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          store(y + i, L::mul(L::mul(load(x + i, count), r), load(weight + i, count)), count);
        });
  }

  static void rope(float* x, const float* cos, const float* sin, int64_t half) {
    each(
        half, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F a = load(x + i, count), b = load(x + half + i, count);
          const F c = load(cos + i, count), s = load(sin + i, count);
          store(x + i, L::sub(L::mul(a, c), L::mul(b, s)), count);
          store(x + half + i, L::add(L::mul(b, c), L::mul(a, s)), count);
        });
  }

  static void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
    const F one = L::set(1.0f);
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F g = load(gate + i, count);
          store(y + i, L::mul(L::div(g, L::add(one, exp(L::negate(g)))), load(up + i, count)), count);
        });
  }

  static void squared_relu_mul(const float* gate, const float* up, int64_t n, float* y) {
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F r = L::max(L::zero(), load(gate + i, count));  // its second argument where either is NaN
          store(y + i, L::mul(L::mul(r, r), load(up + i, count)), count);
        });
  }

  static void add(const float* x, int64_t n, float* y) {
    each(
        n, [&](int64_t i, int count)
               __attribute__((always_inline)) { store(y + i, L::add(load(y + i, count), load(x + i, count)), count); });
  }

  static void scale(float* x, float a, int64_t n) {
    const F av = L::set(a);
    each(
        n, [&](int64_t i, int count)
               __attribute__((always_inline)) { store(x + i, L::mul(load(x + i, count), av), count); });
  }

  /// The first four steps stay inside a vector, the others take two.
  static void hadamard(float* x, int64_t n, int64_t block) {
    const float last = hadamard_scale(block);
    if (block < kLanes) {
      for (int64_t width = 1; width < block; width *= 2)
        for (int64_t begin = 0; begin < n; begin += 2 * width)
          for (int64_t i = begin; i < begin + width; ++i) {
            const float a = x[i], b = x[i + width];
            x[i] = a + b;
            x[i + width] = a - b;
          }
      return scale(x, last, n);
    }
    for (int64_t i = 0; i < n; i += kLanes) {
      F v = L::template butterflies<1>(L::load(x + i));
      v = L::template butterflies<2>(v);
      v = L::template butterflies<4>(v);
      L::store(x + i, L::template butterflies<8>(v));
    }
    for (int64_t width = kLanes; width < block; width *= 2)
      for (int64_t begin = 0; begin < n; begin += 2 * width)
        for (int64_t i = begin; i < begin + width; i += kLanes) {
          const F a = L::load(x + i), b = L::load(x + i + width);
          L::store(x + i, L::add(a, b));
          L::store(x + i + width, L::sub(a, b));
        }
    scale(x, last, n);
  }

  static void f32_to_f16_rows(const float* x, int64_t n, uint16_t* y) {
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F v = load(x + i, count);
          if (count == kLanes) return L::store_f16(y + i, v);
          uint16_t last[kLanes];
          L::store_f16(last, v);
          __builtin_memcpy(y + i, last, sizeof(uint16_t) * size_t(count));
        });
  }

  /// A weight in two parts of 20 bits, each the exact product of a float and 2^20: the nearest integer, then the rest,
  /// which may be negative, rounded down.
  static uint64_t sum_token_weights(const float* logits, int64_t n, float largest, float temperature) {
    static_assert(kTokenWeightOne == 0x1p40f);
    const F most = L::set(largest), t = L::set(temperature), step = L::set(0x1p20f);
    I upper = L::zero_i(), lower = L::zero_i();
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          F weight = LaneLoops<L>::template exp<false>(L::div(L::sub(load(logits + i, count), most), t));
          if (count < kLanes) weight = L::keep_first(weight, L::zero(), count);
          const F scaled = L::mul(weight, step), whole = L::round(scaled);
          upper = L::add_i(upper, L::to_int(whole));
          lower = L::add_i(lower, L::to_int(L::floor(L::mul(L::sub(scaled, whole), step))));
        });
    return uint64_t((int64_t{L::reduce_i(upper)} << 20) + L::reduce_i(lower));
  }

  // ---- Activation quantization ----

  /// The normed or plain elements [i, i + count); lanes behind them are 0.
  template <bool kNorm>
  static F element(const float* x, const float* weight, F r, int64_t i, int count) {
    const F v = load(x + i, count);
    if constexpr (!kNorm) return v;
    const F normed = L::mul(L::mul(v, r), load(weight + i, count));
    return count == kLanes ? normed : L::keep_first(normed, L::zero(), count);
  }

  template <bool kNorm>
  static int32_t quantize_group(const float* x, const float* weight, F r, int64_t n, bool exact_scales, int8_t* xq,
                                float* scale) {
    F most = L::zero();
    bool has_nan = false;
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F v = element<kNorm>(x, weight, r, i, count);
          has_nan |= L::any_nan(v);
          most = L::max(L::abs(v), most);  // a NaN leaves `most` as it is
        });
    const RowQuantizer q = row_quantizer(L::reduce_max(most), has_nan, exact_scales);
    *scale = q.scale;
    if (q.inverse == 0) {
      __builtin_memset(xq, 0, size_t(n));
      return 0;
    }
    const F inverse = L::set(q.inverse);
    I sum = L::zero_i();
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const I codes = L::to_int(L::mul(element<kNorm>(x, weight, r, i, count), inverse));  // ties to even
          sum = L::add_i(sum, codes);
          if (count == kLanes) return L::store_codes(xq + i, codes);
          int8_t last[kLanes];
          L::store_codes(last, codes);
          __builtin_memcpy(xq + i, last, size_t(count));
        });
    return L::reduce_i(sum);
  }

  /// The usual group: two vectors, kept in registers from the maximum to the codes.
  template <bool kNorm>
  static int32_t quantize_group_of_32(const float* x, const float* weight, F r, bool exact_scales, int8_t* xq,
                                      float* scale) {
    const F v0 = element<kNorm>(x, weight, r, 0, kLanes), v1 = element<kNorm>(x, weight, r, kLanes, kLanes);
    const F most = L::max(L::abs(v0), L::max(L::abs(v1), L::zero()));
    const RowQuantizer q = row_quantizer(L::reduce_max(most), L::any_nan(v0) || L::any_nan(v1), exact_scales);
    *scale = q.scale;
    if (q.inverse == 0) {
      __builtin_memset(xq, 0, 32);
      return 0;
    }
    const F inverse = L::set(q.inverse);
    const I c0 = L::to_int(L::mul(v0, inverse)), c1 = L::to_int(L::mul(v1, inverse));
    L::store_codes(xq, c0);
    L::store_codes(xq + kLanes, c1);
    return L::reduce_i(L::add_i(c0, c1));
  }

  template <bool kNorm>
  static void quantize_all(const float* x, const float* weight, float factor, int64_t k, int64_t group,
                           bool exact_scales, int8_t* xq, float* scales, int32_t* sums) {
    const F r = L::set(factor);
    for (int64_t at = 0; at < k; at += group, ++scales, ++sums) {
      const int64_t n = group < k - at ? group : k - at;
      const float* w = kNorm ? weight + at : nullptr;
      *sums = n == 32 ? quantize_group_of_32<kNorm>(x + at, w, r, exact_scales, xq + at, scales)
                      : quantize_group<kNorm>(x + at, w, r, n, exact_scales, xq + at, scales);
    }
  }

  static void quantize_groups_int8(const float* x, const float* weight, float factor, int64_t k, int64_t group,
                                   int64_t padded, bool exact_scales, int8_t* xq, float* scales, int32_t* sums) {
    if (weight == nullptr) {
      quantize_all<false>(x, weight, factor, k, group, exact_scales, xq, scales, sums);
    } else {
      quantize_all<true>(x, weight, factor, k, group, exact_scales, xq, scales, sums);
    }
    if (padded > k) __builtin_memset(xq + k, 0, size_t(padded - k));
  }

  static constexpr VectorOps ops() {
    return {
        .rms_norm = rms_norm,
        .rms_factor = rms_factor,
        .rope = rope,
        .silu_mul = silu_mul,
        .squared_relu_mul = squared_relu_mul,
        .add = add,
        .dot_f32 = dot_f32,
        .scale = scale,
        .hadamard = hadamard,
        .attend_span = LaneAttention<L>::attend_span,
        .merge_span = LaneAttention<L>::merge_span,
        .f32_to_f16 = f32_to_f16_rows,
        .sum_token_weights = sum_token_weights,
        .quantize_groups_int8 = quantize_groups_int8,
    };
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
