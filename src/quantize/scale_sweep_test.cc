#include "quantize/scale_sweep.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/rng.h"
#include "base/rounding.h"

namespace lowbit {
namespace {

struct Elements {
  std::vector<float> x;

  Elements(int n, uint64_t seed, double tail = 0) {
    Rng rng(seed);
    for (int i = 0; i < n; ++i) x.push_back(static_cast<float>(rng.normal() * std::exp(tail * rng.normal())));
  }
  Group group() const {
    Group g{x.data(), nullptr, static_cast<int64_t>(x.size()), 0, 0, 0, 0};
    for (const float v : x) g.abs_max = std::max(g.abs_max, std::fabs(v));
    return g;
  }
};

/// As scale_sweep.h says it, for one scale.
void expect_trial(const Integers& on, float energy, float scale, const ScaleTrials& got, uint32_t at) {
  const Group& g = on.group;
  float xv = 0, vv = 0;
  for (int64_t i = 0; i < g.n; ++i) {
    const float v = round_half_even(std::min(std::max(g.x[i] * (1.0f / scale), on.low), on.high));
    xv += g.x[i] * v;
    vv += v * v;
  }
  const float solved = vv > 0 ? xv / vv : 0, error = std::max(energy - solved * xv, 0.0f);
  EXPECT_EQ(got.solved[at], solved) << g.n << " elements, scale " << scale;
  EXPECT_EQ(got.keys[at] & ~31u, std::bit_cast<uint32_t>(error) & ~31u) << g.n << " elements, scale " << scale;
  EXPECT_EQ(got.keys[at] & 31u, at);
}

TEST(ScaleSweep, EveryCopyIsTheDefinition) {
  Rng rng(3);
  for (const int n : {1, 2, 7, 31, 63, 64, 65, 127, 128, 200})
    for (const float low : {-8.0f, -1.0f, 0.0f}) {
      Elements elements(n, static_cast<uint64_t>(n));
      elements.x[0] = n % 2 == 0 ? 0.0f : -1e15f;
      const Group g = elements.group();
      float scales[kScalesAtOnce];
      for (float& s : scales) s = static_cast<float>((rng.uniform() - 0.5) * (n % 3 == 0 ? 1e-9 : 1.0));
      scales[1] = 1e20f;
      const Integers on{g, low, 7};
      for (const ScaleSweep& sweep : scale_sweeps()) {
        ScaleTrials got;
        for (uint32_t first = 0; first < ScaleTrials::kMost; first += kScalesAtOnce) {
          sweep.try_scales(on, 5.5f, scales, first, got);
          for (uint32_t s = 0; s < kScalesAtOnce; ++s) expect_trial(on, 5.5f, scales[s], got, first + s);
        }
      }
    }
}

TEST(ScaleSweep, EveryCopyFindsTheSame) {
  for (const FormatId id : {FormatId::kInt3, FormatId::kInt4, FormatId::kUint4})
    for (const int n : {1, 5, 32, 63, 64, 128})
      for (uint64_t seed = 0; seed < 50; ++seed) {
        const Grid grid = make_grid(id, {});
        const Elements elements(n, seed, seed % 3 == 0 ? 1.5 : 0.0);
        const Group g = elements.group();
        const AffineFit fit = sweep_scale(grid, g);
        for (const ScaleSweep& sweep : scale_sweeps()) {
          const AffineFit other = sweep.search(grid, g);
          EXPECT_EQ(other.scale, fit.scale);
          EXPECT_EQ(other.error, fit.error);
        }
      }
}

/// Than the search that it stands in for, which is within a percent of the optimum.
TEST(ScaleSweep, IsNoWorseThanAlternatingFromStarts) {
  for (const FormatId id : {FormatId::kInt3, FormatId::kInt4, FormatId::kUint4})
    for (const int n : {32, 64, 128})
      for (const double tail : {0.0, 0.3}) {
        const Grid grid = make_grid(id, {});
        double swept = 0, alternated = 0;
        for (uint64_t seed = 0; seed < 1500; ++seed) {
          const Elements elements(n, seed, tail);
          const Group g = elements.group();
          const AffineFit fit = sweep_scale(grid, g), other = alternate_from_starts(grid, g);
          const double error = residual_sums(grid, g, fit.scale, 0).dd;
          EXPECT_LE(error, fit.error * (1 + 1e-3) + 1e-5);
          swept += error;
          alternated += residual_sums(grid, g, other.scale, 0).dd;
        }
        EXPECT_LE(swept, alternated) << static_cast<int>(id) << ", " << n << " elements, tail " << tail << ": "
                                     << swept / alternated;
      }
}

TEST(ScaleSweep, FindsTheScaleThatMadeTheWeights) {
  const Grid grid = make_grid(FormatId::kInt4, {});
  Rng rng(8);
  for (const float scale : {0.125f, 0.1407f, -0.2f}) {
    Elements elements(64, 9);
    for (float& x : elements.x) x = scale * (static_cast<float>(rng.below(16)) - 8);
    elements.x[5] = scale * -8;
    const AffineFit fit = sweep_scale(grid, elements.group());
    EXPECT_FLOAT_EQ(fit.scale, scale);
    EXPECT_LT(fit.error, 1e-5);
  }
}

TEST(ScaleSweep, OnlySmallGroupsOnFewIntegers) {
  const Elements elements(129, 1), fewer(128, 1);
  Group weighted = fewer.group();
  weighted.h = fewer.x.data();
  EXPECT_FALSE(can_be_swept(make_grid(FormatId::kInt4, {}), weighted));
  EXPECT_TRUE(can_be_swept(make_grid(FormatId::kInt4, {}), fewer.group()));
  EXPECT_FALSE(can_be_swept(make_grid(FormatId::kInt4, {}), elements.group()));
  EXPECT_FALSE(can_be_swept(make_grid(FormatId::kInt8, {}), fewer.group()));
  EXPECT_FALSE(can_be_swept(make_grid(FormatId::kInt3Odd, {}), fewer.group()));
}

}  // namespace
}  // namespace lowbit
