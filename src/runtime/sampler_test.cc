#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "kernels/api.h"
#include "kernels/vector_math.h"

namespace lowbit {
namespace {

/// Everything off: plain sampling at temperature 1.
SamplerOptions plain(uint64_t seed = 1) {
  SamplerOptions o;
  o.temperature = 1;
  o.top_k = 0;
  o.top_p = 1;
  o.min_p = 0;
  o.seed = seed;
  return o;
}

std::map<int32_t, int> draw(const SamplerOptions& options, const std::vector<float>& logits, int times) {
  auto sampler = Sampler::make(options);
  EXPECT_TRUE(sampler);
  std::map<int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[*sampler->sample(logits)];
  return counts;
}

TEST(Sampler, AMinPBelowAllWeightsDropsNothing) {
  SamplerOptions o = plain();
  o.temperature = 100;
  const std::vector<float> logits = {0, -40, -400};
  const auto without = draw(o, logits, 200);
  EXPECT_EQ(without.size(), 3);
  o.min_p = 1e-14f;  // uint64(min_p * 2^40) is 0
  EXPECT_EQ(draw(o, logits, 200), without);
}

TEST(Sampler, TemperatureZeroTakesTheFirstLargest) {
  SamplerOptions o;
  o.temperature = 0;
  EXPECT_EQ(draw(o, {1, 5, 3, 5}, 3), (std::map<int32_t, int>{{1, 3}}));
  EXPECT_EQ(draw(o, {-std::numeric_limits<float>::infinity(), -1}, 1), (std::map<int32_t, int>{{1, 1}}));
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -std::numeric_limits<float>::infinity()};
  const int n = 40000;
  auto counts = draw(plain(), logits, n);
  EXPECT_NEAR(counts[0] / double(n), 1 / 8.0, 0.01);
  EXPECT_NEAR(counts[1] / double(n), 2 / 8.0, 0.01);
  EXPECT_NEAR(counts[2] / double(n), 5 / 8.0, 0.01);
  EXPECT_EQ(counts.count(3), 0u);
  SamplerOptions cold = plain();
  cold.temperature = 0.5f;  // squares the ratios
  counts = draw(cold, logits, n);
  EXPECT_NEAR(counts[2] / double(n), 25 / 30.0, 0.01);
}

TEST(Sampler, TopKTopPMinP) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.05f), std::log(0.3f), std::log(0.15f)};
  const auto kept = [&](const SamplerOptions& o) {
    std::vector<int32_t> ids;
    for (const auto& [id, count] : draw(o, logits, 4000)) ids.push_back(id);
    return ids;
  };
  SamplerOptions o = plain();
  EXPECT_EQ(kept(o), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  o.top_k = 2;
  EXPECT_EQ(kept(o), (std::vector<int32_t>{1, 3}));
  o.top_k = 100;
  EXPECT_EQ(kept(o), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  o = plain();
  o.top_p = 0.6f;  // 0.4 alone is not enough
  EXPECT_EQ(kept(o), (std::vector<int32_t>{1, 3}));
  o.top_p = 0.01f;
  EXPECT_EQ(kept(o), (std::vector<int32_t>{1}));
  o = plain();
  o.min_p = 0.3f;  // at least 0.12
  EXPECT_EQ(kept(o), (std::vector<int32_t>{1, 3, 4}));
  o.min_p = 1;
  EXPECT_EQ(kept(o), (std::vector<int32_t>{1}));
}

TEST(Sampler, RepeatPenaltyLooksAtTheWindowOnly) {
  SamplerOptions o = plain();
  o.temperature = 0;
  o.repeat_penalty = 2;
  o.repeat_window = 2;
  auto sampler = Sampler::make(o);
  ASSERT_TRUE(sampler);
  const std::vector<float> logits = {4, 3, -1, -1.5f};
  EXPECT_EQ(*sampler->sample(logits), 0);
  sampler->accept(0);
  sampler->accept(0);  // twice in the window, penalized once: 2 < 3
  EXPECT_EQ(*sampler->sample(logits), 1);
  EXPECT_EQ(*sampler->sample(std::vector<float>{4, 1.9f, -1, -2}), 0);
  sampler->accept(2);
  sampler->accept(2);  // 0 has left the window; negative logits move down
  EXPECT_EQ(*sampler->sample(logits), 0);
  EXPECT_EQ(*sampler->sample(std::vector<float>{-9, -9, -1, -1.5f}), 3);
  sampler->reset();
  EXPECT_EQ(*sampler->sample(std::vector<float>{-9, -9, -1, -1.5f}), 2);
  sampler->accept(-5);  // ids that no logit has are ignored
  sampler->accept(1000);
  EXPECT_EQ(*sampler->sample(logits), 0);
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Sampler, FrequencyAndPresencePenaltiesCountTheWindow) {
  SamplerOptions o = plain();
  o.temperature = 0;
  o.frequency_penalty = 1;
  o.presence_penalty = 0.5f;
  o.repeat_window = 3;
  auto sampler = Sampler::make(o);
  ASSERT_TRUE(sampler);
  sampler->accept(0);
  sampler->accept(0);  // 2.5 less
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 2.4f}), 0);
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 2.6f}), 1);
  sampler->accept(1);  // 1.5 less
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 3.9f}), 0);
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 4.1f}), 1);
  sampler->accept(1);  // one 0 has left: 1.5 and 2.5 less
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 5.9f}), 0);
  sampler->reset();
  EXPECT_EQ(*sampler->sample(std::vector<float>{5, 5.9f}), 1);
  o.frequency_penalty = -10;  // asks for more of the same
  o.repeat_penalty = 2;       // before: 1 / 2 + 10
  sampler = Sampler::make(o);
  ASSERT_TRUE(sampler);
  sampler->accept(0);
  EXPECT_EQ(*sampler->sample(std::vector<float>{1, 9.9f}), 0);
  EXPECT_EQ(*sampler->sample(std::vector<float>{1, 10.1f}), 1);
}

TEST(Sampler, BiasAddsAndForbids) {
  const std::vector<float> logits = {5, 4, 3, kInf};
  SamplerOptions o = plain();
  o.temperature = 0;
  o.logit_bias = {{1, 0.75f}, {1, 0.5f}, {3, -kInf}, {2, -100}};
  EXPECT_EQ(draw(o, logits, 1).begin()->first, 1);
  o.logit_bias.push_back({1, -kInf});
  o.logit_bias.push_back({1, 100});  // forbidden all the same
  EXPECT_EQ(draw(o, logits, 1).begin()->first, 0);
  o.temperature = 1e6f;
  EXPECT_EQ(draw(o, logits, 2000).count(1), 0u);
  EXPECT_EQ(draw(o, logits, 2000).count(3), 0u);
  o.logit_bias = {{4, 1}};
  EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
  o.logit_bias = {{-1, 1}};
  EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
}

TEST(Sampler, MaskedTokensAreNeverChosen) {
  Rng rng(31);
  for (const size_t n : {1u, 31u, 32u, 33u, 70u, 200u})
    for (const int64_t top_k : {0, 5})
      for (const float top_p : {1.0f, 0.9f}) {
        std::vector<float> logits(n);
        for (float& l : logits) l = float(rng.normal());
        SamplerOptions o = plain(n);
        o.top_k = top_k;
        o.top_p = top_p;
        o.temperature = 1e6f;  // what is left is as likely as the rest
        o.token_mask = {0x80000001u, 2};
        for (const auto& [id, count] : draw(o, logits, 300)) EXPECT_TRUE(id == 0 || id == 31 || id == 33) << id;
        logits[0] = -kInf;
        o.token_mask = {1};  // what the mask allows is impossible
        EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
        o.temperature = 0;
        EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
        o.token_mask = {0, 0};
        EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
        o.token_mask.assign((n + 31) / 32, ~0u);  // bits that fill the last word are no tokens
        EXPECT_TRUE(Sampler::make(o)->sample(logits).has_value() || n == 1);
        o.token_mask.push_back(4);
        const auto beyond = Sampler::make(o)->sample(logits);
        ASSERT_FALSE(beyond.has_value());
        EXPECT_EQ(beyond.error().got, "token " + std::to_string((n + 31) / 32 * 32 + 2));
      }
}

TEST(Sampler, TheLargestOfManyInOrder) {
  Rng rng(11);
  for (const int64_t n : {1, 63, 64, 65, 1000, 4099})
    for (const int64_t k : {1, 2, 40, 5000})
      for (const bool ties : {false, true}) {
        std::vector<float> logits(static_cast<size_t>(n));
        for (float& l : logits) l = ties ? float(rng.below(5)) : float(rng.normal());
        for (size_t i = 0; i < logits.size(); i += 7) logits[i] = -std::numeric_limits<float>::infinity();
        std::vector<int32_t> order(logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
        // All weights equal, so that a draw tells which were kept: at a huge temperature, and never another one.
        SamplerOptions o = plain(uint64_t(n + k));
        o.temperature = 1e6f;
        o.top_k = k;
        const std::vector<int32_t> kept(order.begin(), order.begin() + std::min(k, n));
        for (const auto& [id, count] : draw(o, logits, 200))
          EXPECT_NE(std::find(kept.begin(), kept.end(), id), kept.end()) << n << " " << k << " " << id;
        o.temperature = 0;
        EXPECT_EQ(draw(o, logits, 1).begin()->first, order[0]);
        if (n > 64) {
          logits[size_t(n - 1)] = std::numeric_limits<float>::quiet_NaN();
          EXPECT_FALSE(Sampler::make(o)->sample(logits).has_value());
        }
      }
}

/// docs/numerics.md#sampling word by word, on 128-bit integers.
int32_t sample_by_definition(const SamplerOptions& o, const std::vector<float>& logits, Rng& rng) {
  using Wide = unsigned __int128;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  if (o.top_k > 0) ids.resize(std::min(ids.size(), size_t(o.top_k)));
  const float largest = logits[size_t(ids[0])];
  const auto weight = [&](int32_t id, float temperature) {
    const float l = logits[size_t(id)];
    return uint64_t((l == largest ? 1.0f : exp_f32((l - largest) / temperature)) * 0x1p40f);
  };
  if (o.top_p < 1) {
    Wide total = 0, sum = 0;
    for (const int32_t id : ids) total += weight(id, 1);
    const Wide wanted = total * uint64_t(double(o.top_p) * 0x1p32) >> 32;
    size_t n = 0;
    while (n < ids.size() && sum < wanted) sum += weight(ids[n++], 1);
    ids.resize(std::max<size_t>(n, 1));
  }
  std::erase_if(ids, [&](int32_t id) { return weight(id, 1) < uint64_t(o.min_p * 0x1p40f); });
  std::sort(ids.begin(), ids.end());
  Wide total = 0;
  for (const int32_t id : ids) total += weight(id, o.temperature);
  Wide left = Wide(rng.next()) * total >> 64;
  for (const int32_t id : ids) {
    if (left < weight(id, o.temperature)) return id;
    left -= weight(id, o.temperature);
  }
  return -1;
}

TEST(Sampler, FollowsTheDefinition) {
  Rng rng(5);
  for (int round = 0; round < 400; ++round) {
    SamplerOptions o;
    o.temperature = std::array{0.01f, 0.8f, 1.0f, 3.0f, 1e6f}[rng.below(5)];
    o.top_k = int64_t(std::array{0, 1, 7, 40, 100000}[rng.below(5)]);
    o.top_p = std::array{1.0f, 0.95f, 0.5f, 1e-12f}[rng.below(4)];
    o.min_p = std::array{0.0f, 0.05f, 1.0f}[rng.below(3)];
    o.seed = rng.next();
    auto sampler = Sampler::make(o);
    ASSERT_TRUE(sampler);
    Rng draws(o.seed);
    for (int i = 0; i < 20; ++i) {
      std::vector<float> logits(1 + rng.below(i == 0 ? 3 * kMostTokenWeights : 300));
      const bool ties = rng.below(2) == 0;
      for (float& l : logits) l = ties ? float(rng.below(4)) : 5 * float(rng.normal());
      if (rng.below(8) == 0) logits[rng.below(logits.size())] = std::numeric_limits<float>::infinity();
      if (rng.below(8) == 0) logits.assign(logits.size(), -std::numeric_limits<float>::infinity());
      ASSERT_EQ(*sampler->sample(logits), sample_by_definition(o, logits, draws)) << round << " " << i;
    }
  }
}

// The choices themselves, so that no later change of a device or a library moves them.
TEST(Sampler, ChoicesOfOneSeed) {
  std::vector<float> logits(1000);
  Rng rng(3);
  for (float& l : logits) l = 2 * float(int64_t(rng.below(2001)) - 1000) / 1000.0f;
  auto sampler = Sampler::make({.seed = 42});
  ASSERT_TRUE(sampler);
  std::vector<int32_t> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(*sampler->sample(logits));
  EXPECT_EQ(ids, (std::vector<int32_t>{855, 47, 303, 372, 433, 406, 119, 930}));
}

TEST(Sampler, SeedDecides) {
  const std::vector<float> logits(100, 0.0f);
  const auto sequence = [&](uint64_t seed) {
    auto sampler = Sampler::make(plain(seed));
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(*sampler->sample(logits));
    sampler->reset();
    for (int i = 0; i < 50; ++i) EXPECT_EQ(*sampler->sample(logits), ids[size_t(i)]);
    return ids;
  };
  EXPECT_EQ(sequence(1), sequence(1));
  EXPECT_NE(sequence(1), sequence(2));
}

TEST(Sampler, Errors) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto sampler = Sampler::make({});
  ASSERT_TRUE(sampler);
  EXPECT_FALSE(sampler->sample({}).has_value());
  EXPECT_FALSE(sampler->sample(std::vector<float>((size_t{1} << 23) + 1)).has_value());
  const auto result = sampler->sample(std::vector<float>{1, nan});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message().find("NaN for token 1"), std::string::npos);
  const auto refused = [](auto change) {
    SamplerOptions o;
    change(o);
    return !Sampler::make(o).has_value();
  };
  EXPECT_TRUE(refused([&](SamplerOptions& o) { o.temperature = nan; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.temperature = -1; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.top_k = -1; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.top_p = 0; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.min_p = 1.5f; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.repeat_penalty = 0; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.repeat_window = -1; }));
  EXPECT_TRUE(refused([&](SamplerOptions& o) { o.presence_penalty = nan; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.frequency_penalty = kInf; }));
  EXPECT_TRUE(refused([&](SamplerOptions& o) { o.logit_bias = {{0, nan}}; }));
  EXPECT_TRUE(refused([](SamplerOptions& o) { o.logit_bias = {{0, kInf}}; }));
}

}  // namespace
}  // namespace lowbit
