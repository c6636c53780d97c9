#include "kernels/vector_math.h"

#include <cmath>
#include <limits>

#include "base/float.h"
#include "kernels/tables.h"

namespace lowbit {
namespace {

// Every loop here is the definition; none is tuned. Shapes are those of kernels/api.h.

float dot_f32(const float* a, const float* b, int64_t n) {
  float s[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) s[i % kLanes] = __builtin_fmaf(a[i], b[i], s[i % kLanes]);
  return fold_lanes(s);
}

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float r = 1.0f / std::sqrt(dot_f32(x, x, n) / float(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * r * weight[i];
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = silu_mul_f32(gate[i], up[i]);
}

void add(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
}

float max(const float* x, int64_t n) {
  float s[kLanes];
  for (float& lane : s) lane = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) s[i % kLanes] = x[i] > s[i % kLanes] ? x[i] : s[i % kLanes];
  for (int w = kLanes / 2; w > 0; w /= 2)
    for (int i = 0; i < w; ++i) s[i] = s[i + w] > s[i] ? s[i + w] : s[i];
  return s[0];
}

float exp_sum(float* x, float shift, int64_t n) {
  float s[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exp_f32(x[i] - shift);
    s[i % kLanes] += x[i];
  }
  return fold_lanes(s);
}

void scale(float* x, float a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= a;
}

void dot_f32_rows(const float* q, const float* keys, int64_t stride, int64_t count, int64_t d, float a, float* out) {
  for (int64_t t = 0; t < count; ++t) out[t] = a * dot_f32(q, keys + t * stride, d);
}

void axpy_f32_rows(const float* p, const float* values, int64_t stride, int64_t count, int64_t d, float* y) {
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < d; ++i) y[i] = __builtin_fmaf(p[t], values[t * stride + i], y[i]);
}

void dot_f16_rows(const float* q, const uint16_t* keys, int64_t stride, int64_t count, int64_t d, float a, float* out) {
  for (int64_t t = 0; t < count; ++t) {
    float s[kLanes] = {};
    for (int64_t i = 0; i < d; ++i)
      s[i % kLanes] = __builtin_fmaf(q[i], f16_to_f32(keys[t * stride + i]), s[i % kLanes]);
    out[t] = a * fold_lanes(s);
  }
}

void axpy_f16_rows(const float* p, const uint16_t* values, int64_t stride, int64_t count, int64_t d, float* y) {
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < d; ++i) y[i] = __builtin_fmaf(p[t], f16_to_f32(values[t * stride + i]), y[i]);
}

void f32_to_f16_n(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void f16_to_f32_n(const uint16_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f16_to_f32(x[i]);
}

void quantize_row_int8(const float* x, int64_t k, int64_t padded, int8_t* xq, float* scale_out) {
  float absmax = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < k; ++i) {
    const float magnitude = std::fabs(x[i]);
    has_nan |= x[i] != x[i];
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  const RowQuantizer q = row_quantizer(absmax, has_nan);
  *scale_out = q.scale;
  for (int64_t i = 0; i < k; ++i) xq[i] = q.inverse == 0 ? int8_t{0} : int8_t(round_half_even(x[i] * q.inverse));
  for (int64_t i = k; i < padded; ++i) xq[i] = 0;
}

}  // namespace

const VectorOps kRefVectorOps = {
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
