#include <immintrin.h>

#include "base/float.h"
#include "kernels/tables.h"
#include "kernels/vector_math.h"

// Each loop does what its namesake in kernels/ref/vector_ops.cc does, 8 or 16 elements at a time.
// Lanes 0-7 and 8-15 of the partial sums live in two registers; the last n % 16 elements go through
// the scalar element functions.

namespace lowbit {
inline namespace LOWBIT_ISA {
namespace {

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline float to_f32(float v) { return v; }
inline float to_f32(uint16_t v) { return f16_to_f32(v); }

/// The fold of kLanes sums after its first step: 8 -> 4 -> 2 -> 1.
inline float fold8(__m256 s) {
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}

/// lane[i % 16] = fma(a[i], b[i], lane[i % 16]) for the elements [first, n), first % 16 == 0, then
/// 16 -> 8 lanes.
template <class B>
inline __m256 finish_dot(const float* a, const B* b, int64_t first, int64_t n, __m256 s0, __m256 s1) {
  if (first < n) {
    alignas(32) float s[kLanes];
    _mm256_store_ps(s, s0);
    _mm256_store_ps(s + 8, s1);
    for (int64_t i = first; i < n; ++i) s[i - first] = __builtin_fmaf(a[i], to_f32(b[i]), s[i - first]);
    s0 = _mm256_load_ps(s);
    s1 = _mm256_load_ps(s + 8);
  }
  return _mm256_add_ps(s0, s1);
}

template <class B>
inline __m256 dot_lanes(const float* a, const B* b, int64_t n) {
  __m256 s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
  const int64_t whole = n & ~int64_t{kLanes - 1};
  for (int64_t i = 0; i < whole; i += kLanes) {
    s0 = _mm256_fmadd_ps(load8(a + i), load8(b + i), s0);
    s1 = _mm256_fmadd_ps(load8(a + i + 8), load8(b + i + 8), s1);
  }
  return finish_dot(a, b, whole, n, s0, s1);
}

float dot_f32(const float* a, const float* b, int64_t n) { return fold8(dot_lanes(a, b, n)); }

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float mean = dot_f32(x, x, n) / float(n);
  const float r = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
  const __m256 rv = _mm256_set1_ps(r);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(load8(x + i), rv), load8(weight + i)));
  for (; i < n; ++i) y[i] = x[i] * r * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const __m256 a = load8(x + i), b = load8(x + half + i), c = load8(cos + i), s = load8(sin + i);
    _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

inline __m256 pow2(__m256i e) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
}

/// exp_f32 of 8 elements.
inline __m256 exp8(__m256 x) {
  const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  __m256 v = _mm256_max_ps(_mm256_set1_ps(kExpMin), x);  // of a NaN pair the second comes out
  v = _mm256_min_ps(_mm256_set1_ps(kExpMax), v);
  const __m256i e = _mm256_cvtps_epi32(_mm256_mul_ps(v, _mm256_set1_ps(kLog2E)));  // ties to even
  const __m256 n = _mm256_cvtepi32_ps(e);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Hi), v);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Lo), r);
  __m256 p = _mm256_set1_ps(kExpPoly[0]);
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpPoly[i]));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i e1 = _mm256_srai_epi32(e, 1), e2 = _mm256_sub_epi32(e, e1);
  return _mm256_blendv_ps(_mm256_mul_ps(_mm256_mul_ps(p, pow2(e1)), pow2(e2)), x, is_nan);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 g = load8(gate + i);
    const __m256 d = _mm256_add_ps(one, exp8(_mm256_xor_ps(g, sign)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_div_ps(g, d), load8(up + i)));
  }
  for (; i < n; ++i) y[i] = silu_mul_f32(gate[i], up[i]);
}

void add(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(load8(y + i), load8(x + i)));
  for (; i < n; ++i) y[i] += x[i];
}

float max(const float* x, int64_t n) {
  __m256 s0 = _mm256_set1_ps(-__builtin_inff()), s1 = s0;
  const int64_t whole = n & ~int64_t{kLanes - 1};
  for (int64_t i = 0; i < whole; i += kLanes) {
    s0 = _mm256_max_ps(load8(x + i), s0);  // x > s ? x : s
    s1 = _mm256_max_ps(load8(x + i + 8), s1);
  }
  alignas(32) float s[kLanes];
  _mm256_store_ps(s, s0);
  _mm256_store_ps(s + 8, s1);
  for (int64_t i = whole; i < n; ++i) s[i - whole] = x[i] > s[i - whole] ? x[i] : s[i - whole];
  for (int w = kLanes / 2; w > 0; w /= 2)
    for (int i = 0; i < w; ++i) s[i] = s[i + w] > s[i] ? s[i + w] : s[i];
  return s[0];
}

float exp_sum(float* x, float shift, int64_t n) {
  const __m256 sv = _mm256_set1_ps(shift);
  __m256 s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
  const int64_t whole = n & ~int64_t{kLanes - 1};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const __m256 e0 = exp8(_mm256_sub_ps(load8(x + i), sv));
    const __m256 e1 = exp8(_mm256_sub_ps(load8(x + i + 8), sv));
    _mm256_storeu_ps(x + i, e0);
    _mm256_storeu_ps(x + i + 8, e1);
    s0 = _mm256_add_ps(s0, e0);
    s1 = _mm256_add_ps(s1, e1);
  }
  alignas(32) float s[kLanes];
  _mm256_store_ps(s, s0);
  _mm256_store_ps(s + 8, s1);
  for (int64_t i = whole; i < n; ++i) {
    x[i] = exp_f32(x[i] - shift);
    s[i - whole] += x[i];
  }
  return fold_lanes(s);
}

void scale(float* x, float a, int64_t n) {
  const __m256 av = _mm256_set1_ps(a);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(load8(x + i), av));
  for (; i < n; ++i) x[i] *= a;
}

/// [fold8(a), fold8(b), fold8(c), fold8(d)]
inline __m128 fold8_x4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  const __m256d abd = _mm256_castps_pd(ab), cdd = _mm256_castps_pd(cd);
  // Pairs of lanes: [a, c | b, d]
  const __m256 s2 =
      _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(abd, cdd)), _mm256_castpd_ps(_mm256_unpackhi_pd(abd, cdd)));
  const __m256 s1 = _mm256_add_ps(s2, _mm256_movehdup_ps(s2));
  return _mm256_castps256_ps128(_mm256_permutevar8x32_ps(s1, _mm256_setr_epi32(0, 4, 2, 6, 0, 0, 0, 0)));
}

/// Four rows share the loads of q.
template <class K>
inline void dot_rows(const float* q, const K* keys, int64_t stride, int64_t count, int64_t d, float a, float* out) {
  const int64_t whole = d & ~int64_t{kLanes - 1};
  int64_t t = 0;
  for (; t + 4 <= count; t += 4) {
    const K* k0 = keys + t * stride;
    const K *k1 = k0 + stride, *k2 = k1 + stride, *k3 = k2 + stride;
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    for (int64_t i = 0; i < whole; i += kLanes) {
      const __m256 q0 = load8(q + i), q1 = load8(q + i + 8);
      a0 = _mm256_fmadd_ps(q0, load8(k0 + i), a0);
      a1 = _mm256_fmadd_ps(q1, load8(k0 + i + 8), a1);
      b0 = _mm256_fmadd_ps(q0, load8(k1 + i), b0);
      b1 = _mm256_fmadd_ps(q1, load8(k1 + i + 8), b1);
      c0 = _mm256_fmadd_ps(q0, load8(k2 + i), c0);
      c1 = _mm256_fmadd_ps(q1, load8(k2 + i + 8), c1);
      d0 = _mm256_fmadd_ps(q0, load8(k3 + i), d0);
      d1 = _mm256_fmadd_ps(q1, load8(k3 + i + 8), d1);
    }
    const __m128 sums = fold8_x4(finish_dot(q, k0, whole, d, a0, a1), finish_dot(q, k1, whole, d, b0, b1),
                                 finish_dot(q, k2, whole, d, c0, c1), finish_dot(q, k3, whole, d, d0, d1));
    _mm_storeu_ps(out + t, _mm_mul_ps(_mm_set1_ps(a), sums));
  }
  for (; t < count; ++t) out[t] = a * fold8(dot_lanes(q, keys + t * stride, d));
}

/// Blocks of y stay in registers over all rows: 8 * Regs elements.
template <int Regs, class V>
inline void axpy_block(const float* p, const V* values, int64_t stride, int64_t count, float* y) {
  __m256 acc[Regs];
  for (int r = 0; r < Regs; ++r) acc[r] = load8(y + 8 * r);
  for (int64_t t = 0; t < count; ++t) {
    const __m256 pv = _mm256_broadcast_ss(p + t);
    const V* v = values + t * stride;
    for (int r = 0; r < Regs; ++r) acc[r] = _mm256_fmadd_ps(pv, load8(v + 8 * r), acc[r]);
  }
  for (int r = 0; r < Regs; ++r) _mm256_storeu_ps(y + 8 * r, acc[r]);
}

template <class V>
inline void axpy_rows(const float* p, const V* values, int64_t stride, int64_t count, int64_t d, float* y) {
  int64_t i = 0;
  for (; i + 64 <= d; i += 64) axpy_block<8>(p, values + i, stride, count, y + i);
  for (; i + 32 <= d; i += 32) axpy_block<4>(p, values + i, stride, count, y + i);
  for (; i + 8 <= d; i += 8) axpy_block<1>(p, values + i, stride, count, y + i);
  for (; i < d; ++i)
    for (int64_t t = 0; t < count; ++t) y[i] = __builtin_fmaf(p[t], to_f32(values[t * stride + i]), y[i]);
}

void dot_f16_rows(const float* q, const uint16_t* keys, int64_t stride, int64_t count, int64_t d, float a, float* out) {
  dot_rows(q, keys, stride, count, d, a, out);
}
void dot_f32_rows(const float* q, const float* keys, int64_t stride, int64_t count, int64_t d, float a, float* out) {
  dot_rows(q, keys, stride, count, d, a, out);
}
void axpy_f16_rows(const float* p, const uint16_t* values, int64_t stride, int64_t count, int64_t d, float* y) {
  axpy_rows(p, values, stride, count, d, y);
}
void axpy_f32_rows(const float* p, const float* values, int64_t stride, int64_t count, int64_t d, float* y) {
  axpy_rows(p, values, stride, count, d, y);
}

void f32_to_f16_n(const float* x, int64_t n, uint16_t* y) {
  const __m256 sign = _mm256_set1_ps(-0.0f), quiet = _mm256_set1_ps(__builtin_nanf(""));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 v = load8(x + i);
    // The hardware keeps a NaN's payload; the definition keeps its sign only.
    const __m256 nan = _mm256_or_ps(_mm256_and_ps(v, sign), quiet);
    v = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void f16_to_f32_n(const uint16_t* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, load8(x + i));
  for (; i < n; ++i) y[i] = f16_to_f32(x[i]);
}

void quantize_row_int8(const float* x, int64_t k, int64_t padded, int8_t* xq, float* scale_out) {
  const __m256 magnitude_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 max8 = _mm256_setzero_ps(), nan8 = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    const __m256 v = load8(x + i);
    nan8 = _mm256_or_ps(nan8, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    max8 = _mm256_max_ps(_mm256_and_ps(v, magnitude_mask), max8);  // a NaN leaves max8 as it is
  }
  alignas(32) float m[8];
  _mm256_store_ps(m, max8);
  bool has_nan = _mm256_movemask_ps(nan8) != 0;
  for (; i < k; ++i) {
    has_nan |= x[i] != x[i];
    const float magnitude = __builtin_fabsf(x[i]);
    m[0] = magnitude > m[0] ? magnitude : m[0];
  }
  float absmax = 0;
  for (float v : m) absmax = v > absmax ? v : absmax;
  const RowQuantizer q = row_quantizer(absmax, has_nan);
  *scale_out = q.scale;
  i = 0;
  if (q.inverse != 0) {
    const __m256 inverse = _mm256_set1_ps(q.inverse);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (; i + 32 <= k; i += 32) {
      const __m256i c0 = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x + i), inverse));  // ties to even
      const __m256i c1 = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x + i + 8), inverse));
      const __m256i c2 = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x + i + 16), inverse));
      const __m256i c3 = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x + i + 24), inverse));
      const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(c0, c1), _mm256_packs_epi32(c2, c3));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(xq + i), _mm256_permutevar8x32_epi32(packed, order));
    }
    for (; i < k; ++i) xq[i] = int8_t(round_half_even(x[i] * q.inverse));
  }
  for (; i < padded; ++i) xq[i] = 0;
}

}  // namespace
}  // namespace LOWBIT_ISA

const VectorOps kAvx2VectorOps = {
    .rms_norm = rms_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .add = add,
    .dot_f32 = dot_f32,
    .max = max,
    .exp_sum = exp_sum,
    .scale = scale,
    .dot_f16_rows = dot_f16_rows,
    .axpy_f16_rows = axpy_f16_rows,
    .dot_f32_rows = dot_f32_rows,
    .axpy_f32_rows = axpy_f32_rows,
    .f32_to_f16 = f32_to_f16_n,
    .f16_to_f32 = f16_to_f32_n,
    .quantize_row_int8 = quantize_row_int8,
};

}  // namespace lowbit
