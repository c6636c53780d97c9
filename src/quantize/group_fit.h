#pragma once
// Scale (and offset) searches for one group of numbers: pure functions, no formats, no storage.
//
// All work in the group's own units (the caller divides by a power of two near the absolute
// maximum), so neither denormal nor huge weights overflow or vanish. The model is
//   x ~ value * scale + offset,  error = sum h (x - value * scale - offset)^2.

#include <cstdint>

#include "quantize/grid.h"

namespace lowbit {

/// Elements that share a scale. `h` are importance weights > 0, or null for all ones.
struct Group {
  const float* x = nullptr;
  const float* h = nullptr;
  int64_t n = 0;
  // Over all elements, also those that a sampled group leaves out of x:
  float abs_max = 0, min = 0, max = 0;
  float abs_mean = 0;
};

enum class OffsetRule : uint8_t {
  kNone,     // offset = 0
  kFree,     // any
  kInteger,  // offset = -zero * scale with an integer zero in -128..127
};

struct AffineFit {
  float scale = 0, offset = 0;
  double error = 0;  // before scale and offset are rounded for storage
};

/// Sums over a group for given scale and offset, each x replaced by its nearest value v;
/// d = x - v * scale - offset.
struct ResidualSums {
  double dd = 0, dv = 0, vv = 0, d = 0, v = 0, h = 0;  // of h d d, h d v, h v v, h d, h v, h
};

/// scale != 0. Float sums within 256 elements, double across.
ResidualSums residual_sums(const Grid& grid, const Group& group, float scale, float offset);

/// abs_max maps to the grid's reach; with an offset: [min, max] to [low, high].
AffineFit fit_absmax(const Grid& grid, const Group& group, OffsetRule rule);

/// scale = mean |x|: BitNet's ternary rule when the group is the whole tensor, and the
/// least-squares answer for {-1, 1}. Offset 0.
AffineFit fit_absmean(const Grid& grid, const Group& group);

/// The best of 80 shrunken ranges: absmax times 1.00, 0.99, .. 0.21 (GPTQ's `mse`).
AffineFit fit_shrink(const Grid& grid, const Group& group, OffsetRule rule);

/// Least squares. Few values (up to 4, or n * values up to 256) and no offset: the global optimum, by sorting the
/// scales at which a code changes and updating the two sums from one to the next, O(n log n); this is the ternary
/// threshold search and the binary mean in one. Small groups on up to 16 integers: sweep_scale(). Otherwise
/// alternate_from_starts(), and the like with offsets.
AffineFit fit_least_squares(const Grid& grid, const Group& group, OffsetRule rule);

/// Least squares without an offset: residual_sums over a geometric range of starts, of which the best three alternate
/// between nearest codes and closed-form scale.
AffineFit alternate_from_starts(const Grid& grid, const Group& group);

/// The least-squares scale (and offset; kInteger keeps its zero) for the codes that `fit` gives: one step of
/// alternation.
AffineFit refit(const Grid& grid, const Group& group, const AffineFit& fit, OffsetRule rule);

/// The exact search of fit_least_squares for any number of values; OffsetRule::kNone.
AffineFit fit_exact_scale(const Grid& grid, const Group& group);

}  // namespace lowbit
