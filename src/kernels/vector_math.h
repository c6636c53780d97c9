#pragma once
// The normative meaning of VectorOps (kernels/api.h): one element of each operation, shared by the
// reference loops and by the tails of every ISA's loops, so that all give the same bits.

#include <cstdint>

#include "base/isa.h"
#include "base/rounding.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// Reductions keep this many partial sums: element i belongs to sum i % kLanes.
inline constexpr int kLanes = 16;

/// The norm's sum of squares keeps more of them: element i belongs to sum i % kNormSums.
inline constexpr int kNormSums = 128;

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. ln 2 is split in two so that n * hi
// is exact; the polynomial is Cephes' expf. Error at most 1.02 ulp on [-87, 0] (the test
// allows 2).
inline constexpr float kExpMin = -104.0f;  // exp() of it rounds to 0
inline constexpr float kExpMax = 89.0f;    // exp() of it is infinite
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;
inline constexpr float kExpPoly[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                      4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

/// -inf gives 0, +inf gives +inf, NaN gives NaN; results below the normal range are rounded once.
inline float exp_f32(float x) {
  if (x != x) return x;
  x = kExpMin > x ? kExpMin : x;
  x = kExpMax < x ? kExpMax : x;
  const float n = round_half_even(x * kLog2E);
  float r = __builtin_fmaf(n, -kLn2Hi, x);
  r = __builtin_fmaf(n, -kLn2Lo, r);
  float p = kExpPoly[0];
  for (int i = 1; i < 6; ++i) p = __builtin_fmaf(p, r, kExpPoly[i]);
  p = __builtin_fmaf(p, r * r, r) + 1.0f;
  // 2^n in two factors: neither n = 128 nor n = -150 has a float of its own.
  const int32_t e = int32_t(n), e1 = e >> 1, e2 = e - e1;
  return p * __builtin_bit_cast(float, (e1 + 127) << 23) * __builtin_bit_cast(float, (e2 + 127) << 23);
}

inline float silu_mul_f32(float gate, float up) { return gate / (1.0f + exp_f32(-gate)) * up; }

inline float squared_relu_mul_f32(float gate, float up) {
  const float r = gate < 0 ? 0.0f : gate;
  return r * r * up;
}

/// The number subtracted from scores whose largest is m: where all are -inf, exp(-inf - 0) = 0 keeps them out of the
/// sums.
inline float span_shift(float m) { return m == -__builtin_inff() ? 0.0f : m; }

/// s[0] = the sum of all lanes, halving the width each time.
inline float reduce_lanes(float* s) {
  for (int w = kLanes / 2; w > 0; w /= 2)
    for (int i = 0; i < w; ++i) s[i] += s[i + w];
  return s[0];
}

/// s[0] = the sum of all of the norm's sums, neighbours first.
inline float reduce_norm_sums(float* s) {
  for (int count = kNormSums / 2; count > 0; count /= 2)
    for (int i = 0; i < count; ++i) s[i] = s[2 * i] + s[2 * i + 1];
  return s[0];
}

/// Rows whose largest magnitude is below this count as all zero: 127 / absmax must stay finite.
inline constexpr float kQuantizeFloor = 0x1p-120f;

/// The two factors of quantize_row_int8. `absmax` ignores NaN; `has_nan` says whether there was
/// one.
struct RowQuantizer {
  float scale;    // real = code * scale
  float inverse;  // code = round(x * inverse); 0 when every code shall be 0
};
/// Rounded up to six significant bits (four fewer below 2^-126): its products with integers up to 2^18 are exact.
inline float exact_scale(float scale) {
  constexpr uint32_t kDropped = (1u << 18) - 1;
  return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, scale) + kDropped) & ~kDropped);
}
inline RowQuantizer row_quantizer(float absmax, bool has_nan, bool exact_scales) {
  if (has_nan) return {__builtin_nanf(""), 0.0f};
  if (absmax < kQuantizeFloor) return {0.0f, 0.0f};
  if (absmax > 3.4028234e38f) return {absmax, 0.0f};  // infinite: the output becomes NaN, not garbage
  if (!exact_scales) return {absmax / 127.0f, 127.0f / absmax};
  const float scale = exact_scale(absmax / 127.0f);
  return {scale, 1.0f / scale};
}

/// The factor that makes the Hadamard transform of `block` elements orthogonal.
inline float hadamard_scale(int64_t block) { return float(1.0 / __builtin_sqrt(double(block))); }

}  // namespace LOWBIT_ISA
}  // namespace lowbit
