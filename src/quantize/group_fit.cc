#include "quantize/group_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "quantize/scale_sums.h"
#include "quantize/scale_sweep.h"

namespace lowbit {
namespace {

/// Best candidates first; few enough that insertion is the right sort.
template <int N>
struct Leaders {
  std::array<AffineFit, N> best;
  int count = 0;

  void offer(const AffineFit& fit) {
    int at = count < N ? count++ : N;
    if (at == N && !(fit.error < best[N - 1].error)) return;
    if (at == N) at = N - 1;
    for (; at > 0 && fit.error < best[static_cast<size_t>(at - 1)].error; --at)
      best[static_cast<size_t>(at)] = best[static_cast<size_t>(at - 1)];
    best[static_cast<size_t>(at)] = fit;
  }
};

/// The least-squares answer for the codes behind `s`, starting from `fit`; `zero` for kInteger.
AffineFit solve(const ResidualSums& s, AffineFit fit, OffsetRule rule, float zero) {
  fit.error = s.dd;
  if (rule == OffsetRule::kFree) {
    const double det = s.h * s.vv - s.v * s.v;
    if (det <= 1e-9 * s.h * s.vv) return fit;
    const double ds = (s.h * s.dv - s.v * s.d) / det, dm = (s.vv * s.d - s.v * s.dv) / det;
    fit.scale += static_cast<float>(ds);
    fit.offset += static_cast<float>(dm);
    fit.error -= ds * s.dv + dm * s.d;
    return fit;
  }
  const double z = rule == OffsetRule::kInteger ? static_cast<double>(zero) : 0.0;
  const double dv = s.dv - z * s.d, vv = s.vv - 2 * z * s.v + z * z * s.h;
  if (vv <= 0) return fit;
  fit.scale += static_cast<float>(dv / vv);
  if (rule == OffsetRule::kInteger) fit.offset = -zero * fit.scale;
  fit.error -= dv * dv / vv;
  return fit;
}

constexpr int kRounds = 10;

/// False: the error no longer falls, or hardly.
bool keep_better(const AffineFit& fit, AffineFit& best) {
  const double before = best.error;
  if (!(fit.error < before)) return false;
  best = fit;
  return !(fit.error > before * (1 - 1e-5));
}

/// Alternates nearest codes and closed form until the error no longer falls.
AffineFit alternate(const Grid& grid, const Group& g, AffineFit fit, OffsetRule rule, float zero) {
  AffineFit best = fit;
  for (int round = 0; round < kRounds && fit.scale != 0; ++round) {
    fit = solve(residual_sums(grid, g, fit.scale, fit.offset), fit, rule, zero);
    if (!keep_better(fit, best)) break;
  }
  return best;
}

constexpr int kOffsetLeaders = 8, kScaleLeaders = 3;

std::array<float, kScalesAtOnce> all_ones() {
  std::array<float, kScalesAtOnce> ones;
  ones.fill(1);
  return ones;
}

/// Scales to begin with, tried several at a time in the order in which they come.
class Starts {
 public:
  Starts(const Grid& grid, const Group& g, Leaders<kScaleLeaders>& leaders) : grid_(grid), g_(g), leaders_(leaders) {}

  void add(float scale) {
    scales_[static_cast<size_t>(count_++)] = scale;
    if (count_ == kScalesAtOnce) finish();
  }
  void finish() {
    const int count = std::exchange(count_, 0);
    ScaleSums sums;
    std::array<float, kScalesAtOnce> solved;
    std::array<double, kScalesAtOnce> errors;
    scale_sums(grid_, g_, scales_.data(), count, sums);
    solve_scales(sums, scales_.data(), count, solved.data(), errors.data());
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) leaders_.offer({solved[i], 0, errors[i]});
  }

 private:
  const Grid& grid_;
  const Group& g_;
  Leaders<kScaleLeaders>& leaders_;
  std::array<float, kScalesAtOnce> scales_ = all_ones();
  int count_ = 0;
};

/// alternate() of each leader, without an offset.
void alternate_together(const Grid& grid, const Group& g, Leaders<kScaleLeaders>& leaders) {
  static_assert(kScaleLeaders <= kScalesAtOnce);
  std::array<AffineFit, kScaleLeaders> fits = leaders.best;
  std::array<bool, kScaleLeaders> goes_on{};
  for (int i = 0; i < leaders.count; ++i) goes_on[static_cast<size_t>(i)] = true;
  for (int round = 0; round < kRounds; ++round) {
    std::array<float, kScalesAtOnce> scales = all_ones();  // of those that stopped
    bool any = false;
    for (size_t i = 0; i < fits.size(); ++i) {
      goes_on[i] = goes_on[i] && fits[i].scale != 0;
      if (goes_on[i]) scales[i] = fits[i].scale;
      any = any || goes_on[i];
    }
    if (!any) return;
    ScaleSums sums;
    std::array<float, kScalesAtOnce> solved;
    std::array<double, kScalesAtOnce> errors;
    scale_sums(grid, g, scales.data(), kScaleLeaders, sums);
    solve_scales(sums, scales.data(), kScaleLeaders, solved.data(), errors.data());
    for (size_t i = 0; i < fits.size(); ++i) {
      if (!goes_on[i]) continue;
      fits[i] = {solved[i], 0, errors[i]};
      goes_on[i] = keep_better(fits[i], leaders.best[i]);
    }
  }
}

/// Statistics of a group, weighted by importance.
struct Spread {
  double mean = 0, deviation = 0, rms = 0;
};

Spread spread_of(const Group& g) {
  double sum_h = 0, sum = 0, squares = 0;
  for (int64_t i = 0; i < g.n; ++i) {
    const double h = g.h ? g.h[i] : 1.0, x = g.x[i];
    sum_h += h;
    sum += h * x;
    squares += h * x * x;
  }
  Spread m;
  m.mean = sum / sum_h;
  m.rms = std::sqrt(squares / sum_h);
  m.deviation = std::sqrt(std::max(0.0, squares / sum_h - m.mean * m.mean));
  return m;
}

/// spread_of(g).rms.
double rms_of(const Group& g) {
  if (g.h != nullptr) return spread_of(g).rms;
  double squares = 0;
  for (int64_t i = 0; i < g.n; ++i) squares += double(g.x[i]) * g.x[i];
  return std::sqrt(squares / static_cast<double>(g.n));
}

/// Scales from `upper` down to half the best one for a normal distribution, each `ratio` times the
/// next.
template <class F>
void for_each_start(float upper, double deviation, const Grid& grid, float ratio, const F& visit) {
  constexpr int kMost = 64;
  const auto lower = std::min(static_cast<float>(0.5 * grid.unit_scale * deviation), 0.7f * upper);
  float scale = upper;
  for (int i = 0; i < kMost && scale >= lower; ++i, scale /= ratio) visit(scale);
}

AffineFit search_integer_zero(const Grid& grid, const Group& g, const Leaders<kOffsetLeaders>& free_fits) {
  Leaders<1> winner;
  const auto try_zero = [&](AffineFit start, float zero) {
    zero = std::min(std::max(zero, -128.0f), 127.0f);
    start.offset = -zero * start.scale;
    start.error = INFINITY;
    winner.offer(alternate(grid, g, start, OffsetRule::kInteger, zero));
  };
  const AffineFit covering = fit_absmax(grid, g, OffsetRule::kInteger);
  if (covering.scale > 0) try_zero(covering, std::nearbyint(-covering.offset / covering.scale));
  for (int i = 0; i < std::min(free_fits.count, 3); ++i) {
    const AffineFit& fit = free_fits.best[static_cast<size_t>(i)];
    if (!(fit.scale > 0)) continue;
    const float zero = std::nearbyint(-fit.offset / fit.scale);
    for (float z = zero - 1; z <= zero + 1; ++z) try_zero(fit, z);
  }
  return winner.count ? winner.best[0] : AffineFit{};
}

AffineFit search_scale_and_offset(const Grid& grid, const Group& g, OffsetRule rule) {
  const Spread m = spread_of(g);
  if (!(g.max > g.min)) {
    if (rule == OffsetRule::kInteger) return fit_absmax(grid, g, rule);
    return {0, static_cast<float>(m.mean), 0};
  }
  const float centre = 0.5f * (grid.low() + grid.high());
  const float upper = 1.2f * (g.max - g.min) / (grid.high() - grid.low());
  const auto mean = static_cast<float>(m.mean), middle = 0.5f * (g.max + g.min);
  Leaders<kOffsetLeaders> leaders;
  const auto try_start = [&](float scale, float around) {
    const AffineFit start{scale, around - scale * centre, 0};
    leaders.offer(solve(residual_sums(grid, g, start.scale, start.offset), start, OffsetRule::kFree, 0));
  };
  // Where the grid's middle lies matters as much as the scale when there are few values.
  for_each_start(upper, m.deviation, grid, 1.15f, [&](float scale) {
    try_start(scale, middle);
    for (const float shift : {-0.5f, -0.25f, 0.0f, 0.25f, 0.5f}) try_start(scale, mean + shift * scale);
  });
  for (int i = 0; i < leaders.count; ++i) {
    auto& fit = leaders.best[static_cast<size_t>(i)];
    fit = alternate(grid, g, fit, OffsetRule::kFree, 0);
  }
  if (rule == OffsetRule::kInteger) return search_integer_zero(grid, g, leaders);
  Leaders<1> winner;
  for (int i = 0; i < leaders.count; ++i) winner.offer(leaders.best[static_cast<size_t>(i)]);
  return winner.best[0];
}

/// The grid stretched over [min, max]; for kInteger the range includes 0 and the zero is rounded.
AffineFit cover_range(const Grid& grid, float min, float max, OffsetRule rule) {
  AffineFit fit;
  if (rule == OffsetRule::kInteger) {
    min = std::min(min, 0.0f);
    max = std::max(max, 0.0f);
  }
  fit.scale = (max - min) / (grid.high() - grid.low());
  if (fit.scale == 0) {
    fit.offset = rule == OffsetRule::kFree ? min : 0;
  } else if (rule == OffsetRule::kFree) {
    fit.offset = min - grid.low() * fit.scale;
  } else {
    const float zero = std::nearbyint(grid.low() - min / fit.scale);
    fit.offset = -std::min(std::max(zero, -128.0f), 127.0f) * fit.scale;
  }
  return fit;
}

}  // namespace

AffineFit fit_absmax(const Grid& grid, const Group& g, OffsetRule rule) {
  if (rule != OffsetRule::kNone) return cover_range(grid, g.min, g.max, rule);
  return {g.abs_max / grid.reach(), 0, 0};
}

AffineFit fit_absmean(const Grid&, const Group& g) { return {g.abs_mean, 0, 0}; }

AffineFit fit_shrink(const Grid& grid, const Group& g, OffsetRule rule) {
  AffineFit best;
  const float middle = rule == OffsetRule::kFree ? 0.5f * (g.min + g.max) : 0.0f;
  for (int i = 0; i < 80; ++i) {
    const float part = 1.0f - 0.01f * static_cast<float>(i);
    AffineFit fit;
    if (rule == OffsetRule::kNone) {
      fit.scale = part * g.abs_max / grid.reach();
    } else {
      fit = cover_range(grid, middle + part * (g.min - middle), middle + part * (g.max - middle), rule);
    }
    if (fit.scale == 0) return fit;
    fit.error = residual_sums(grid, g, fit.scale, fit.offset).dd;
    if (i == 0 || fit.error < best.error) best = fit;
  }
  return best;
}

AffineFit refit(const Grid& grid, const Group& g, const AffineFit& fit, OffsetRule rule) {
  if (fit.scale == 0) return fit;
  const float zero = rule == OffsetRule::kInteger ? std::nearbyint(-fit.offset / fit.scale) : 0.0f;
  return solve(residual_sums(grid, g, fit.scale, fit.offset), fit, rule, zero);
}

AffineFit alternate_from_starts(const Grid& grid, const Group& g) {
  Leaders<kScaleLeaders> leaders;
  Starts starts(grid, g, leaders);
  const auto try_start = [&](float scale) {
    for (int sign = grid.wants_sign() ? -1 : 1; sign <= 1; sign += 2) starts.add(scale * static_cast<float>(sign));
  };
  for_each_start(1.05f * g.abs_max / grid.reach(), rms_of(g), grid, 1.06f, try_start);
  // The largest element on an outermost value: right for weights that were on this grid before.
  if (grid.high() != 0) try_start(g.abs_max / std::fabs(grid.high()));
  if (grid.low() != -grid.high() && grid.low() != 0) try_start(g.abs_max / std::fabs(grid.low()));
  starts.finish();
  alternate_together(grid, g, leaders);
  Leaders<1> winner;
  for (int i = 0; i < leaders.count; ++i) winner.offer(leaders.best[static_cast<size_t>(i)]);
  return winner.best[0];
}

AffineFit fit_least_squares(const Grid& grid, const Group& g, OffsetRule rule) {
  if (rule != OffsetRule::kNone) return search_scale_and_offset(grid, g, rule);
  constexpr int64_t kFewValues = 4, kFewEvents = 256;
  const auto values = static_cast<int64_t>(grid.values.size());
  const bool exact = values <= kFewValues || g.n * (values - 1) <= kFewEvents;
  if (exact) return fit_exact_scale(grid, g);
  return can_be_swept(grid, g) ? sweep_scale(grid, g) : alternate_from_starts(grid, g);
}

}  // namespace lowbit
