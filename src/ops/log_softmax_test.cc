#include "ops/log_softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/exp_f64.h"

namespace lowbit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t n, float spread) {
  Rng rng(n);
  std::vector<float> logits(n);
  for (float& l : logits) l = spread * static_cast<float>(rng.normal());
  return logits;
}

TEST(LogSoftmax, IsTheLogOfTheSoftmax) {
  for (const size_t n : {1u, 2u, 63u, 1000u, 49152u})
    for (const float spread : {0.1f, 3.0f, 60.0f}) {
      std::vector<float> logits = random_logits(n, spread);
      const LogSoftmax soft = log_softmax(logits);
      long double sum = 0, total = 0;
      for (const float l : logits) sum += std::exp(static_cast<long double>(l));
      for (const float l : logits) {
        const long double want = l - std::log(sum);
        EXPECT_NEAR(soft.of(l), static_cast<double>(want),
                    4e-6 * (1 + std::abs(static_cast<double>(l - soft.largest))));
        total += std::exp(static_cast<long double>(soft.of(l)));
      }
      EXPECT_NEAR(static_cast<double>(total), 1, 1e-5);
      const std::vector<float> before = logits;
      soft.apply(logits);
      for (size_t i = 0; i < n; ++i) EXPECT_NEAR(logits[i], soft.of(before[i]), 1e-5 * (1 + std::abs(before[i])));
    }
}

// The order of the sum and its roundings are part of the numbers that are printed.
TEST(LogSoftmax, HasTheBitsOfItsDefinition) {
  const std::vector<float> logits = random_logits(5000, 4);
  float largest = logits[0];
  for (const float l : logits) largest = std::max(largest, l);
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += 1024) {
    std::vector<double> s(1024);
    for (size_t i = begin; i < std::min(begin + 1024, logits.size()); ++i) s[i - begin] = exp_f64(logits[i] - largest);
    for (size_t width = 512; width > 0; width /= 2)
      for (size_t i = 0; i < width; ++i) s[i] += s[i + width];
    sum += s[0];
  }
  const LogSoftmax soft = log_softmax(logits);
  EXPECT_EQ(soft.log_sum, std::log(sum));
  EXPECT_EQ(-soft.of(logits[17]), std::log(sum) - static_cast<double>(logits[17] - largest));
}

TEST(LogSoftmax, ExponentialsOfDifferences) {
  Rng rng(5);
  EXPECT_EQ(exp_f64(0), 1);
  EXPECT_EQ(exp_f64(-kInfinity), exp_f64(-700));
  EXPECT_LT(exp_f64(-kInfinity), 1e-300);
  EXPECT_TRUE(std::isnan(exp_f64(std::nan(""))));
  for (int i = 0; i < 100000; ++i) {
    const double x = -std::pow(10.0, 8 * rng.uniform() - 5.16), want = std::exp(std::max(x, -700.0));
    ASSERT_NEAR(exp_f64(x), want, 1e-11 * want) << x;
  }
}

TEST(LogSoftmax, TheTopIsTheFirstOfTheLargest) {
  EXPECT_EQ(log_softmax(std::vector<float>{1, 3, 2, 3}).top, 1);
  EXPECT_EQ(log_softmax(std::vector<float>{5}).top, 0);
}

TEST(LogSoftmax, LargeLogitsDoNotOverflowAndSomeMayBeImpossible) {
  const LogSoftmax soft = log_softmax(std::vector<float>{1e30f, 1e30f, -kInfinity});
  EXPECT_DOUBLE_EQ(soft.of(1e30f), -std::log(2.0));
  EXPECT_EQ(soft.of(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(log_softmax(std::vector<float>{1, std::nanf(""), 2}).of(1)));
}

TEST(KlDivergence, OfAPairByHand) {
  const auto log = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> p = {log(0.5), log(0.25), log(0.25)}, q = {log(0.25), log(0.5), log(0.25)};
  EXPECT_NEAR(kl_divergence(p, q), 0.25 * std::log(2.0), 1e-7);
  EXPECT_EQ(kl_divergence(p, p), 0);
}

}  // namespace
}  // namespace lowbit
