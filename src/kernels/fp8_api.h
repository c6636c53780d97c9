#pragma once
// The contract between ops/fp8.h (checks, threads) and the FP8 kernels of each instruction set. Plain structs and
// function pointers, as kernels/api.h. What they compute: docs/numerics.md#fp8-in-blocks; every kernel gives the bits
// of kernels/ref/fp8.cc.

#include <cstdint>

namespace lowbit {

/// Columns whose products are summed before the block's scales come in.
inline constexpr int64_t kFp8Block = 128;

/// Types of activations and results.
enum class Fp8Element : uint8_t { kF32, kF16, kBf16 };

constexpr int64_t fp8_element_bytes(Fp8Element e) { return e == Fp8Element::kF32 ? 4 : 2; }

/// Rows that share their scales, to E4M3 codes. Per block of columns: scale = max |x| / 448, code = e4m3(x / scale).
struct Fp8QuantArgs {
  const void* x = nullptr;  // [rows, columns], row r at element r * ldx
  Fp8Element element = Fp8Element::kF32;
  int64_t rows = 0, columns = 0, ldx = 0;
  int64_t block = kFp8Block;  // columns that share a scale; the last block may be short
  bool power_of_two = false;  // scales are rounded up to one
  uint8_t* codes = nullptr;   // row r at r * ldcodes
  int64_t ldcodes = 0;
  float* scales = nullptr;  // block b's at b * scale_step
  int64_t scale_step = 1;
};

/// A row of codes back to floats: value * scale, rounded to f32, then to the element.
struct Fp8DequantArgs {
  const uint8_t* codes = nullptr;
  int64_t columns = 0, block = kFp8Block;
  const float* scales = nullptr;  // [ceil(columns / block)]
  void* y = nullptr;
  Fp8Element element = Fp8Element::kF32;
};

/// c[i, j] for all rows i of a and columns [n0, n1):
///   acc = 0; for each block g of 128 columns of k ascending:
///     s = 0; for k ascending in it: s = fma(a[i, k], b[j, k], s);  acc = fma(s * a_scale[i, g], b_scale[j, g], acc)
///   c = acc, rounded to the element. A code of b that is NaN makes acc NaN.
struct Fp8GemmArgs {
  /// [m, k] values of a's codes times Fp8Kernels::a_factor, row i at i * lda; with Fp8Kernels::pairs two columns in a
  /// place, as MatmulKernel::pairs has them.
  const float* a = nullptr;
  int64_t m = 0, k = 0, lda = 0;
  const float* a_scales = nullptr;  // of row i and block g at i * a_scale_row + g * a_scale_block
  int64_t a_scale_row = 0, a_scale_block = 1;
  const uint8_t* b = nullptr;  // codes [n, k], row j at j * ldb
  int64_t n = 0, ldb = 0;
  const float* b_scales = nullptr;  // of row j and block g at j / b_rows * ldb_scales + g
  int64_t ldb_scales = 0, b_rows = 1;
  void* c = nullptr;  // [m, n], row i at element i * ldc
  Fp8Element element = Fp8Element::kF32;
  int64_t ldc = 0;
  int64_t n0 = 0, n1 = 0;      // n0 is a multiple of panel_rows, n1 too or n
  uint8_t* scratch = nullptr;  // gemm_scratch_bytes(m) of this worker, 64-byte aligned
};

struct Fp8Kernels {
  const char* name;  // "fp8__avx2_16x6"
  const char* isa;
  void (*quantize)(const Fp8QuantArgs& args);
  void (*dequantize)(const Fp8DequantArgs& args);
  /// out[i] = value of codes[i] * factor, a power of two.
  void (*decode)(const uint8_t* codes, int64_t n, float factor, float* out);
  /// The factor that gemm() wants on a's values: a power of two, so that products with b's values as the kernel has
  /// them are exact.
  float a_factor;
  bool pairs;      // and the CPU needs AVX-512 BF16
  int panel_rows;  // rows of b that go together
  int64_t (*gemm_scratch_bytes)(int64_t m);
  void (*gemm)(const Fp8GemmArgs& args);
};

extern const Fp8Kernels kRefFp8;
extern const Fp8Kernels kAvx2Fp8;
extern const Fp8Kernels kAvx512Fp8;
extern const Fp8Kernels kAvx512PairsFp8;

}  // namespace lowbit
