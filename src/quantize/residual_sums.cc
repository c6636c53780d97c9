// The inner loop of every search: nearest values and the sums that least squares needs.

#include <array>

#include "quantize/group_fit.h"
#include "quantize/vector_clones.h"

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

// Four scales at once, two of them beside each other in a vector of eight lanes: each has its four lanes, so its sums
// have the order, and the bits, that they have alone.
constexpr int kPairs = kScalesAtOnce / 2;
using Pair = float __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(32)));

struct PairSums {
  Pair dd[kPairs], dv[kPairs], vv[kPairs];
};

/// Constants of all elements.
struct PairScales {
  Pair scale[kPairs], per_scale[kPairs], j_min, j_max, round;
};

template <bool kWeighted>
[[gnu::always_inline]] inline void add_four(const PairScales& s, const Vec& x4, const Vec& h4, PairSums& sums) {
  const Pair x = __builtin_shufflevector(x4, x4, 0, 1, 2, 3, 0, 1, 2, 3);
  const Pair h = __builtin_shufflevector(h4, h4, 0, 1, 2, 3, 0, 1, 2, 3);
  for (int p = 0; p < kPairs; ++p) {
    Pair j = x * s.per_scale[p];
    j = j > s.j_min ? j : s.j_min;
    j = j < s.j_max ? j : s.j_max;
    const Pair v = (j + s.round) - s.round, d = x - v * s.scale[p];
    const Pair hd = kWeighted ? h * d : d, hv = kWeighted ? h * v : v;
    sums.dd[p] += hd * d;
    sums.dv[p] += hd * v;
    sums.vv[p] += hv * v;
  }
}

/// total() of either half.
[[gnu::always_inline]] inline void add_totals(const Pair& from, double& first, double& second) {
  const Doubles a = __builtin_convertvector(__builtin_shufflevector(from, from, 0, 1, 2, 3), Doubles);
  const Doubles b = __builtin_convertvector(__builtin_shufflevector(from, from, 4, 5, 6, 7), Doubles);
  const Doubles twos = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
  first += twos[0] + twos[2];
  second += twos[1] + twos[3];
}

template <bool kWeighted>
[[gnu::always_inline]] inline void sum_integers(const Group& g, float low, float high, const float* scales,
                                                ScaleSums* out) {
  constexpr int64_t kChunk = 256;
  PairScales s;
  for (int e = 0; e < 8; ++e) {
    for (int p = 0; p < kPairs; ++p) s.scale[p][e] = scales[2 * p + e / 4];
    s.j_min[e] = low;
    s.j_max[e] = high;
    s.round[e] = 12582912.0f;  // round_half_even of base/rounding.h
  }
  for (int p = 0; p < kPairs; ++p) s.per_scale[p] = 1.0f / s.scale[p];
  for (int i = 0; i < kScalesAtOnce; ++i) out[i] = {};
  for (int64_t begin = 0; begin < g.n; begin += kChunk) {
    const int64_t end = begin + kChunk < g.n ? begin + kChunk : g.n;
    PairSums sums = {};
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      Vec x, h{};
      __builtin_memcpy(&x, g.x + i, sizeof x);
      if (kWeighted) __builtin_memcpy(&h, g.h + i, sizeof h);
      add_four<kWeighted>(s, x, h, sums);
    }
    if (i < end) {  // zeros, which have no error and weigh nothing
      Vec x{}, h{};
      for (int64_t e = 0; i + e < end; ++e) {
        x[e] = g.x[i + e];
        if (kWeighted) h[e] = g.h[i + e];
      }
      add_four<kWeighted>(s, x, h, sums);
    }
    for (int p = 0; p < kPairs; ++p) {
      ScaleSums &first = out[2 * p], &second = out[2 * p + 1];
      add_totals(sums.dd[p], first.dd, second.dd);
      add_totals(sums.dv[p], first.dv, second.dv);
      add_totals(sums.vv[p], first.vv, second.vv);
    }
  }
}

LOWBIT_VECTOR_CLONES
void plain_integers(const Group& g, float low, float high, const float* scales, ScaleSums* out) {
  sum_integers<false>(g, low, high, scales, out);
}

LOWBIT_VECTOR_CLONES
void weighted_integers(const Group& g, float low, float high, const float* scales, ScaleSums* out) {
  sum_integers<true>(g, low, high, scales, out);
}

}  // namespace

void scale_sums(const Grid& grid, const Group& g, const float* scales, ScaleSums* out) {
  const bool has_zero = grid.j_min <= 0 && grid.j_max >= 0;  // what a tail is filled with has no error
  if (grid.kind == Grid::Kind::kUniform && grid.step == 1 && grid.base == 0 && has_zero)
    return (g.h != nullptr ? weighted_integers : plain_integers)(g, grid.j_min, grid.j_max, scales, out);
  for (int i = 0; i < kScalesAtOnce; ++i) {
    const ResidualSums sums = residual_sums(grid, g, scales[i], 0);
    out[i] = {sums.dd, sums.dv, sums.vv};
  }
}

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
