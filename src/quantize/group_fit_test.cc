#include "quantize/group_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/float.h"
#include "base/rng.h"
#include "quantize/scale_sums.h"
#include "quantize/table_fit.h"

namespace lowbit {
namespace {

struct Data {
  std::vector<float> x, h;
  Group group(bool weighted = false) const {
    Group g{x.data(), weighted ? h.data() : nullptr, static_cast<int64_t>(x.size()), 0, INFINITY, -INFINITY, 0};
    for (float v : x) {
      g.abs_max = std::max(g.abs_max, std::fabs(v));
      g.min = std::min(g.min, v);
      g.max = std::max(g.max, v);
      g.abs_mean += std::fabs(v) / static_cast<float>(x.size());
    }
    return g;
  }
};

Data random_data(int n, uint64_t seed) {
  Rng rng(seed);
  Data d;
  for (int i = 0; i < n; ++i) {
    d.x.push_back(static_cast<float>(rng.normal()));
    d.h.push_back(static_cast<float>(0.05 + std::exp(rng.normal())));
  }
  return d;
}

double error_of(const Grid& grid, const Group& g, double scale, double offset) {
  double sum = 0;
  for (int64_t i = 0; i < g.n; ++i) {
    double least = INFINITY;
    for (const float v : grid.values) {
      const double d = g.x[i] - v * scale - offset;
      least = std::min(least, d * d);
    }
    sum += least * (g.h ? g.h[i] : 1.0);
  }
  return sum;
}

/// Every assignment of values to elements, each with its best scale.
double brute_force(const Grid& grid, const Group& g) {
  const size_t levels = grid.values.size();
  double energy = 0, best_gain = 0;
  int64_t assignments = 1;
  for (int64_t i = 0; i < g.n; ++i) {
    assignments *= static_cast<int64_t>(levels);
    energy += (g.h ? g.h[i] : 1.0) * static_cast<double>(g.x[i]) * g.x[i];
  }
  for (int64_t a = 0; a < assignments; ++a) {
    double xv = 0, vv = 0;
    int64_t rest = a;
    for (int64_t i = 0; i < g.n; ++i, rest /= static_cast<int64_t>(levels)) {
      const double v = grid.values[static_cast<size_t>(rest % static_cast<int64_t>(levels))];
      const double h = g.h ? g.h[i] : 1.0;
      xv += h * g.x[i] * v;
      vv += h * v * v;
    }
    const bool allowed = xv > 0 || grid.wants_sign();
    if (vv > 0 && allowed) best_gain = std::max(best_gain, xv * xv / vv);
  }
  return energy - best_gain;
}

Grid grid_of(FormatId id) { return make_grid(id, {}); }

TEST(Grid, AlphabetsOfTheList) {
  const Grid ternary = grid_of(FormatId::kTernary);
  EXPECT_EQ(ternary.values, (std::vector<float>{-1, 0, 1}));
  EXPECT_EQ(ternary.codes, (std::vector<uint8_t>{0, 1, 2}));
  const Grid planes = grid_of(FormatId::kTernaryPlanes);
  EXPECT_EQ(planes.codes, (std::vector<uint8_t>{1, 0, 3}));
  EXPECT_EQ(planes.code_mask, 0);
  EXPECT_EQ(grid_of(FormatId::kInt4).code_mask, 15);  // -8 is code 8, 0 is 0
  EXPECT_EQ(make_grid(FormatId::kCodebook2, std::vector<float>{3, 1, 2, 0}).code_mask, 0);
  const Grid odd = grid_of(FormatId::kInt2Odd);
  EXPECT_EQ(odd.kind, Grid::Kind::kUniform);
  EXPECT_EQ(odd.nearest(-0.4f), 1);
  EXPECT_EQ(odd.nearest(9), 3);
  EXPECT_FALSE(odd.wants_sign());
  EXPECT_TRUE(grid_of(FormatId::kInt2).wants_sign());
  EXPECT_EQ(grid_of(FormatId::kInt8).values.size(), 256u);
  EXPECT_EQ(grid_of(FormatId::kBinary).reach(), 1);
  EXPECT_EQ(grid_of(FormatId::kInt4).reach(), 7);
  EXPECT_NEAR(odd.unit_scale * 2, 0.9957, 0.03);  // the best step for a normal variable
  EXPECT_NEAR(grid_of(FormatId::kInt4).unit_scale, 0.335, 0.012);
}

TEST(Grid, NearestIsTheNearest) {
  Rng rng(2);
  for (const FormatId id :
       {FormatId::kInt8, FormatId::kInt3, FormatId::kInt3Odd, FormatId::kBinary, FormatId::kTernary, FormatId::kFp8}) {
    const Grid grid = grid_of(id);
    for (int i = 0; i < 5000; ++i) {
      const auto v = static_cast<float>(rng.normal() * 0.5 * grid.reach());
      const auto level = static_cast<size_t>(grid.nearest(v));
      for (const float other : grid.values) ASSERT_LE(std::fabs(v - grid.values[level]), std::fabs(v - other)) << v;
    }
    EXPECT_EQ(grid.nearest(INFINITY), static_cast<int>(grid.values.size()) - 1);
    EXPECT_EQ(grid.nearest(-INFINITY), 0);
  }
}

TEST(Grid, E4m3RoundsAsTheConversionDoes) {
  const Grid grid = grid_of(FormatId::kFp8);
  EXPECT_EQ(grid.values.size(), 253u);
  Rng rng(4);
  const auto check = [&](float v) {
    ASSERT_EQ(grid.values[static_cast<size_t>(grid.nearest(v))], e4m3_to_f32(f32_to_e4m3(v))) << v;
  };
  for (int i = 0; i < 20000; ++i) check(static_cast<float>(rng.normal() * std::exp2(20 * rng.uniform() - 10)));
  for (const float middle : grid.middles) check(middle);  // ties
}

TEST(ResidualSums, EqualTheDefinition) {
  const Data d = random_data(301, 1);
  for (const FormatId id : {FormatId::kInt4, FormatId::kInt2Odd, FormatId::kFp8}) {
    const Grid grid = grid_of(id);
    for (int weighted = 0; weighted < 2; ++weighted) {
      const Group g = d.group(weighted == 1);
      const float scale = 0.7f * g.abs_max / grid.reach(), offset = 0.1f;
      const ResidualSums s = residual_sums(grid, g, scale, offset);
      ResidualSums want;
      for (int64_t i = 0; i < g.n; ++i) {
        const double h = g.h ? g.h[i] : 1.0;
        const double v = grid.values[static_cast<size_t>(grid.nearest((g.x[i] - offset) / scale))];
        const double e = g.x[i] - v * scale - offset;
        want.dd += h * e * e;
        want.dv += h * e * v;
        want.vv += h * v * v;
        want.d += h * e;
        want.v += h * v;
        want.h += h;
      }
      EXPECT_NEAR(s.dd, want.dd, 1e-5 * want.dd);
      EXPECT_NEAR(s.vv, want.vv, 1e-5 * want.vv);
      EXPECT_NEAR(s.h, want.h, 1e-5 * want.h);
      const double size = std::sqrt(want.dd * want.vv);
      EXPECT_NEAR(s.dv, want.dv, 1e-4 * size);
      EXPECT_NEAR(s.d, want.d, 1e-4 * std::sqrt(want.dd * want.h));
      EXPECT_NEAR(s.v, want.v, 1e-4 * std::sqrt(want.vv * want.h));
    }
  }
}

TEST(ExactScale, EqualsBruteForceOnTinyGroups) {
  for (const FormatId id : {FormatId::kTernary, FormatId::kInt2, FormatId::kInt2Odd, FormatId::kBinary}) {
    const Grid grid = grid_of(id);
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const Data d = random_data(1 + static_cast<int>(seed % 7), seed);
      const Group g = d.group(seed % 2 == 1);
      const AffineFit fit = fit_exact_scale(grid, g);
      const double best = brute_force(grid, g);
      EXPECT_NEAR(fit.error, best, 1e-9 + 1e-6 * best) << seed;
      EXPECT_NEAR(error_of(grid, g, fit.scale, 0), best, 1e-6 + 1e-5 * best) << seed;
    }
  }
}

TEST(ExactScale, BinaryIsTheWeightedMean) {
  const Data d = random_data(64, 8);
  double sum = 0, sum_h = 0;
  for (size_t i = 0; i < d.x.size(); ++i) {
    sum += d.h[i] * std::fabs(d.x[i]);
    sum_h += d.h[i];
  }
  EXPECT_NEAR(fit_exact_scale(grid_of(FormatId::kBinary), d.group(true)).scale, sum / sum_h, 1e-6);
}

/// The searches with starts against the exact one, over many groups, and never far off in one.
TEST(LeastSquares, WithinOnePercentOfTheOptimum) {
  const std::vector<float> table = lloyd_max_table(8);
  for (const FormatId id : {FormatId::kInt3, FormatId::kInt3Odd, FormatId::kInt4, FormatId::kCodebook3}) {
    const Grid grid = id == FormatId::kCodebook3 ? make_grid(id, table) : grid_of(id);
    for (const int n : {6, 32, 64, 200}) {
      double found = 0, best = 0;
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const Data d = random_data(n, 1000 + seed);
        const Group g = d.group(seed % 2 == 1);
        const AffineFit fit = fit_least_squares(grid, g, OffsetRule::kNone);
        const double reached = error_of(grid, g, fit.scale, 0);
        EXPECT_LE(reached, fit.error * (1 + 1e-3) + 1e-6);
        found += reached;
        best += fit_exact_scale(grid, g).error;
      }
      const double margin = n == 6 ? 1.10 : 1.01;  // 6 elements on 8 or 16 values: rough landscape
      EXPECT_LE(found, margin * best) << static_cast<int>(id) << " n=" << n;
      EXPECT_GE(found, 0.9999 * best);
    }
  }
}

TEST(LeastSquares, OffsetWithinOnePercentOfAFineGrid) {
  for (const FormatId id : {FormatId::kInt2, FormatId::kTernary, FormatId::kInt3}) {
    const Grid grid = grid_of(id);
    double found = 0, best = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const Data d = random_data(48, 50 + seed);
      const Group g = d.group(seed % 2 == 1);
      const AffineFit fit = fit_least_squares(grid, g, OffsetRule::kFree);
      found += error_of(grid, g, fit.scale, fit.offset);
      double least = INFINITY;
      const float range = g.max - g.min, width = grid.high() - grid.low();
      for (int a = 20; a < 160; ++a)
        for (int b = 0; b < 200; ++b) {
          const double scale = range / width * 0.01 * a;
          const double low = g.min - 0.3 * range + 0.006 * range * b;
          least = std::min(least, error_of(grid, g, scale, low - grid.low() * scale));
        }
      best += least;
    }
    EXPECT_LE(found, 1.01 * best) << static_cast<int>(id);
  }
}

/// Against all small changes of scale and offset, the codes being what they were.
TEST(LeastSquares, ARefitIsTheBestForItsCodes) {
  const std::vector<float> table = {-127, -90, -20, 127};
  for (const OffsetRule rule : {OffsetRule::kNone, OffsetRule::kFree, OffsetRule::kInteger})
    for (const FormatId id : {FormatId::kInt3, FormatId::kCodebook2}) {
      const Grid grid = id == FormatId::kCodebook2 ? make_grid(id, table) : grid_of(id);
      const Data d = random_data(60, 70);
      const Group g = d.group(true);
      const float scale = 1.3f * g.abs_max / grid.reach(), zero = rule == OffsetRule::kInteger ? 2.0f : 0.0f;
      const AffineFit start{scale, rule == OffsetRule::kFree ? 0.1f : -zero * scale, 0};
      const AffineFit fit = refit(grid, g, start, rule);
      const auto error = [&](double s, double o) {
        double sum = 0;
        for (int64_t i = 0; i < g.n; ++i) {
          const float v = grid.values[static_cast<size_t>(grid.nearest((g.x[i] - start.offset) / start.scale))];
          sum += g.h[i] * (g.x[i] - v * s - o) * (g.x[i] - v * s - o);
        }
        return sum;
      };
      const double least = error(fit.scale, fit.offset);
      EXPECT_LT(least, error(start.scale, start.offset));
      EXPECT_NEAR(fit.error, least, 1e-4 * least);
      for (const double step : {-1e-2, 1e-2}) {
        const double other = fit.scale * (1 + step);
        EXPECT_LT(least, error(other, rule == OffsetRule::kInteger ? -zero * other : fit.offset));
        if (rule == OffsetRule::kFree) {
          EXPECT_LT(least, error(fit.scale, fit.offset + step));
        }
      }
      if (rule != OffsetRule::kFree) {
        EXPECT_FLOAT_EQ(fit.offset, -zero * fit.scale);
      }
    }
  EXPECT_EQ(refit(grid_of(FormatId::kInt3), random_data(9, 1).group(), {}, OffsetRule::kFree).scale, 0);
}

TEST(LeastSquares, IntegerZeroStaysAnInteger) {
  const Grid grid = grid_of(FormatId::kInt2);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Data d = random_data(64, seed);
    for (auto& v : d.x) v += 0.8f;
    const Group g = d.group();
    const AffineFit fit = fit_least_squares(grid, g, OffsetRule::kInteger);
    const float zero = -fit.offset / fit.scale;
    EXPECT_NEAR(zero, std::nearbyint(zero), 1e-4);
    const AffineFit covering = fit_absmax(grid, g, OffsetRule::kInteger);
    EXPECT_LE(error_of(grid, g, fit.scale, fit.offset), error_of(grid, g, covering.scale, covering.offset) * 1.0001);
  }
}

TEST(Tables, QuantilesOfTheNormalDistribution) {
  for (const int count : {1, 4, 255}) {
    const std::vector<float> x = normal_quantiles(count);
    ASSERT_EQ(x.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i)
      EXPECT_NEAR(0.5 * std::erfc(-x[static_cast<size_t>(i)] / std::sqrt(2.0)), (i + 0.5) / count, 1e-6);
  }
}

TEST(Tables, LloydMaxOfTheNormalDistribution) {
  EXPECT_EQ(lloyd_max_table(4), (std::vector<float>{-127, -38, 38, 127}));  // .4528 / 1.5104
  const std::vector<float> eight = lloyd_max_table(8);
  const float want[4] = {0.2451f, 0.7560f, 1.3439f, 2.1520f};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(eight[4 + i], std::nearbyint(127 * want[i] / want[3]));
    EXPECT_EQ(eight[3 - i], -eight[4 + i]);
  }
  EXPECT_EQ(lloyd_max_table(16).size(), 16u);
}

TEST(Tables, KmeansFindsTheLevelsOfTheData) {
  ThreadPool pool(2);
  std::vector<float> x;
  Rng rng(5);
  const float levels[4] = {-1, -0.25f, 0.125f, 0.5f};
  for (int i = 0; i < 4096; ++i) x.push_back(levels[rng.below(4)]);
  std::vector<Group> groups;
  for (size_t i = 0; i < x.size(); i += 64) {
    Data d{{x.begin() + static_cast<std::ptrdiff_t>(i), x.begin() + static_cast<std::ptrdiff_t>(i) + 64}, {}};
    Group g = d.group();
    g.x = x.data() + i;
    groups.push_back(g);
  }
  const std::vector<float> table = kmeans_table(FormatId::kCodebook2, groups, OffsetRule::kNone, pool);
  ASSERT_EQ(table.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(table[i] / -table[0], levels[i], 0.005) << i;
}

/// Groups made of a table with scales (and offsets) of their own, and a little noise: the table that is found leaves
/// little but noise.
TEST(KmeansTable, FindsTheTableThatMadeTheGroups) {
  ThreadPool pool(2);
  const std::vector<float> table = {-127, -104, -30, -11, 8, 52, 71, 127};
  for (const OffsetRule rule : {OffsetRule::kNone, OffsetRule::kFree}) {
    Rng rng(6);
    std::vector<Data> rows(96);
    std::vector<Group> groups;
    double noise = 0;
    for (Data& row : rows) {
      const double scale = std::exp(rng.normal()), offset = rule == OffsetRule::kFree ? 60 * scale * rng.normal() : 0;
      for (int i = 0; i < 64; ++i) {
        const double error = 2 * scale * rng.normal();
        row.x.push_back(static_cast<float>(scale * table[rng.below(table.size())] + offset + error));
        row.h.push_back(static_cast<float>(std::exp(rng.normal())));
        noise += static_cast<double>(row.h.back()) * error * error;
      }
      groups.push_back(row.group(true));
    }
    const Grid grid = make_grid(FormatId::kCodebook3, kmeans_table(FormatId::kCodebook3, groups, rule, pool));
    double left = 0;
    for (const Group& g : groups) {
      const AffineFit fit = fit_least_squares(grid, g, rule);
      left += residual_sums(grid, g, fit.scale, fit.offset).dd;
    }
    EXPECT_LT(left, noise);
  }
}

/// A table for elements of which some count for more is better for them than one for all alike.
TEST(KmeansTable, WeighsItsElements) {
  ThreadPool pool(2);
  std::vector<Data> rows;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    rows.push_back(random_data(64, 300 + seed));
    for (size_t i = 0; i < 64; ++i) rows.back().h[i] = rows.back().x[i] > 0.3f ? 50.0f : 1.0f;
  }
  std::vector<Group> weighted, alike;
  for (const Data& row : rows) {
    weighted.push_back(row.group(true));
    alike.push_back(row.group(false));
  }
  const auto error = [&](const std::vector<Group>& sample) {
    const Grid grid =
        make_grid(FormatId::kCodebook2, kmeans_table(FormatId::kCodebook2, sample, OffsetRule::kNone, pool));
    double sum = 0;
    for (const Group& g : weighted) sum += fit_least_squares(grid, g, OffsetRule::kNone).error;
    return sum;
  };
  EXPECT_LT(error(weighted), 0.92 * error(alike));
}

void expect_sums_of_each(const ScaleSums& sums, const Grid& grid, const Group& g, const float* scales, int count) {
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const ResidualSums alone = residual_sums(grid, g, scales[i], 0);
    EXPECT_EQ(sums.dd[at], alone.dd) << g.n << " elements, scale " << i << " of " << count << ", " << scales[i];
    EXPECT_EQ(sums.dv[at], alone.dv) << g.n << " elements, scale " << i << " of " << count << ", " << scales[i];
    EXPECT_EQ(sums.vv[at], alone.vv) << g.n << " elements, scale " << i << " of " << count << ", " << scales[i];
  }
}

TEST(GroupFit, SeveralScalesAtOnceHaveTheSumsOfEach) {
  Rng rng(11);
  for (const FormatId format :
       {FormatId::kInt8, FormatId::kInt4, FormatId::kInt3, FormatId::kInt2Odd, FormatId::kUint4}) {
    const Grid grid = make_grid(format, {});
    const bool integers = grid.kind == Grid::Kind::kUniform && grid.step == 1 && grid.base == 0 && grid.j_min <= 0;
    for (const int n : {1, 3, 4, 61, 64, 255, 256, 257, 700})
      for (const bool weighted : {false, true}) {
        Data data = random_data(n, static_cast<uint64_t>(n));
        data.x[0] = 0;
        const Group g = data.group(weighted);
        float scales[kScalesAtOnce];
        for (float& scale : scales) scale = static_cast<float>((rng.uniform() - 0.5) * (n % 2 == 0 ? 0.5 : 1e-6));
        for (int count = 1; count <= kScalesAtOnce; ++count) {
          ScaleSums sums;
          scale_sums(grid, g, scales, count, sums);
          expect_sums_of_each(sums, grid, g, scales, count);
          for (const SumIntegers loop : integer_loops()) {
            if (!integers) break;
            sums = {};
            loop({g, grid.j_min, grid.j_max}, scales, count, sums);
            expect_sums_of_each(sums, grid, g, scales, count);
          }
        }
      }
  }
}

TEST(GroupFit, SolvedScalesAreTheLeastSquaresAnswer) {
  const Grid grid = make_grid(FormatId::kInt4, {});
  const Data data = random_data(64, 5);
  const Group g = data.group(true);
  float scales[kScalesAtOnce], solved[kScalesAtOnce];
  double errors[kScalesAtOnce];
  for (int i = 0; i < kScalesAtOnce; ++i) scales[i] = i == 3 ? 1e6f : 0.01f * static_cast<float>(i + 1);
  ScaleSums sums;
  scale_sums(grid, g, scales, kScalesAtOnce, sums);
  solve_scales(sums, scales, kScalesAtOnce, solved, errors);
  for (size_t i = 0; i < kScalesAtOnce; ++i) {
    if (i == 3) {  // all codes are 0
      EXPECT_EQ(solved[i], scales[i]);
      EXPECT_EQ(errors[i], sums.dd[i]);
      continue;
    }
    const AffineFit expected = refit(grid, g, {scales[i], 0, 0}, OffsetRule::kNone);
    EXPECT_EQ(solved[i], expected.scale);
    EXPECT_EQ(errors[i], expected.error);
  }
}

}  // namespace
}  // namespace lowbit
