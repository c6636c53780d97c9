#pragma once
// Operands of CUDA kernels: the part of kernels/cuda_api.h that device code needs, without host libraries.

#include <cstdint>

#include "base/isa.h"
#include "lowbit/format_id.h"

namespace lowbit::cuda {

enum class Element : uint8_t { kF32, kF16, kBf16, kInt8 };
constexpr LOWBIT_HD int element_bytes(Element e) { return e == Element::kF32 ? 4 : e == Element::kInt8 ? 1 : 2; }

/// Scales and offsets lie as [groups, factor_rows(n)], zeros behind row n: one order that every kernel reads.
constexpr LOWBIT_HD int64_t factor_rows(int64_t n) { return (n + 127) / 128 * 128; }

/// A weight as a kernel reads it, in device memory. Scales are f32 and transposed, so that neighbouring rows are
/// neighbours.
struct Weight {
  const uint8_t* codes = nullptr;  // tile_rows rows at a time, tile_rows * row_bytes apart, in the kernel's order
  int64_t row_bytes = 0;
  const float* scales = nullptr;   // [groups, factor_rows(n)]; null for dense formats
  const float* offsets = nullptr;  // likewise, or null
  const float* table = nullptr;    // [16], codebooks only
  int64_t n = 0, k = 0;
  int64_t group = 0, groups = 1;  // columns per scale, and how many scales a row has
  /// With scales of x per group: so many groups in a row belong to one of the weight's own and have its scale. Their
  /// sums times x's scales are added first (docs/numerics.md#matmul).
  int64_t groups_per_scale = 1;
};

}  // namespace lowbit::cuda
