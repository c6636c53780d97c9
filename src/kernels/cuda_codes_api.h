#pragma once
// The contract between backend/cuda/ and the kernels that make int8 or E4M3 codes of many rows, with what stands before
// them in the same launch. No CUDA types; kernels/cuda/block/row_codes.cu and flat_codes.cu implement it,
// kernels/cuda_stub/ stands in for it. Numerics: docs/numerics.md, the bits of the calls one after the other. Device
// memory; only enqueues work.

#include <cstdint>

#include "lowbit/error.h"

namespace lowbit::cuda {

/// Rows before their norm: x; x + other, which is stored as x; silu(x) * other, or relu(x)^2 * other, which are not
/// stored.
enum class RowStart : uint8_t { kX, kSum, kSilu, kSquaredRelu };

/// Codes and scales of rows [m, k], as quantize_activations() makes them: a scale per `group` columns, or per row (0).
/// `e4m3`: as quantize_fp8() makes them, a scale per 128 columns, by column.
struct RowCodes {
  RowStart start = RowStart::kX;
  float* x = nullptr;
  const float* other = nullptr;
  const float* norm = nullptr;  // [k]: norm_codes(); null: none
  float eps = 0;
  int64_t m = 0, k = 0, group = 0;
  int8_t* codes = nullptr;  // [m, ldq], zeros from k on
  int64_t ldq = 0;
  float* scales = nullptr;  // [m, groups]; E4M3: [groups, ldscales], what lies behind row m is not written
  void* stream = nullptr;
  bool e4m3 = false;
  int64_t ldscales = 0;
  /// Groups of 32, four of which have one exact scale (ActivationRounding::exact_scales), each a copy of it.
  bool exact_scales = false;
};
/// Whether row_codes() takes them: groups of 32 or whole rows, E4M3 of 128, k and ldq whole quads, and room in a block
/// for a row, unless it is neither normed nor coded as a whole.
bool takes_row_codes(const RowCodes& call);
Status row_codes(const RowCodes& call);

}  // namespace lowbit::cuda
