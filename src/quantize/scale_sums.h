#pragma once
// Sums that a search of scales without an offset asks for again and again. Internal to src/quantize.

#include <array>
#include <vector>

#include "quantize/grid.h"
#include "quantize/group_fit.h"

namespace lowbit {

inline constexpr int kScalesAtOnce = 16;

/// The sums of ResidualSums that such a search needs, of each scale.
struct ScaleSums {
  alignas(64) std::array<double, kScalesAtOnce> dd, dv, vv;  // of those not asked for: anything
};

/// residual_sums() for the first `count` of scales [kScalesAtOnce], to the last bit, in less time. No scale is 0, nor
/// one behind the first `count`.
void scale_sums(const Grid& grid, const Group& group, const float* scales, int count, ScaleSums& sums);

/// A group and the integers from low to high, 0 among them.
struct Integers {
  const Group& group;
  float low, high;
};
using SumIntegers = void (*)(const Integers& on, const float* scales, int count, ScaleSums& sums);
/// The copies of scale_sums() for integers that this processor can run, the widest last: that one is taken.
const std::vector<SumIntegers>& integer_loops();

/// For each of the `count` scales behind `sums`: the scale that its codes have the least error with, and that error.
/// Shapes: scales, solved, errors [kScalesAtOnce].
void solve_scales(const ScaleSums& sums, const float* scales, int count, float* solved, double* errors);

}  // namespace lowbit
