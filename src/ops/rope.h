#pragma once
// Rotary position embedding, half-split order: element i of a head is rotated with element i +
// head_dim / 2.

#include <cstdint>
#include <vector>

#include "arch/spec.h"
#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/error.h"

namespace lowbit {

/// Radians per position of each pair: theta^(-2 i / dims), then scaled.
/// Shapes: result [dims / 2]. Source: Hugging Face modeling_rope_utils; checked against it in
/// the tests.
std::vector<double> rope_frequencies(const RopeSpec& rope);

/// cos and sin of positions [first, first + n), computed in double and rounded once.
/// Shapes: cos, sin [n, frequencies.size()].
void rope_table(const std::vector<double>& frequencies, int64_t first, int64_t n, float* cos, float* sin,
                ThreadPool& pool);

/// Rotates every head of every row in place. Shapes: x [M, heads * 2 * half] row stride ldx; cos,
/// sin [M, half].
void rope_rows(const VectorOps& ops, float* x, int64_t ldx, int64_t m, int64_t heads, int64_t half, const float* cos,
               const float* sin, ThreadPool& pool);

}  // namespace lowbit
