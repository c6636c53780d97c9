#pragma once
// The best of 48 scales for a small group on few integers. Internal to src/quantize.

#include <array>
#include <vector>

#include "quantize/scale_sums.h"

namespace lowbit {

/// Scales that were tried. To compare them fast, an error is a float (of 0 or more) whose last five bits give way to
/// the place of its scale.
struct ScaleTrials {
  static constexpr uint32_t kMost = 2 * kScalesAtOnce;
  alignas(64) std::array<float, kMost> solved;   // the scale that is best for the codes
  alignas(64) std::array<uint32_t, kMost> keys;  // the error that is left then
};

/// Copies of the search for one width of vectors; all have the same bits.
struct ScaleSweep {
  /// Of scales [kScalesAtOnce], none of them 0, to the places from `first` on. Over a group whose energy, the sum of
  /// x x, is given, and with each x replaced by its nearest integer v, the sums of x v and of v v are of floats, in
  /// order; solved = xv / vv (0 where all v are 0), error = energy - solved xv.
  void (*try_scales)(const Integers& on, float energy, const float* scales, uint32_t first, ScaleTrials& out);
  /// sweep_scale() by that.
  AffineFit (*search)(const Grid& grid, const Group& group);
};
/// The copies that this processor can run, the widest last.
const std::vector<ScaleSweep>& scale_sweeps();

/// Whether sweep_scale() searches this grid and group. With more weights, what the sums leave of the error is lost in
/// their rounding; with importance, a few elements make the error rough, and alternate_from_starts() finds more.
bool can_be_swept(const Grid& grid, const Group& group);

/// Least squares without an offset: 32 scales in steps of some 6 %, then eight more around each of the best two. Its
/// error is that of the codes of the best one under the scale that is best for them.
AffineFit sweep_scale(const Grid& grid, const Group& group);

}  // namespace lowbit
