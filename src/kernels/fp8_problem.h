#pragma once
// FP8 in blocks as a whole: matrices, on the host or on a device. What is computed: docs/numerics.md#fp8-in-blocks.

#include <cstdint>

#include "kernels/fp8_api.h"

namespace lowbit {

/// Rows of scales as the copy engine of a GPU wants them begin at multiples of 16 bytes.
inline constexpr int64_t kFp8ScaleRowMultiple = 4;

/// x [rows, columns] to codes and scales. A block is row_block x column_block: 1 x 128 for activations, 128 x 128 for
/// weights.
struct Fp8Quant {
  const void* x = nullptr;  // row r at element r * ldx
  Fp8Element element = Fp8Element::kF32;
  int64_t rows = 0, columns = 0, ldx = 0;
  int64_t row_block = 1, column_block = kFp8Block;
  bool power_of_two = false;
  /// Scales are [ceil(rows / row_block), ceil(columns / column_block)], row i at i * ldscales; by columns the same
  /// transposed: column b at b * ldscales, and zeros behind its last row.
  bool scales_by_column = false;
  int64_t ldscales = 0;
  uint8_t* codes = nullptr;  // row r at r * ldcodes
  int64_t ldcodes = 0;
  float* scales = nullptr;
  // Operations on x before the product, row by row, in f32 as single steps (VectorOps): RMS norm, or silu(x) * up.
  const float* norm_weight = nullptr;  // [columns] or null
  float norm_eps = 0;
  const void* up = nullptr;  // as x, row r at element r * ldup, or null
  int64_t ldup = 0;
};

/// y = value * scale.
struct Fp8Dequant {
  const uint8_t* codes = nullptr;
  int64_t rows = 0, columns = 0, ldcodes = 0;
  int64_t row_block = 1, column_block = kFp8Block;
  const float* scales = nullptr;
  int64_t ldscales = 0;
  void* y = nullptr;
  Fp8Element element = Fp8Element::kF32;
  int64_t ldy = 0;
};

/// c [m, n] = a [m, k] times b [n, k] transposed. Blocks have 128 columns.
struct Fp8Gemm {
  int64_t m = 0, n = 0, k = 0;
  const uint8_t* a = nullptr;
  int64_t lda = 0;
  const float* a_scales = nullptr;  // [m, ceil(k / 128)], or by columns as Fp8Quant has them
  int64_t lda_scales = 0;
  bool a_scales_by_column = false;
  const uint8_t* b = nullptr;
  int64_t ldb = 0;
  const float* b_scales = nullptr;  // [ceil(n / b_rows), ceil(k / 128)]
  int64_t ldb_scales = 0, b_rows = kFp8Block;
  void* c = nullptr;
  Fp8Element element = Fp8Element::kF32;
  int64_t ldc = 0;
};

}  // namespace lowbit
