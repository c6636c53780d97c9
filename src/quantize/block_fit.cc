#include "quantize/block_fit.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "base/checked.h"
#include "base/float.h"

namespace lowbit {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 17;  // a larger block is sampled

/// A block in units of 2^exponent.
struct Block {
  Group group;
  int exponent = 0;
  bool finite = true, sampled = false;
};

struct Stored {
  float scale = 0, zero = 0;
};

int32_t largest_magnitude_bits(const float* x, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// out = x * 2^-exponent; two factors because 2^149 is no float.
void scale_down(const float* x, int64_t n, int exponent, float* out) {
  const float a = std::ldexp(1.0f, -(exponent / 2));
  const float b = std::ldexp(1.0f, -(exponent - exponent / 2));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * a * b;
}

void range_of(const FitPlan& plan, const float* x, int64_t n, Group& g, double& sum) {
  if (plan.rule != OffsetRule::kNone)
    for (int64_t i = 0; i < n; ++i) {
      g.min = x[i] < g.min ? x[i] : g.min;
      g.max = x[i] > g.max ? x[i] : g.max;
    }
  if (plan.options.method == FitMethod::kAbsmean)
    for (int64_t i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(x[i]));
}

Block gather(const FitPlan& plan, const RowSlice& w, int64_t scale_row, int64_t col, BlockScratch& scratch) {
  const auto [row_begin, row_end] = plan.rows_of(scale_row);
  const int64_t k_begin = col * plan.group(), k_end = std::min(k_begin + plan.group(), plan.k);
  const int64_t width = k_end - k_begin, height = row_end - row_begin;
  Block block;
  Group& g = block.group;
  int32_t largest = 0;
  for (int64_t r = row_begin; r < row_end; ++r)
    largest = std::max(largest, largest_magnitude_bits(w.row(r, plan.k) + k_begin, width));
  block.finite = largest < 0x7f800000;
  g.abs_max = std::bit_cast<float>(largest);
  if (!block.finite || largest == 0) return block;
  block.exponent = std::ilogb(g.abs_max);

  block.sampled = height > 1 && width * height > kMostElements;
  const int64_t taken = block.sampled ? std::max<int64_t>(1, kMostElements / width) : height;
  g.min = INFINITY;
  g.max = -INFINITY;
  double sum = 0;
  for (int64_t r = row_begin; r < row_end; ++r) range_of(plan, w.row(r, plan.k) + k_begin, width, g, sum);
  const auto in_units = [&](float v) { return std::ldexp(v, -block.exponent); };
  g.abs_max = in_units(g.abs_max);
  g.min = in_units(g.min);
  g.max = in_units(g.max);
  g.abs_mean =
      static_cast<float>(std::ldexp(sum / (static_cast<double>(width) * static_cast<double>(height)), -block.exponent));

  g.n = taken * width;
  scratch.x.resize(static_cast<size_t>(g.n));
  for (int64_t i = 0; i < taken; ++i) {
    const int64_t r = row_begin + i * height / taken;
    scale_down(w.row(r, plan.k) + k_begin, width, block.exponent, scratch.x.data() + i * width);
  }
  g.x = scratch.x.data();
  if (!plan.weights.empty()) {
    g.h = plan.weights.data() + k_begin;
    if (taken > 1) {
      scratch.h.resize(static_cast<size_t>(g.n));
      for (int64_t i = 0; i < taken; ++i) std::copy_n(g.h, width, scratch.h.data() + i * width);
      g.h = scratch.h.data();
    }
  }
  return block;
}

AffineFit search(const FitPlan& plan, const Group& g) {
  switch (plan.options.method) {
    case FitMethod::kAbsmax:
      return fit_absmax(plan.grid, g, plan.rule);
    case FitMethod::kAbsmean:
      return fit_absmean(plan.grid, g);
    case FitMethod::kMse:
      return fit_shrink(plan.grid, g, plan.rule);
    case FitMethod::kAuto:
    case FitMethod::kLsq:
      break;
  }
  return fit_least_squares(plan.grid, g, plan.rule);
}

float clamped_f16(float v) { return f16_to_f32(f32_to_f16(std::min(std::max(v, -65504.0f), 65504.0f))); }

/// The zero that a block can store for a real-valued offset. `scale`, `offset` in block units.
float round_zero(const FitPlan& plan, float scale, float offset, int exponent) {
  const Scaling& s = plan.options.scaling;
  switch (s.zero) {
    case ZeroKind::kNone:
      break;
    case ZeroKind::kPointI8:
      return std::min(std::max(std::nearbyint(-offset / scale), -128.0f), 127.0f) + 0.0f;
    case ZeroKind::kPointF16:
      return clamped_f16(-offset / scale) + 0.0f;
    case ZeroKind::kOffset: {
      const float real = std::ldexp(offset, exponent);
      if (s.scale != ScaleKind::kF32) return clamped_f16(real);
      return std::min(std::max(real, -FLT_MAX), FLT_MAX);
    }
  }
  return 0;
}

double error_without_scale(const Group& g, float offset) {
  double sum = 0;
  for (int64_t i = 0; i < g.n; ++i) {
    const double d = static_cast<double>(g.x[i]) - offset;
    sum += (g.h ? g.h[i] : 1.0) * d * d;
  }
  return sum;
}

/// The best storable scale and zero of a block so far.
struct Choice {
  Stored stored;
  double error = INFINITY;

  void offer(const Stored& s, double e) {
    if (e < error) {
      stored = s;
      error = e;
    }
  }
};

bool is_usable(float scale) { return scale != 0 && std::isfinite(scale) && std::isfinite(1.0f / scale); }

/// Tries the storable scale `real_scale`: the grid keeps its middle where `fit` has it, the zero is
/// rounded, and for least squares moved once more to where the mean residual is 0.
void offer_scale(const FitPlan& plan, const Block& block, const AffineFit& fit, float real_scale, Choice& choice) {
  const float scale = std::ldexp(real_scale, -block.exponent);
  if (!is_usable(scale)) return;
  const ZeroKind kind = plan.options.scaling.zero;
  const auto offset_of = [&](float zero) {
    return kind == ZeroKind::kOffset ? std::ldexp(zero, -block.exponent) : -zero * scale;
  };
  const float centre = 0.5f * (plan.grid.low() + plan.grid.high());
  float offset = kind == ZeroKind::kNone ? 0 : fit.offset + (fit.scale - scale) * centre;
  const bool moves = plan.options.method == FitMethod::kLsq && kind != ZeroKind::kNone;
  for (int round = 0; round < (moves ? 2 : 1); ++round) {
    const float zero = round_zero(plan, scale, offset, block.exponent);
    offset = offset_of(zero);
    const ResidualSums sums = residual_sums(plan.grid, block.group, scale, offset);
    choice.offer({real_scale, zero}, sums.dd);
    offset += static_cast<float>(sums.d / sums.h);
  }
}

/// Whether no scale is worse than one that leaves `error`: the largest element alone would lose more, being 1 or more.
bool loses_without_scale(const FitPlan& plan, const Block& block, double error) {
  return block.group.h == nullptr && plan.rule == OffsetRule::kNone && !block.sampled && error < 1;
}

/// Whether the scale that a search found, rounded to `real_scale`, needs no comparison with none: its error grows by
/// the change of each value at most, and stays well below.
bool stands_alone(const FitPlan& plan, const Block& block, const AffineFit& fit, float real_scale) {
  const FitMethod method = plan.options.method;
  if (plan.options.scaling.scale == ScaleKind::kPow2 || (method != FitMethod::kAuto && method != FitMethod::kLsq))
    return false;
  const float scale = std::ldexp(real_scale, -block.exponent);
  const double furthest = std::max(std::fabs(plan.grid.low()), std::fabs(plan.grid.high())),
               moved = furthest * (double(scale) - fit.scale);
  return is_usable(scale) &&
         loses_without_scale(plan, block, 1.01 * fit.error + static_cast<double>(block.group.n) * moved * moved + 0.01);
}

/// Offers the block without a scale: every element becomes 0, or the mean where there are offsets.
void offer_no_scale(const FitPlan& plan, const Block& block, Choice& choice) {
  if (plan.options.scaling.scale == ScaleKind::kPow2) return;  // a shift has no zero
  const Group& g = block.group;
  if (loses_without_scale(plan, block, choice.error)) return;
  float zero = 0;
  if (plan.options.scaling.zero == ZeroKind::kOffset) {
    double sum = 0, sum_h = 0;
    for (int64_t i = 0; i < g.n; ++i) {
      const double h = g.h ? g.h[i] : 1.0;
      sum += h * g.x[i];
      sum_h += h;
    }
    zero = round_zero(plan, 1, static_cast<float>(sum / sum_h), block.exponent);
  }
  choice.offer({0, zero}, error_without_scale(g, std::ldexp(zero, -block.exponent)));
}

/// Keeps every value * scale finite.
float capped(const FitPlan& plan, float scale) {
  const float furthest = std::max(std::fabs(plan.grid.low()), std::fabs(plan.grid.high())) +
                         (plan.options.scaling.zero == ZeroKind::kNone ? 0.0f : 128.0f);
  const float most = 0.99f * FLT_MAX / furthest;
  return std::min(std::max(scale, -most), most);
}

Stored choose_stored(const FitPlan& plan, const Block& block, const AffineFit& fit) {
  const ScaleKind kind = plan.options.scaling.scale;
  Choice choice;
  const float nearest = round_scale(capped(plan, std::ldexp(fit.scale, block.exponent)), kind);
  if (stands_alone(plan, block, fit, nearest)) return {nearest, 0};
  offer_scale(plan, block, fit, nearest, choice);
  if (kind == ScaleKind::kPow2)
    for (const float other : {0.5f * nearest, 2.0f * nearest})
      if (other >= 0x1p-127f && capped(plan, other) == other) offer_scale(plan, block, fit, other, choice);
  offer_no_scale(plan, block, choice);
  if (choice.error == INFINITY) choice.stored.scale = round_scale(0, kind);
  return choice.stored;
}

/// The int8 scale code of kDouble: the nearest one or a neighbour, whichever loses least.
Stored choose_code(const FitPlan& plan, const Block& block, const AffineFit& fit, float scale, float super) {
  Choice choice;
  const float code = std::min(std::max(std::nearbyint(scale / super), -127.0f), 127.0f);
  for (const float c : {code, code - 1, code + 1})
    if (std::fabs(c) <= 127) offer_scale(plan, block, fit, c * super, choice);
  offer_no_scale(plan, block, choice);
  return choice.stored;
}

bool fit_double_blocks(const FitPlan& plan, const RowSlice& w, int64_t scale_row, int64_t begin, int64_t end,
                       const ScaleRow& out, BlockScratch& scratch) {
  AffineFit fits[kSuperGroup];
  float wanted[kSuperGroup];
  const int64_t count = end - begin;
  for (int64_t i = 0; i < count; ++i) {
    const Block block = gather(plan, w, scale_row, begin + i, scratch);
    if (!block.finite) return false;
    fits[i] = block.group.abs_max == 0 ? AffineFit{} : search(plan, block.group);
    wanted[i] = capped(plan, std::ldexp(fits[i].scale, block.exponent));
  }
  float rounded[kSuperGroup];
  float& super = out.supers[begin / kSuperGroup];
  std::copy_n(wanted, count, rounded);
  double_quantize(rounded, count, &super);
  for (int64_t i = 0; i < count; ++i) {
    const Block block = gather(plan, w, scale_row, begin + i, scratch);
    Stored stored;
    if (block.group.abs_max != 0) {
      if (super != 0) {
        stored = choose_code(plan, block, fits[i], wanted[i], super);
      } else {
        Choice choice;
        offer_no_scale(plan, block, choice);
        stored = choice.stored;
      }
    }
    out.scales[begin + i] = stored.scale;
    if (out.zeros) out.zeros[begin + i] = stored.zero;
  }
  return true;
}

}  // namespace

int64_t FitPlan::group() const { return options.scaling.k_block == Scaling::kAll ? k : options.scaling.k_block; }
int64_t FitPlan::scale_cols() const { return ceil_div(k, group()); }
int64_t FitPlan::super_cols() const {
  return options.scaling.scale == ScaleKind::kDouble ? ceil_div(scale_cols(), kSuperGroup) : 0;
}
int64_t FitPlan::scale_rows() const {
  if (options.scaling.n_block == Scaling::kAll) return 1;
  if (options.scaling.n_block == Scaling::kRowRanges) return static_cast<int64_t>(options.row_ends.size());
  return ceil_div(n, options.scaling.n_block);
}
std::pair<int64_t, int64_t> FitPlan::rows_of(int64_t scale_row) const {
  if (options.scaling.n_block == Scaling::kAll) return {0, n};
  if (options.scaling.n_block == Scaling::kRowRanges) {
    const auto i = static_cast<size_t>(scale_row);
    return {i == 0 ? 0 : options.row_ends[i - 1], options.row_ends[i]};
  }
  const int64_t first = scale_row * options.scaling.n_block;
  return {first, std::min(first + options.scaling.n_block, n)};
}

bool fit_blocks(const FitPlan& plan, const RowSlice& w, int64_t scale_row, int64_t col_begin, int64_t col_end,
                const ScaleRow& out, BlockScratch& scratch) {
  if (plan.options.scaling.scale == ScaleKind::kDouble) {
    bool finite = true;
    for (int64_t c = col_begin; c < col_end; c += kSuperGroup)
      finite = fit_double_blocks(plan, w, scale_row, c, std::min(c + kSuperGroup, col_end), out, scratch) && finite;
    return finite;
  }
  bool all_finite = true;
  for (int64_t c = col_begin; c < col_end; ++c) {
    const Block block = gather(plan, w, scale_row, c, scratch);
    all_finite = all_finite && block.finite;
    Stored stored{round_scale(0, plan.options.scaling.scale), 0};
    if (block.finite && block.group.abs_max != 0) stored = choose_stored(plan, block, search(plan, block.group));
    out.scales[c] = stored.scale;
    if (out.zeros) out.zeros[c] = stored.zero;
  }
  return all_finite;
}

}  // namespace lowbit
