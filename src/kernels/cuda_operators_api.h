#pragma once
// The contract between capi/ and the products of few bits that read their operands as they lie in memory: nothing is
// prepared, nothing is kept. kernels/cuda/operators/ implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/operators.md, the CPU's bits (ops/bitlinear.h). All pointers are device memory, rows may begin
// anywhere. Calls enqueue work on `stream`: they allocate nothing, wait for nothing and may be captured into a graph.
// The caller has checked the shapes.

#include <cstdint>

#include "kernels/cuda_operands.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

/// s = 127 / max(max |x|, 1e-5), rounded to its element, code = round half to even(x * s).
struct Int8Rows {
  const void* x = nullptr;  // [m, k]
  Element x_element = Element::kF32;
  int64_t m = 0, k = 0, ldx = 0;
  int8_t* codes = nullptr;
  int64_t ldcodes = 0;
  void* scales = nullptr;  // [m]
  Element scale_element = Element::kF32;
};
Status int8_rows(const Int8Rows& call, void* stream);

/// y = float(sum) / s * ws, or * s * ws.
struct Int2Product {
  int64_t m = 0, n = 0, k = 0;
  const int8_t* x = nullptr;  // [m, k]
  int64_t ldx = 0;
  const void* s = nullptr;          // [m]
  const uint8_t* weight = nullptr;  // [n] rows, weight_stride bytes apart, or tiles of 16 x 32
  int64_t weight_stride = 0;
  bool tiles = false;
  const void* ws = nullptr;  // [ranges]
  Element scale_element = Element::kF32;
  const int32_t* row_ends = nullptr;  // [ranges] or null: one range
  int64_t ranges = 1;
  bool multiplies = false;
  void* y = nullptr;  // [m, ldy]
  Element y_element = Element::kF32;
  int64_t ldy = 0;
};
Status int2_product(const Int2Product& call, void* stream);

/// A bit is 1 where x >= 0 or x is NaN; scale = mean |x|.
struct BitRows {
  const void* x = nullptr;
  Element x_element = Element::kF32;
  int64_t m = 0, k = 0, ldx = 0;
  uint8_t* bits = nullptr;  // rows of ceil(k / 8) bytes, bits_stride apart
  int64_t bits_stride = 0;
  float* scales = nullptr;
};
Status bit_rows(const BitRows& call, void* stream);

/// y = fma(float(sum) * weight_scale, x_scale, bias).
struct BitProduct {
  int64_t m = 0, n = 0, k = 0;
  const uint8_t *x = nullptr, *weight = nullptr;                               // rows of ceil(k / 8) bytes
  int64_t x_stride = 0, weight_stride = 0;                                     // bytes
  const float *x_scales = nullptr, *weight_scales = nullptr, *bias = nullptr;  // [m], [n], [n], or null: 1, 1, 0
  void* y = nullptr;
  Element y_element = Element::kF32;
  int64_t ldy = 0;
};
Status bit_product(const BitProduct& call, void* stream);

}  // namespace lowbit::cuda
