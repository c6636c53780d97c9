#pragma once
// Roundings of activations beside the default one (VectorOps::quantize_groups_int8): fewer levels, and clipped rows,
// whose codes go through the same integer kernels; floats of 16 bits, which go through the exact ones. So every
// instruction set gives the same bits.

#include <cstdint>

namespace lowbit {

/// Floats of 16 bits, rounded to nearest even as base/float.h does: beyond 65504 + 16, f16 is infinite.
enum class Halves : uint8_t { kNone, kF16, kBf16 };
constexpr const char* halves_name(Halves h) { return h == Halves::kF16 ? "f16" : h == Halves::kBf16 ? "bf16" : "f32"; }

inline constexpr int64_t kExactScaleColumns = 128;

/// How a row of floats becomes codes on the integer path, and what becomes of it on the exact one.
struct ActivationRounding {
  int largest = 127;  // codes are -largest..largest: 7 for 4 bits in int8 containers
  float clipped =
      0;  // part of a row's columns that saturate: 0.001 clips at the 99.9 % quantile of |x|, at least one column
  Halves halves = Halves::kNone;  // exact path
  /// kExactScaleColumns share a scale of six significant bits: a sum of products over them has the same bits in f32
  /// whether it is one integer or added up group by group (docs/adr/0225-scales-of-x-that-sums-keep-exact.md).
  bool exact_scales = false;
  bool is_default() const { return largest == 127 && clipped == 0; }
  bool operator==(const ActivationRounding&) const = default;
};

/// Clips v [k] in place to the smallest magnitude that leaves out ceil(clipped * k) columns (all but one at most). Rows
/// with a NaN stay.
void clip_row(float* v, int64_t k, double clipped);

/// y [n] = x, rounded to 16 bits; y may be x.
void round_to_halves(const float* x, int64_t n, Halves to, float* y);

/// VectorOps::quantize_groups_int8 without a norm, with codes up to `largest`: per group scale = absmax / largest,
/// xq = round-half-even(v * (largest / absmax)). Zeros from k up to `padded`.
void round_groups(const float* v, int64_t k, int64_t group, int64_t padded, int largest, int8_t* xq, float* scales,
                  int32_t* sums);

}  // namespace lowbit
