#include "runtime/token_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace lowbit {
namespace {

TEST(TokenLogprobs, OfAKnownDistribution) {
  const std::vector<float> logits = {std::log(1.0f), std::log(5.0f), -std::numeric_limits<float>::infinity(),
                                     std::log(2.0f), std::log(2.0f)};
  std::vector<std::pair<int32_t, float>> top;
  EXPECT_NEAR(token_logprobs(logits, 0, 3, top), std::log(0.1), 1e-6);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].first, 1);
  EXPECT_NEAR(top[0].second, std::log(0.5), 1e-6);
  EXPECT_EQ(top[1].first, 3);  // before its equal
  EXPECT_EQ(top[2].first, 4);
  EXPECT_EQ(token_logprobs(logits, 2, 0, top), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(top.empty());
  token_logprobs(logits, 2, 100, top);
  EXPECT_EQ(top.size(), 5u);
  EXPECT_EQ(top[4].first, 2);
}

TEST(TokenLogprobs, AgreesWithTheDefinition) {
  Rng rng(23);
  std::vector<std::pair<int32_t, float>> top;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + rng.below(500));
    for (float& l : logits) l = round % 2 == 0 ? 8 * float(rng.normal()) : float(rng.below(5));
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
    double sum = 0;
    for (const float l : logits) sum += std::exp(double(l));
    const auto wanted = [&](int32_t id) { return double(logits[size_t(id)]) - std::log(sum); };
    const auto k = std::min(rng.below(30), logits.size());
    const auto token = int32_t(rng.below(logits.size()));
    EXPECT_NEAR(token_logprobs(logits, token, int64_t(k), top), wanted(token), 1e-5);
    ASSERT_EQ(top.size(), k);
    for (size_t i = 0; i < k; ++i) {
      EXPECT_EQ(top[i].first, order[i]);
      EXPECT_NEAR(top[i].second, wanted(order[i]), 1e-5);
    }
  }
}

}  // namespace
}  // namespace lowbit
