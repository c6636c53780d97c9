// The inner loop of every search: nearest values and the sums that least squares needs.

#include "quantize/group_fit.h"

namespace lowbit {
namespace {

// Four lanes, written out: reductions keep their order, so the compiler may not find them itself.
using Vec = float __attribute__((vector_size(16)));
using Mask = int32_t __attribute__((vector_size(16)));

inline Vec splat(float v) { return Vec{v, v, v, v}; }
inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline double total(Vec v) {
  return (static_cast<double>(v[0]) + static_cast<double>(v[1])) +
         (static_cast<double>(v[2]) + static_cast<double>(v[3]));
}

struct UniformNearest {
  explicit UniformNearest(const Grid& g)
      : per_step(splat(1.0f / g.step)),
        shift(splat(g.base / g.step)),
        j_min(splat(g.j_min)),
        j_max(splat(g.j_max)),
        step(splat(g.step)),
        base(splat(g.base)) {}
  Vec operator()(Vec r) const {
    Vec j = r * per_step - shift;
    j = j > j_min ? j : j_min;
    j = j < j_max ? j : j_max;
    j = (j + splat(12582912.0f)) - splat(12582912.0f);  // round_half_even of base/rounding.h
    return j * step + base;
  }
  Vec per_step, shift, j_min, j_max, step, base;
};

/// Steps of 1 and no base, as most formats have.
struct IntegerNearest {
  explicit IntegerNearest(const Grid& g) : j_min(splat(g.j_min)), j_max(splat(g.j_max)) {}
  Vec operator()(Vec r) const {
    Vec j = r > j_min ? r : j_min;
    j = j < j_max ? j : j_max;
    return (j + splat(12582912.0f)) - splat(12582912.0f);
  }
  Vec j_min, j_max;
};

struct TableNearest {
  explicit TableNearest(const Grid& g) : count(static_cast<int>(g.middles.size())), first(splat(g.values[0])) {
    for (size_t i = 0; i < g.middles.size(); ++i) {
      middle[i] = splat(g.middles[i]);
      rise[i] = splat(g.values[i + 1] - g.values[i]);
    }
  }
  Vec operator()(Vec r) const {
    Vec v = first;
    for (int i = 0; i < count; ++i)
      v += (Vec)((Mask)(r > middle[i]) & (Mask)rise[i]);  // exact for tables of small integers
    return v;
  }
  int count;
  Vec first;
  Vec middle[15];
  Vec rise[15];
};

struct SearchNearest {
  explicit SearchNearest(const Grid& g) : grid(&g) {}
  Vec operator()(Vec r) const {
    Vec v;
    for (int i = 0; i < 4; ++i) v[i] = grid->values[static_cast<size_t>(grid->nearest(r[i]))];
    return v;
  }
  const Grid* grid;
};

template <class Nearest, bool kWeighted>
ResidualSums sum_all(const Nearest& nearest, const Group& g, float scale, float offset) {
  constexpr int64_t kChunk = 256;
  const Vec s = splat(scale), per_scale = splat(1.0f / scale), m = splat(offset);
  ResidualSums sums;
  for (int64_t begin = 0; begin < g.n; begin += kChunk) {
    const int64_t end = begin + kChunk < g.n ? begin + kChunk : g.n;
    Vec dd{}, dv{}, vv{}, d_sum{}, v_sum{}, h_sum{};
    const auto add = [&](Vec x, Vec h, auto weighted) {
      const Vec above = x - m, v = nearest(above * per_scale), d = above - v * s;
      const Vec hd = weighted ? h * d : d, hv = weighted ? h * v : v;
      dd += hd * d;
      dv += hd * v;
      vv += hv * v;
      d_sum += hd;
      v_sum += hv;
      h_sum += h;
    };
    int64_t i = begin;
    for (; i + 4 <= end; i += 4)
      add(load(g.x + i), kWeighted ? load(g.h + i) : splat(1.0f), std::bool_constant<kWeighted>{});
    if (i < end) {
      Vec x{}, h{};
      for (int64_t e = 0; i + e < end; ++e) {
        x[e] = g.x[i + e];
        h[e] = kWeighted ? g.h[i + e] : 1.0f;
      }
      add(x, h, std::true_type{});
    }
    sums.dd += total(dd);
    sums.dv += total(dv);
    sums.vv += total(vv);
    sums.d += total(d_sum);
    sums.v += total(v_sum);
    sums.h += total(h_sum);
  }
  return sums;
}

template <class Nearest>
ResidualSums sum_with(const Grid& grid, const Group& g, float scale, float offset) {
  const Nearest nearest(grid);
  return g.h ? sum_all<Nearest, true>(nearest, g, scale, offset) : sum_all<Nearest, false>(nearest, g, scale, offset);
}

}  // namespace

ResidualSums residual_sums(const Grid& grid, const Group& g, float scale, float offset) {
  switch (grid.kind) {
    case Grid::Kind::kUniform:
      return grid.step == 1 && grid.base == 0 ? sum_with<IntegerNearest>(grid, g, scale, offset)
                                              : sum_with<UniformNearest>(grid, g, scale, offset);
    case Grid::Kind::kTable:
      return sum_with<TableNearest>(grid, g, scale, offset);
    case Grid::Kind::kSearch:
      break;
  }
  return sum_with<SearchNearest>(grid, g, scale, offset);
}

}  // namespace lowbit
