#include "kernels/vector_math.h"

#include <algorithm>
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

float rms_factor(const float* x, int64_t n, float eps) { return 1.0f / std::sqrt(dot_f32(x, x, n) / float(n) + eps); }

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float r = rms_factor(x, n, eps);
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

void hadamard(float* x, int64_t n, int64_t block) {
  for (int64_t width = 1; width < block; width *= 2)
    for (int64_t begin = 0; begin < n; begin += 2 * width)
      for (int64_t i = begin; i < begin + width; ++i) {
        const float a = x[i], b = x[i + width];
        x[i] = a + b;
        x[i + width] = a - b;
      }
  scale(x, hadamard_scale(block), n);
}

float to_f32(float v) { return v; }
float to_f32(uint16_t v) { return f16_to_f32(v); }

template <class K>
void dot_rows(const float* q, int64_t ldq, int64_t queries, const K* keys, int64_t stride, int64_t count, int64_t d,
              float a, float* out, int64_t ldo) {
  for (int64_t j = 0; j < queries; ++j)
    for (int64_t t = 0; t < count; ++t) {
      float s[kLanes] = {};
      for (int64_t i = 0; i < d; ++i)
        s[i % kLanes] = __builtin_fmaf(q[j * ldq + i], to_f32(keys[t * stride + i]), s[i % kLanes]);
      out[j * ldo + t] = a * fold_lanes(s);
    }
}

template <class V>
void axpy_rows(const float* p, int64_t ldp, int64_t queries, const V* values, int64_t stride, int64_t count, int64_t d,
               float* y, int64_t ldy) {
  for (int64_t j = 0; j < queries; ++j)
    for (int64_t t = 0; t < count; ++t)
      for (int64_t i = 0; i < d; ++i)
        y[j * ldy + i] = __builtin_fmaf(p[j * ldp + t], to_f32(values[t * stride + i]), y[j * ldy + i]);
}

void f32_to_f16_n(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void f16_to_f32_n(const uint16_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f16_to_f32(x[i]);
}

void quantize_groups_int8(const float* x, const float* weight, float factor, int64_t k, int64_t group, int64_t padded,
                          int8_t* xq, float* scales, int32_t* sums) {
  const auto element = [&](int64_t i) { return weight == nullptr ? x[i] : x[i] * factor * weight[i]; };
  for (int64_t first = 0; first < k; first += group) {
    const int64_t last = std::min(first + group, k);
    float absmax = 0;
    bool has_nan = false;
    for (int64_t i = first; i < last; ++i) {
      const float v = element(i), magnitude = std::fabs(v);
      has_nan |= v != v;
      absmax = magnitude > absmax ? magnitude : absmax;
    }
    const RowQuantizer q = row_quantizer(absmax, has_nan);
    scales[first / group] = q.scale;
    sums[first / group] = 0;
    for (int64_t i = first; i < last; ++i) {
      xq[i] = q.inverse == 0 ? int8_t{0} : int8_t(round_half_even(element(i) * q.inverse));
      sums[first / group] += xq[i];
    }
  }
  for (int64_t i = k; i < padded; ++i) xq[i] = 0;
}

}  // namespace

const VectorOps kRefVectorOps = {
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
    .f32_to_f16 = f32_to_f16_n,
    .f16_to_f32 = f16_to_f32_n,
    .quantize_groups_int8 = quantize_groups_int8,
};

}  // namespace lowbit
