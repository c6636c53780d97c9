#pragma once
// The contract between backend/cuda/ and products whose sums have the CPU's order: f32 x, and x in E4M3 codes. No CUDA
// types; kernels/cuda/block/ implements it, kernels/cuda_stub/ stands in for it.
//
// Numerics: docs/numerics.md#matmul, its bits. Pointers are device memory. Calls enqueue work on `stream` and return.
// Errors: what CUDA says.

#include <array>
#include <cstdint>

#include "base/isa.h"
#include "kernels/cuda_product_api.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

/// The type of weights before their scales: the least that holds each of them exactly.
enum class ValueType : uint8_t { kInt8, kE4m3, kF16, kBf16, kF32 };
constexpr LOWBIT_HD int value_bytes(ValueType t) {
  return t == ValueType::kF32 ? 4 : t == ValueType::kF16 || t == ValueType::kBf16 ? 2 : 1;
}
/// Rows begin at multiples of 16 bytes, and zeros fill them up.
constexpr LOWBIT_HD int64_t value_row_bytes(ValueType t, int64_t k) { return (k * value_bytes(t) + 15) / 16 * 16; }

/// y[m, n] = sum_k x[m, k] real(w)[n, k] + bias[n].
struct F32Matmul {
  const uint8_t* values = nullptr;  // [n, value_row_bytes(type, k)], without their scales
  ValueType type = ValueType::kF32;
  const float* scales = nullptr;   // [ceil(k / group), n]; null: all 1
  const float* offsets = nullptr;  // likewise; null: none
  const float* bias = nullptr;     // [n]; null: none
  int64_t n = 0, k = 0, group = 0;
  const float* x = nullptr;  // [m, k]
  float* y = nullptr;        // [m, n]
  int64_t m = 0;
  void* stream = nullptr;
};
/// Few tokens go to exact_products(), if it takes them.
Status f32_matmul(const F32Matmul& call);

/// A weight that exact_products() multiplies.
struct ExactProductPart {
  const uint8_t* values = nullptr;
  int64_t row_bytes = 0, n = 0;
  /// Of row r and group g: scales[r / scale_rows * row_step + g * group_step]; scale_rows is a power of two. Null: all
  /// 1, and one group.
  const float* scales = nullptr;
  int64_t scale_rows = 1, row_step = 0, group_step = 0;
  const float* bias = nullptr;  // [n]; null: none
  void* y = nullptr;            // [m, n], rows ldy apart
  int64_t ldy = 0;
};

/// The type that elements of x are rounded to before they are multiplied.
enum class RowRounding : uint8_t { kNone, kF16, kBf16, kE4m3 };

/// Products of the same few tokens, in one launch with their norm, their rounding and what becomes of them.
struct ExactProducts {
  int count = 0;
  std::array<ExactProductPart, kMostStepProducts> parts;
  ValueType type = ValueType::kF32;
  int64_t m = 0, k = 0, group = 0;
  const float* rows = nullptr;  // [m, k], before the norm
  const float* norm = nullptr;  // [k]: norm_rows(); null: none
  float eps = 0;
  RowRounding rounding = RowRounding::kNone;  // kE4m3: a scale per row and 128 columns, as quantize_fp8()
  /// In place of rows, with kE4m3: codes, and the scale of row i and block b at i * scale_row + b * scale_block.
  const uint8_t* codes = nullptr;
  const float* code_scales = nullptr;
  int64_t ldcodes = 0, scale_row = 0, scale_block = 0;
  ProductEnd end = ProductEnd::kStore;
  Element y_element = Element::kF32;  // not int8; f32 unless it is kStore
  bool new_weights = false;           // work before it on the stream may write weights or scales: none is read early
  void* stream = nullptr;
};
/// One to kMostStepRows tokens; groups of whole 16 bytes of values, of 128 columns with kE4m3; values at multiples
/// of 16 bytes; and room in a thread block.
bool takes_exact_products(const ExactProducts& call);
Status exact_products(const ExactProducts& call);

}  // namespace lowbit::cuda
