#pragma once
// A weight of E4M3 codes, multiplied with tokens in E4M3 codes: kernels/cuda_fp8_api.h.

#include <string>

#include "format/qtensor.h"
#include "kernels/fp8_api.h"
#include "lowbit/error.h"

namespace lowbit {

/// Immutable; on the current device. Empty: codes are.
struct CudaFp8Weight {
  /// Errors: kUnsupported, what CUDA says. Scales are for 128 columns of one row or of 128.
  static Result<CudaFp8Weight> make(const std::string& name, const QTensor& w);

  int64_t blocks() const;  // of x: each has a scale
  /// x [m, k] to codes, rows of row_bytes(), and scales [blocks(), scale_stride(m)]: by column, as the tiles for many
  /// rows fetch them in one copy.
  Status quantize(const float* x, int64_t m, uint8_t* to, float* to_scales, void* stream) const;
  static int64_t row_bytes(int64_t k);
  static int64_t scale_stride(int64_t m);
  /// y [m, n] of codes and scales as quantize() makes them; bias [n] or null. exact: Fp8GemmUse.
  Status multiply(const uint8_t* x, const float* x_scales, const float* bias, int64_t m, float* y, bool exact,
                  void* stream) const;
  std::string kernel_name() const;

  int64_t n = 0, k = 0, scale_rows = 1;  // scale_rows: rows that share a scale
  Buffer codes, scales;                  // [n, row_bytes(k)], [ceil(n / scale_rows), blocks()]
};

}  // namespace lowbit
