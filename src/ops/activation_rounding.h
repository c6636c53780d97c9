#pragma once
// Roundings of activations beside the default one (VectorOps::quantize_groups_int8): fewer levels, and clipped rows.
// The codes go through the same integer kernels, so every instruction set gives the same bits.

#include <cstdint>

namespace lowbit {

/// How a row of floats becomes codes on the integer path.
struct ActivationRounding {
  int largest = 127;  // codes are -largest..largest: 7 for 4 bits in int8 containers
  float clipped =
      0;  // part of a row's columns that saturate: 0.001 clips at the 99.9 % quantile of |x|, at least one column
  bool is_default() const { return largest == 127 && clipped == 0; }
  bool operator==(const ActivationRounding&) const = default;
};

/// Clips v [k] in place to the smallest magnitude that leaves out ceil(clipped * k) columns (all but one at most). Rows
/// with a NaN stay.
void clip_row(float* v, int64_t k, double clipped);

/// VectorOps::quantize_groups_int8 without a norm, with codes up to `largest`: per group scale = absmax / largest,
/// xq = round-half-even(v * (largest / absmax)). Zeros from k up to `padded`.
void round_groups(const float* v, int64_t k, int64_t group, int64_t padded, int largest, int8_t* xq, float* scales,
                  int32_t* sums);

}  // namespace lowbit
