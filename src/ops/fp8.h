#pragma once
// FP8 in blocks: E4M3 codes with a scale per block, made of floats, turned back, and multiplied. Checks shapes and
// shares the work out. Numerics: docs/numerics.md#fp8-in-blocks; the same bits for any instruction set and number of
// threads. Source: seed 004.

#include <cstdint>

#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/fp8_groups.h"
#include "kernels/fp8_problem.h"
#include "lowbit/error.h"

namespace lowbit {

/// Up to `at_most`, which the machine has.
const Fp8Kernels& fp8_kernels(Isa at_most);

/// Values of a row of codes times `factor`, a power of two; with `pairs` two columns in each word of 32 bits as bf16,
/// which those values are: column 2 i in the upper half of word i, zero behind the last.
void decode_fp8_row(const Fp8Kernels& kernels, const uint8_t* codes, int64_t k, float factor, bool pairs, float* out);
/// Words from one such row to the next: an odd number of cache lines, so that rows do not share cache sets.
int64_t fp8_row_words(int64_t k, bool pairs);

/// Errors: kInvalidArgument (extents, strides, null pointers), kOutOfMemory.
Status quantize_fp8(const Fp8Quant& q, Isa isa, ThreadPool& pool);
Status dequantize_fp8(const Fp8Dequant& d, Isa isa, ThreadPool& pool);
Status gemm_fp8(const Fp8Gemm& g, Isa isa, ThreadPool& pool);

/// gemm_fp8() for groups of rows. Errors: those of gemm_fp8, and ends that do not ascend.
Status grouped_gemm_fp8(const Fp8Gemm& g, const Fp8Groups& groups, Isa isa, ThreadPool& pool);

// Checks that the CPU and the GPU share.
Status check_fp8(const Fp8Quant& q);
Status check_fp8(const Fp8Dequant& d);
Status check_fp8(const Fp8Gemm& g);
Status check_fp8(const Fp8Gemm& g, const Fp8Groups& groups);

}  // namespace lowbit
