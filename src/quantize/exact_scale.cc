// The global least-squares scale of a group, for any alphabet.

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "quantize/group_fit.h"

namespace lowbit {
namespace {

struct Sweep {
  double gain = 0;  // (sum h x v)^2 / sum h v^2: what the best scale takes off the error
  double scale = 0;
};

/// Levels change only at 1/scale = middle / x. From 1/scale = 0 upwards each such event moves one
/// element one level outwards; between events the best scale is in closed form.
Sweep sweep(const Grid& grid, const Group& g, double sign) {
  thread_local std::vector<uint64_t> events;  // bits of the positive float 1/scale, then element
  thread_local std::vector<uint16_t> levels;
  events.clear();
  levels.assign(static_cast<size_t>(g.n), 0);
  const auto& middles = grid.middles;
  const auto below = static_cast<size_t>(std::lower_bound(middles.begin(), middles.end(), 0.0f) - middles.begin());
  const size_t above = below + (below < middles.size() && middles[below] == 0 ? 1 : 0);
  double xv = 0, vv = 0;
  for (int64_t i = 0; i < g.n; ++i) {
    const auto x = static_cast<float>(sign * g.x[i]);
    const auto key = [i](float t) { return uint64_t{std::bit_cast<uint32_t>(t)} << 32 | uint64_t(i); };
    const size_t level = x > 0 ? above : below;
    if (x > 0)
      for (size_t j = above; j < middles.size(); ++j) events.push_back(key(middles[j] / x));
    if (x < 0)
      for (size_t j = 0; j < below; ++j) events.push_back(key(middles[j] / x));
    levels[static_cast<size_t>(i)] = static_cast<uint16_t>(level);
    const double h = g.h ? g.h[i] : 1.0, v = grid.values[level];
    xv += h * x * v;
    vv += h * v * v;
  }
  std::sort(events.begin(), events.end());
  Sweep best;
  double best_xv = 0, best_vv = 1;
  const auto consider = [&] {
    if (vv > 0 && xv > 0 && xv * xv * best_vv > best_xv * best_xv * vv) {
      best_xv = xv;
      best_vv = vv;
    }
  };
  consider();
  for (const uint64_t event : events) {
    const auto i = static_cast<size_t>(event & 0xffffffffu);
    const double x = sign * g.x[i], h = g.h ? g.h[i] : 1.0;
    const double from = grid.values[levels[i]];
    levels[i] = static_cast<uint16_t>(x > 0 ? levels[i] + 1 : levels[i] - 1);
    const double to = grid.values[levels[i]];
    xv += h * x * (to - from);
    vv += h * (to * to - from * from);
    consider();
  }
  best.gain = best_xv * best_xv / best_vv;
  best.scale = best_xv / best_vv;
  return best;
}

}  // namespace

AffineFit fit_exact_scale(const Grid& grid, const Group& g) {
  double energy = 0;
  for (int64_t i = 0; i < g.n; ++i) energy += (g.h ? g.h[i] : 1.0) * static_cast<double>(g.x[i]) * g.x[i];
  Sweep best = sweep(grid, g, 1.0);
  if (grid.wants_sign()) {
    Sweep flipped = sweep(grid, g, -1.0);
    flipped.scale = -flipped.scale;
    if (flipped.gain > best.gain) best = flipped;
  }
  return {static_cast<float>(best.scale), 0, std::max(0.0, energy - best.gain)};
}

}  // namespace lowbit
