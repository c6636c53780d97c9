#pragma once
// Matmul with low-bit weights on tensor cores: y = x W^T for int8, f16 and bf16 activations. Plain structs of device
// pointers, no allocation and no synchronisation inside a call, so every call may be captured in a CUDA graph.
//
// Weights come in fragment order (fragment_order.h), derived once at load by relayout_weights() from the canonical
// packing: each thread finds the operand registers of its next tensor-core instructions in consecutive bytes.

#include <cstddef>
#include <cstdint>

#include "lowbit/format_id.h"

struct CUstream_st;

namespace lowbit::cuda {

enum class GemmStatus : uint8_t {
  kOk,
  kInvalidArgument,  // a null pointer, a negative size, a stride shorter than a row
  kUnsupported,      // see supports()
  kCudaError,        // the launch failed; cudaGetLastError() says why
};
const char* gemm_status_name(GemmStatus status);

enum class GemmActivation : uint8_t {
  kInt8,
  kF16,
  kBf16,
  kBit,  // +1 and -1 as the bits 1 and 0, 32 a word; binary weights, one scale per row
};
enum class GemmOutput : uint8_t { kF32, kF16, kBf16 };

/// A weight matrix [n, k] in fragment order. All pointers are to device memory that no kernel in flight writes.
struct GemmWeights {
  FormatId format = FormatId::kInt4;
  GemmActivation activation = GemmActivation::kInt8;  // what the tiles were made for; kF16 and kBf16 share an order
  int64_t n = 0, k = 0;
  int64_t group = 0;                   // columns per scale, 0 or >= k: one scale per row; the last group may be short
  const void* tiles = nullptr;         // tile_bytes(), 16-byte aligned
  const float* scales = nullptr;       // [groups, padded_rows(n)], 16-byte aligned
  const float* offsets = nullptr;      // like scales, or null: real = value * scale + offset
  const int32_t* bit_terms = nullptr;  // kBit: [padded_rows(n)], 8-byte aligned, from relayout_bit_terms()
  uint32_t table[4] = {};              // codebooks: their entries, integers of 8 bits
};

/// y[m,n] = sum_k x[m,k] * (value[n,k] * scale + offset) + bias[n].
/// Shapes:   x [m,k], row stride ldx elements; y [m,n], row stride ldy elements; bias [n] f32 or null. Any m, n, k >=
///           0.
/// Numerics: int8: docs/numerics.md#matmul, bit for bit. f16, bf16: products exact, short sums in the tensor core's
///           f32, one fma with the group's scale per 64 columns (sm_90a) or per group, ascending; where blocks share a
///           tile's K their parts are added in ascending order. Same bits for equal arguments on one device.
struct GemmProblem {
  GemmWeights w;
  int64_t m = 0;
  const void* x = nullptr;  // int8_t, f16 or bf16 [m, k]; bits [m, ceil(k / 8)] bytes, zeros behind column k
  int64_t ldx = 0;          // elements; kBit: columns, a multiple of 8
  const int32_t* x_bit_terms = nullptr;  // kBit: [m], -2 times the ones of a row
  // int8 and bits: x_scale[m * row + g * group], g the group of columns; group stride 0: one scale per token.
  const float* x_scale = nullptr;
  int64_t x_scale_row_stride = 1, x_scale_group_stride = 0;
  /// Activation groups that share a scale of the weights share one of x, too: their sum is one integer.
  bool whole_sums = false;
  /// They share one of x that makes both ways the same bits (docs/numerics.md#activations): kernels may take either.
  bool exact_x_scales = false;
  const float* x_sums = nullptr;  // with offsets: sum of x (int8: of the integers) per group, [m, groups], contiguous
  const float* bias = nullptr;
  void* y = nullptr;
  GemmOutput output = GemmOutput::kBf16;
  int64_t ldy = 0;
  /// Programmatic dependent launch: weights are read while the previous kernel of the stream still runs, everything
  /// else after it has finished. Weights, scales, offsets and bias must then not be written by that kernel.
  bool overlap_previous = false;
};

/// Sizes of the derived layout.
int64_t padded_rows(int64_t n);  // scale rows: n rounded up to 128
int64_t group_count(const GemmWeights& w);
size_t tile_bytes(FormatId format, GemmActivation activation, int64_t n, int64_t k);

/// True when gemm() runs this problem on a device of compute capability `arch` (10 * major + minor, >= 80). Needed:
/// integer values; int8 activations: group a multiple of 32 (or one per row) and at most 131072; f16 and bf16: format
/// values within -8..7 or 0..15, group a multiple of 16. Pointers are not looked at.
bool supports(const GemmProblem& problem, int arch);

/// Runs on `stream`; the device is the current one.
/// Errors: kInvalidArgument, kUnsupported, kCudaError; nothing is launched with the first two.
GemmStatus gemm(const GemmProblem& problem, CUstream_st* stream);

/// tiles = the fragment order of canonical rows (row r at codes + r * row_stride_bytes, device memory).
GemmStatus relayout_weights(FormatId format, GemmActivation activation, const uint8_t* codes, int64_t row_stride_bytes,
                            int64_t n, int64_t k, void* tiles, CUstream_st* stream);

/// kBit: out [padded_rows(n)] = k - 2 * ones of a canonical binary row.
GemmStatus relayout_bit_terms(const uint8_t* codes, int64_t row_stride_bytes, int64_t n, int64_t k, int32_t* out,
                              CUstream_st* stream);

/// out [groups, padded_rows(n)] = in [n, groups] transposed, padded with zeros. For scales and offsets.
GemmStatus relayout_scales(const float* in, int64_t n, int64_t groups, float* out, CUstream_st* stream);

}  // namespace lowbit::cuda
