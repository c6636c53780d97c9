#include "kernels/vector_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float.h"
#include "kernels/ref/packed_kv.h"
#include "kernels/tables.h"
#include "kernels/token_weight.h"

namespace lowbit {
namespace {

// Every loop here is the definition; none is tuned. Shapes are those of kernels/api.h.

float dot_f32(const float* a, const float* b, int64_t n) {
  float s[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) s[i % kLanes] = __builtin_fmaf(a[i], b[i], s[i % kLanes]);
  return reduce_lanes(s);
}

float rms_factor(const float* x, int64_t n, float eps) {
  float s[kNormSums] = {};
  for (int64_t i = 0; i < n; ++i) s[i % kNormSums] = __builtin_fmaf(x[i], x[i], s[i % kNormSums]);
  return 1.0f / std::sqrt(reduce_norm_sums(s) / float(n) + eps);
}

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

void squared_relu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = squared_relu_mul_f32(gate[i], up[i]);
}

void add(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += x[i];
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

/// c[t] for the positions of an f16 page that the query sees.
void key_products(const SpanArgs& a, const float* q, int64_t page, int64_t begin, int64_t end, float* c) {
  for (int64_t t = std::max(begin, page * kKvPage); t < std::min(end, (page + 1) * kKvPage); ++t) {
    const uint16_t* const key = a.keys[page] + t % kKvPage;
    c[t] = 0;
    for (int64_t i = 0; i < a.d; ++i) c[t] = __builtin_fmaf(q[i], f16_to_f32(key[i * kKvPage]), c[t]);
  }
}

void score_packed(const PackedSpanArgs& a, int64_t page, const float* q, float* c) {
  packed_product(q, {a.key_bits[page], a.d, kKvPage}, a.packed_keys[page], c + page * kKvPage);
}

/// o += what positions [first, last) of a packed page give.
void add_packed_values(const PackedSpanArgs& a, int64_t page, int64_t first, int64_t last, const float* e, float* o) {
  float x[kKvPage] = {}, y[kKvPage];
  for (int64_t t = first; t < last; ++t) x[t % kKvPage] = e[t];
  PackedMatrix block = a.packed_values[page];
  for (int64_t i = 0, width = value_columns(a.value_bits[page]); i < a.d; i += width) {
    const PackedShape shape = {a.value_bits[page], kKvPage, std::min(width, a.d - i)};
    packed_product(x, shape, block, y);
    for (int64_t c = 0; c < shape.columns; ++c) o[i + c] = o[i + c] + y[c];
    block = {block.codes + shape.code_bytes(), block.side + shape.side_bytes()};
  }
}

/// Query j of a span; the operations are those of SpanArgs, one after the other.
void attend_one(const SpanArgs& a, int64_t j) {
  const float* const q = a.q + j * a.ldq;
  const int64_t begin = a.begin[j], end = a.end[j];
  float e[kAttentionSpan];  // first the scores
  float m = -std::numeric_limits<float>::infinity();
  for (int64_t p = begin / kKvPage; p * kKvPage < end; ++p)
    if (a.keys[p] == nullptr)
      score_packed(static_cast<const PackedSpanArgs&>(a), p, q, e);
    else
      key_products(a, q, p, begin, end, e);
  for (int64_t t = begin; t < end; ++t) {
    e[t] = a.scale * e[t];
    m = e[t] > m ? e[t] : m;
  }
  float l[kLanes] = {};
  for (int64_t t = begin; t < end; ++t) {
    e[t] = exp_f32(e[t] - span_shift(m));
    l[t % kLanes] += e[t];
  }
  float* const o = a.o + j * a.ldo;
  std::fill_n(o, a.d, 0.0f);
  for (int64_t p = begin / kKvPage; p * kKvPage < end; ++p) {
    const int64_t first = std::max(begin, p * kKvPage), last = std::min(end, (p + 1) * kKvPage);
    if (a.values[p] == nullptr) {
      add_packed_values(static_cast<const PackedSpanArgs&>(a), p, first, last, e, o);
    } else {
      for (int64_t i = 0; i < a.d; ++i)
        for (int64_t t = first; t < last; ++t)
          o[i] = __builtin_fmaf(e[t], f16_to_f32(a.values[p][t % kKvPage * a.d + i]), o[i]);
    }
  }
  a.m[j] = m;
  a.l[j] = reduce_lanes(l);
}

void attend_span(const SpanArgs& a) {
  for (int64_t j = 0; j < a.queries; ++j)
    if (a.begin[j] < a.end[j]) attend_one(a, j);
}

void merge_span(float m, float l, const float* o, int64_t d, float* running, float* y) {
  const float most = m > running[0] ? m : running[0];
  const float a = exp_f32(running[0] - span_shift(most)), b = exp_f32(m - span_shift(most));
  for (int64_t i = 0; i < d; ++i) y[i] = __builtin_fmaf(o[i], b, y[i] * a);
  running[0] = most;
  running[1] = __builtin_fmaf(l, b, running[1] * a);
}

void f32_to_f16_n(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = f32_to_f16(x[i]);
}

void quantize_groups_int8(const float* x, const float* weight, float factor, int64_t k, int64_t group, int64_t padded,
                          bool exact_scales, int8_t* xq, float* scales, int32_t* sums) {
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
    const RowQuantizer q = row_quantizer(absmax, has_nan, exact_scales);
    scales[first / group] = q.scale;
    sums[first / group] = 0;
    for (int64_t i = first; i < last; ++i) {
      xq[i] = q.inverse == 0 ? int8_t{0} : int8_t(round_half_even(element(i) * q.inverse));
      sums[first / group] += xq[i];
    }
  }
  for (int64_t i = k; i < padded; ++i) xq[i] = 0;
}

uint64_t sum_token_weights(const float* logits, int64_t n, float largest, float temperature) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += token_weight(logits[i], largest, temperature);
  return sum;
}

}  // namespace

const VectorOps kRefVectorOps = {
    .rms_norm = rms_norm,
    .rms_factor = rms_factor,
    .rope = rope,
    .silu_mul = silu_mul,
    .squared_relu_mul = squared_relu_mul,
    .add = add,
    .dot_f32 = dot_f32,
    .scale = scale,
    .hadamard = hadamard,
    .attend_span = attend_span,
    .merge_span = merge_span,
    .f32_to_f16 = f32_to_f16_n,
    .sum_token_weights = sum_token_weights,
    .quantize_groups_int8 = quantize_groups_int8,
};

}  // namespace lowbit
