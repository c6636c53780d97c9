#pragma once
// VectorOps for any instruction set that has 16 lanes, in one vector or two: what kernels/ref/vector_ops.cc does, 16 elements at
// a time. `L` is the vocabulary (kernels/cpu/avx2/lanes.h, kernels/cpu/avx512/lanes.h). Lane i holds partial sum i, so the order
// of every sum is the reference's. The last n % 16 elements take the same operations on the first lanes alone.

#include <cstdint>

#include "base/isa.h"
#include "kernels/api.h"
#include "kernels/vector_math.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class L>
struct LaneOps {
  using F = typename L::F;
  using I = typename L::I;
  static_assert(kLanes == 16);
  static constexpr int64_t whole(int64_t n) { return n & ~int64_t{kLanes - 1}; }

  /// Calls body(i, count) for the elements [i, i + count) of 0..n, count = 16 but for the last.
  template <class Body>
  __attribute__((always_inline)) static void each(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
    if (i < n) body(i, int(n - i));
  }

  static F load(const float* p, int count) { return count == kLanes ? L::load(p) : L::load_first(p, count); }
  static void store(float* p, F v, int count) {
    if (count == kLanes) return L::store(p, v);
    L::store_first(p, v, count);
  }

  static float dot_f32(const float* a, const float* b, int64_t n) {
    F s = L::zero();
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          s = count == kLanes
                  ? L::fma(L::load(a + i), L::load(b + i), s)
                  : L::keep_first(L::fma(L::load_first(a + i, count), L::load_first(b + i, count), s), s, count);
        });
    return L::fold(s);
  }

  static float rms_factor(const float* x, int64_t n, float eps) {
    return 1.0f / __builtin_sqrtf(dot_f32(x, x, n) / float(n) + eps);
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

  /// exp_f32 of 16 elements.
  static F exp(F x) {
    F v = L::max(L::set(kExpMin), x);  // of a NaN pair the second comes out
    v = L::min(L::set(kExpMax), v);
    const I e = L::to_int(L::mul(v, L::set(kLog2E)));  // ties to even
    const F n = L::to_float(e);
    F r = L::fma(n, L::set(-kLn2Hi), v);
    r = L::fma(n, L::set(-kLn2Lo), r);
    F p = L::set(kExpPoly[0]);
    for (int i = 1; i < 6; ++i) p = L::fma(p, r, L::set(kExpPoly[i]));
    p = L::add(L::fma(p, L::mul(r, r), r), L::set(1.0f));
    const I e1 = L::half(e), e2 = L::sub_i(e, e1);
    return L::nan_or(x, L::mul(L::mul(p, L::pow2(e1)), L::pow2(e2)));
  }

  static void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
    const F one = L::set(1.0f);
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F g = load(gate + i, count);
          store(y + i, L::mul(L::div(g, L::add(one, exp(L::negate(g)))), load(up + i, count)), count);
        });
  }

  static void add(const float* x, int64_t n, float* y) {
    each(
        n, [&](int64_t i, int count)
               __attribute__((always_inline)) { store(y + i, L::add(load(y + i, count), load(x + i, count)), count); });
  }

  static float max(const float* x, int64_t n) {
    F s = L::set(-__builtin_inff());
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F m = L::max(load(x + i, count), s);  // x > s ? x : s
          s = count == kLanes ? m : L::keep_first(m, s, count);
        });
    return L::fold_max(s);
  }

  static float exp_sum(float* x, float shift, int64_t n) {
    const F sv = L::set(shift);
    F s = L::zero();
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F e = exp(L::sub(load(x + i, count), sv));
          store(x + i, e, count);
          s = count == kLanes ? L::add(s, e) : L::keep_first(L::add(s, e), s, count);
        });
    return L::fold(s);
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

  // ---- Attention: L::kPairs sums of (query, key) in registers ----

  /// out[q * ldo + t] for Q queries and the first `count` of kPairs / Q keys.
  template <int Q, class K>
  static void dot_block(const float* q, int64_t ldq, const K* keys, int64_t stride, int64_t count, int64_t d, float a,
                        float* out, int64_t ldo) {
    constexpr int T = L::kPairs / Q;
    const K* key[T];
    for (int t = 0; t < T; ++t) key[t] = keys + (t < count ? t : count - 1) * stride;
    F sum[L::kPairs];
#pragma GCC unroll 16
    for (int p = 0; p < L::kPairs; ++p) sum[p] = L::zero();
    const int64_t end = whole(d);
    for (int64_t i = 0; i < end; i += kLanes) {
      F query[Q];
#pragma GCC unroll 16
      for (int j = 0; j < Q; ++j) query[j] = L::load(q + j * ldq + i);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const F k = L::load(key[t] + i);
#pragma GCC unroll 16
        for (int j = 0; j < Q; ++j) sum[j * T + t] = L::fma(query[j], k, sum[j * T + t]);
      }
    }
    if (end < d) {
      const int rest = int(d - end);
      for (int j = 0; j < Q; ++j) {
        const F query = L::load_first(q + j * ldq + end, rest);
        for (int t = 0; t < T; ++t)
          sum[j * T + t] =
              L::keep_first(L::fma(query, L::load_first(key[t] + end, rest), sum[j * T + t]), sum[j * T + t], rest);
      }
    }
    alignas(64) float total[L::kPairs];
    L::fold_pairs(sum, a, total);
    for (int j = 0; j < Q; ++j) {
      if (count >= T) {
        __builtin_memcpy(out + j * ldo, total + j * T, sizeof(float) * T);
      } else {
        for (int64_t t = 0; t < count; ++t) out[j * ldo + t] = total[j * T + t];
      }
    }
  }

  template <int Q, class K>
  static void dot_queries(const float* q, int64_t ldq, const K* keys, int64_t stride, int64_t count, int64_t d, float a,
                          float* out, int64_t ldo) {
    constexpr int T = L::kPairs / Q;
    for (int64_t t = 0; t < count; t += T)
      dot_block<Q>(q, ldq, keys + t * stride, stride, count - t, d, a, out + t, ldo);
  }

  template <class K>
  static void dot_rows(const float* q, int64_t ldq, int64_t queries, const K* keys, int64_t stride, int64_t count,
                       int64_t d, float a, float* out, int64_t ldo) {
    constexpr int kMost = L::kPairs >= 16 ? 4 : 2;
    int64_t j = 0;
    for (; j + kMost <= queries; j += kMost)
      dot_queries<kMost>(q + j * ldq, ldq, keys, stride, count, d, a, out + j * ldo, ldo);
    if constexpr (kMost > 2) {
      for (; j + 2 <= queries; j += 2) dot_queries<2>(q + j * ldq, ldq, keys, stride, count, d, a, out + j * ldo, ldo);
    }
    for (; j < queries; ++j) dot_queries<1>(q + j * ldq, ldq, keys, stride, count, d, a, out + j * ldo, ldo);
  }

  /// Q rows of y, R vectors wide, stay in registers over all values.
  template <int Q, int R, class V>
  static void axpy_block(const float* p, int64_t ldp, const V* values, int64_t stride, int64_t count, float* y,
                         int64_t ldy) {
    F acc[Q][R];
#pragma GCC unroll 8
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[j][r] = L::load(y + j * ldy + kLanes * r);
    for (int64_t t = 0; t < count; ++t, values += stride) {
      F v[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) v[r] = L::load(values + kLanes * r);
#pragma GCC unroll 8
      for (int j = 0; j < Q; ++j) {
        const F pt = L::set(p[j * ldp + t]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[j][r] = L::fma(pt, v[r], acc[j][r]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < Q; ++j)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) L::store(y + j * ldy + kLanes * r, acc[j][r]);
  }

  template <int Q, class V>
  static void axpy_queries(const float* p, int64_t ldp, const V* values, int64_t stride, int64_t count, int64_t d,
                           float* y, int64_t ldy) {
    constexpr int R = L::kSums / Q < 4 ? L::kSums / Q : 4;
    int64_t i = 0;
    for (; i + R * kLanes <= d; i += R * kLanes) axpy_block<Q, R>(p, ldp, values + i, stride, count, y + i, ldy);
    for (; i + kLanes <= d; i += kLanes) axpy_block<Q, 1>(p, ldp, values + i, stride, count, y + i, ldy);
    if (i == d) return;
    const int rest = int(d - i);
    for (int j = 0; j < Q; ++j) {
      F acc = L::load_first(y + j * ldy + i, rest);
      for (int64_t t = 0; t < count; ++t)
        acc = L::fma(L::set(p[j * ldp + t]), L::load_first(values + t * stride + i, rest), acc);
      L::store_first(y + j * ldy + i, acc, rest);
    }
  }

  template <class V>
  static void axpy_rows(const float* p, int64_t ldp, int64_t queries, const V* values, int64_t stride, int64_t count,
                        int64_t d, float* y, int64_t ldy) {
    constexpr int kMost = L::kSums >= 16 ? 4 : 2;
    int64_t j = 0;
    for (; j + kMost <= queries; j += kMost)
      axpy_queries<kMost>(p + j * ldp, ldp, values, stride, count, d, y + j * ldy, ldy);
    for (; j < queries; ++j) axpy_queries<1>(p + j * ldp, ldp, values, stride, count, d, y + j * ldy, ldy);
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

  static void f16_to_f32_rows(const uint16_t* x, int64_t n, float* y) {
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          store(y + i, count == kLanes ? L::load(x + i) : L::load_first(x + i, count), count);
        });
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
  static int32_t quantize_group(const float* x, const float* weight, F r, int64_t n, int8_t* xq, float* scale) {
    F most = L::zero();
    bool has_nan = false;
    each(
        n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const F v = element<kNorm>(x, weight, r, i, count);
          has_nan |= L::any_nan(v);
          most = L::max(L::abs(v), most);  // a NaN leaves `most` as it is
        });
    const RowQuantizer q = row_quantizer(L::fold_max(most), has_nan);
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
    return L::fold_i(sum);
  }

  /// The usual group: two vectors, kept in registers from the maximum to the codes.
  template <bool kNorm>
  static int32_t quantize_group_of_32(const float* x, const float* weight, F r, int8_t* xq, float* scale) {
    const F v0 = element<kNorm>(x, weight, r, 0, kLanes), v1 = element<kNorm>(x, weight, r, kLanes, kLanes);
    const F most = L::max(L::abs(v0), L::max(L::abs(v1), L::zero()));
    const RowQuantizer q = row_quantizer(L::fold_max(most), L::any_nan(v0) || L::any_nan(v1));
    *scale = q.scale;
    if (q.inverse == 0) {
      __builtin_memset(xq, 0, 32);
      return 0;
    }
    const F inverse = L::set(q.inverse);
    const I c0 = L::to_int(L::mul(v0, inverse)), c1 = L::to_int(L::mul(v1, inverse));
    L::store_codes(xq, c0);
    L::store_codes(xq + kLanes, c1);
    return L::fold_i(L::add_i(c0, c1));
  }

  template <bool kNorm>
  static void quantize_all(const float* x, const float* weight, float factor, int64_t k, int64_t group, int8_t* xq,
                           float* scales, int32_t* sums) {
    const F r = L::set(factor);
    for (int64_t at = 0; at < k; at += group, ++scales, ++sums) {
      const int64_t n = group < k - at ? group : k - at;
      const float* w = kNorm ? weight + at : nullptr;
      *sums = n == 32 ? quantize_group_of_32<kNorm>(x + at, w, r, xq + at, scales)
                      : quantize_group<kNorm>(x + at, w, r, n, xq + at, scales);
    }
  }

  static void quantize_groups_int8(const float* x, const float* weight, float factor, int64_t k, int64_t group,
                                   int64_t padded, int8_t* xq, float* scales, int32_t* sums) {
    if (weight == nullptr) {
      quantize_all<false>(x, weight, factor, k, group, xq, scales, sums);
    } else {
      quantize_all<true>(x, weight, factor, k, group, xq, scales, sums);
    }
    if (padded > k) __builtin_memset(xq + k, 0, size_t(padded - k));
  }

  static constexpr VectorOps ops() {
    return {
        .rms_norm = rms_norm,
        .rms_factor = rms_factor,
        .rope = rope,
        .silu_mul = silu_mul,
        .add = add,
        .dot_f32 = dot_f32,
        .max = max,
        .exp_sum = exp_sum,
        .scale = scale,
        .hadamard = hadamard,
        .dot_f16_rows = dot_rows<uint16_t>,
        .axpy_f16_rows = axpy_rows<uint16_t>,
        .dot_f32_rows = dot_rows<float>,
        .axpy_f32_rows = axpy_rows<float>,
        .f32_to_f16 = f32_to_f16_rows,
        .f16_to_f32 = f16_to_f32_rows,
        .quantize_groups_int8 = quantize_groups_int8,
    };
  }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
