#include "quantize/smooth_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lowbit {
namespace {

TEST(SmoothFactors, BalancesInputsAndWeights) {
  const std::vector<float> x = {100, 1, 4, 0.5f}, w = {1, 1, 0.25f, 2};
  const auto half = smooth_factors(x, w, 0.5);
  double product = 1, level = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    product *= half[j];
    const double ratio = (x[j] / half[j]) / (w[j] * half[j]);  // the same of every column
    if (j == 0) level = ratio;
    EXPECT_NEAR(ratio / level, 1, 1e-5);
  }
  EXPECT_NEAR(product, 1, 1e-5);
  const auto all = smooth_factors(x, w, 1), none = smooth_factors(x, w, 0);
  for (size_t j = 1; j < x.size(); ++j) {
    EXPECT_NEAR(x[j] / all[j], x[0] / all[0], 1e-4);
    EXPECT_NEAR(w[j] * none[j], w[0] * none[0], 1e-5);
  }
}

TEST(SmoothFactors, LeavesWhatItCannotBalance) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(smooth_factors({0, 3, inf, NAN, 3}, {1, 0, 1, 1, 2}, 0.5), (std::vector<float>{1, 1, 1, 1, 1}));
  EXPECT_TRUE(smooth_factors({}, {}, 0.5).empty());
  const auto far = smooth_factors({1e30f, 1e-30f}, {1, 1}, 1);
  EXPECT_EQ(far, (std::vector<float>{256, 1.0f / 256}));
}

}  // namespace
}  // namespace lowbit
