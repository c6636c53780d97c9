#include "quantize/allocation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace lowbit {
namespace {

using Parts = std::vector<std::vector<SizeChoice>>;

double loss_of(const Parts& parts, const std::vector<size_t>& chosen) {
  double sum = 0;
  for (size_t p = 0; p < parts.size(); ++p) sum += parts[p][chosen[p]].loss;
  return sum;
}

TEST(Allocation, IsCloseToTheBestOfAllCombinations) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    Parts parts(6);
    for (auto& part : parts) {
      const double weight = std::exp(2 * rng.normal());
      for (const int64_t bytes : {2, 3, 4, 8})
        part.push_back({bytes, weight * std::pow(4.0, -double(bytes)) * (0.8 + 0.4 * rng.uniform())});
    }
    for (const int64_t budget : {12, 17, 24, 40, 60}) {
      double best = INFINITY;
      std::vector<size_t> c(6);
      for (int i = 0; i < 4096; ++i) {
        int64_t bytes = 0;
        for (size_t p = 0; p < 6; ++p) bytes += parts[p][c[p] = static_cast<size_t>(i >> (2 * p) & 3)].bytes;
        if (bytes <= budget) best = std::min(best, loss_of(parts, c));
      }
      const auto chosen = allocate_sizes(parts, budget);
      ASSERT_TRUE(chosen);
      int64_t bytes = 0;
      for (size_t p = 0; p < 6; ++p) bytes += parts[p][(*chosen)[p]].bytes;
      EXPECT_LE(bytes, budget);
      EXPECT_LE(loss_of(parts, *chosen), 1.5 * best + 1e-12);
    }
  }
}

TEST(Allocation, ChoicesOffTheHullAreNeverTaken) {
  const Parts parts = {{{10, 5.0}, {11, 6.0}, {12, 4.9}, {20, 1.0}}};
  EXPECT_EQ(allocate_sizes(parts, 20)->at(0), 3u);
  EXPECT_EQ(allocate_sizes(parts, 19)->at(0), 0u);
}

TEST(Allocation, Errors) {
  EXPECT_FALSE(allocate_sizes({{{10, 1.0}}, {{10, 1.0}}}, 19));
  EXPECT_FALSE(allocate_sizes({{}}, 19));
  EXPECT_FALSE(allocate_sizes({{{1, NAN}}}, 19));
  EXPECT_TRUE(allocate_sizes({}, 0)->empty());
}

}  // namespace
}  // namespace lowbit
