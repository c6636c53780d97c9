#pragma once
// FP8 in blocks on a GPU: the contract, as kernels/cuda_api.h. All pointers of the structs are device memory. The calls
// enqueue work, allocate nothing, wait for nothing and may be captured into a graph. What shapes and strides must be,
// the caller has checked (check_fp8() of ops/fp8.h).

#include "kernels/fp8_groups.h"
#include "kernels/fp8_problem.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

/// The CPU's codes and scales, bit for bit.
Status quantize_fp8(const Fp8Quant& q, void* stream);
/// The CPU's bits.
Status dequantize_fp8(const Fp8Dequant& d, void* stream);
struct Fp8GemmUse {
  const float* bias = nullptr;  // [n] or null: added to the f32 sums
  /// Work before the product on its stream may write b. Where none does, first codes are fetched before that is done.
  bool new_weights = true;
  bool exact = false;  // with a scale of b per row the CPU's bits
};
/// On compute capability 9.0 by tensor cores, whose sums within a block of 128 columns are rounded their own way, where
/// rows of a and b begin at multiples of 16 bytes and scales of b are of whole multiples of 128 rows, or of one row and
/// a has more than eight. Else the CPU's bits, sums over k in order: of one to eight rows, if k is a multiple of 16.
/// Else, with scales of b for multiples of 64 rows, by mma.sync on E4M3 (8.9) or on f16, whose products are exact and
/// whose sums are f32's but for their order. Else the CPU's bits.
Status gemm_fp8(const Fp8Gemm& g, void* stream, const Fp8GemmUse& use = {});

/// gemm_fp8() for groups of rows, on the same tensor cores. Ends and row numbers are not checked: rows outside of a are
/// left out. kUnsupported: scales of b that are not of whole multiples of 64 rows.
Status grouped_gemm_fp8(const Fp8Gemm& g, const Fp8Groups& groups, void* stream);

enum class Fp8Cores : uint8_t { kHalves, kE4m3 };
/// Either (groups without count: none) by mma.sync on such tensor cores, for tests: where others would be chosen, too.
/// kUnsupported: E4M3 before compute capability 8.9, and such scales.
Status gemm_fp8_by_mma(const Fp8Gemm& g, const Fp8Groups& groups, Fp8Cores cores, void* stream);

}  // namespace lowbit::cuda
