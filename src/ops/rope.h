#pragma once
// Rotary position embedding, half-split order: element i of a head is rotated with element i +
// head_dim / 2.

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "kernels/api.h"
#include "lowbit/error.h"

namespace lowbit {

struct RopeScaling {
  enum class Kind {
    kNone,
    kLinear,   // frequencies / factor
    kDynamic,  // changes nothing up to original_max_positions; longer contexts are refused at load
    kLlama3,   // long wavelengths / factor, short ones kept, a linear blend between
  };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // kLlama3
  int64_t original_max_positions = 0;                // kLlama3, kDynamic
};

/// Radians per position of each pair: theta^(-2 i / head_dim), then scaled.
/// Shapes: result [head_dim / 2]. Source: Hugging Face modeling_rope_utils; checked against it in
/// the tests.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling);

/// cos and sin of positions [first, first + n), computed in double and rounded once.
/// Shapes: cos, sin [n, frequencies.size()].
void rope_table(const std::vector<double>& frequencies, int64_t first, int64_t n, float* cos, float* sin,
                ThreadPool& pool);

/// Rotates every head of every row in place. Shapes: x [M, heads * 2 * half] row stride ldx; cos,
/// sin [M, half].
void rope_rows(const VectorOps& ops, float* x, int64_t ldx, int64_t m, int64_t heads, int64_t half, const float* cos,
               const float* sin, ThreadPool& pool);

}  // namespace lowbit
