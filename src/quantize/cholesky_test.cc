#include "quantize/cholesky.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "quantize/tile_products.h"

namespace lowbit {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::MatrixXd random_hessian(int64_t k, uint64_t seed) {
  Rng rng(seed, 0);
  Eigen::MatrixXd x(k, k + 8);
  for (int64_t j = 0; j < x.cols(); ++j)
    for (int64_t i = 0; i < k; ++i) x(i, j) = static_cast<double>(rng.below(2001)) / 1000 - 1;
  Eigen::MatrixXd h = x * x.transpose() / static_cast<double>(k);
  h.diagonal().array() += 0.01;
  return h;
}

/// The textbook's recurrence, one element after the other.
Eigen::MatrixXd plain_cholesky(const Eigen::MatrixXd& a) {
  Eigen::MatrixXd l = Eigen::MatrixXd::Zero(a.rows(), a.rows());
  for (int64_t j = 0; j < a.rows(); ++j)
    for (int64_t i = j; i < a.rows(); ++i) {
      double sum = a(i, j);
      for (int64_t m = 0; m < j; ++m) sum -= l(i, m) * l(j, m);
      l(i, j) = i == j ? std::sqrt(sum) : sum / l(j, j);
    }
  return l;
}

TEST(Cholesky, FindsTheFactorOfThePlainRecurrence) {
  for (const int64_t k : {1, 2, 127, 128, 129, 256, 300, 517}) {
    const Eigen::MatrixXd a = random_hessian(k, static_cast<uint64_t>(k)), wanted = plain_cholesky(a);
    Eigen::MatrixXd lower = a;
    lower.triangularView<Eigen::StrictlyUpper>().setConstant(std::numeric_limits<double>::quiet_NaN());  // never read
    ThreadPool pool(3);
    ASSERT_TRUE(cholesky_in_tiles(lower, &pool)) << k;
    for (int64_t j = 0; j < k; ++j)
      for (int64_t i = j; i < k; ++i) ASSERT_NEAR(lower(i, j), wanted(i, j), 1e-11) << k << ": " << i << ", " << j;
  }
}

TEST(Cholesky, HasTheSameBitsForAnyNumberOfThreads) {
  const Eigen::MatrixXd a = random_hessian(700, 9);
  Eigen::MatrixXd alone = a;
  ASSERT_TRUE(cholesky_in_tiles(alone, nullptr));
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    Eigen::MatrixXd lower = a;
    ASSERT_TRUE(cholesky_in_tiles(lower, &pool));
    const Eigen::MatrixXd same = lower.triangularView<Eigen::Lower>(), wanted = alone.triangularView<Eigen::Lower>();
    EXPECT_TRUE(same == wanted) << threads;
  }
}

TEST(Cholesky, RefusesWhatHasNoFactor) {
  Eigen::MatrixXd a = random_hessian(300, 4);
  a(200, 200) = -1;
  EXPECT_FALSE(cholesky_in_tiles(a, nullptr));
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Eigen::MatrixXd b = random_hessian(300, 5);
    b(250, 10) = bad;
    EXPECT_FALSE(cholesky_in_tiles(b, nullptr));
  }
}

TEST(Cholesky, SolvesForRightSides) {
  for (const int64_t k : {1, 5, 128, 131, 300}) {
    const Eigen::MatrixXd a = random_hessian(k, static_cast<uint64_t>(k) + 1);
    Eigen::MatrixXd lower = a;
    ASSERT_TRUE(cholesky_in_tiles(lower, nullptr));
    lower.triangularView<Eigen::StrictlyUpper>().setConstant(std::numeric_limits<double>::quiet_NaN());  // never read
    RowMajor wanted(k, kSides);
    Rng rng(3, static_cast<uint64_t>(k));
    for (int64_t i = 0; i < wanted.size(); ++i) wanted.data()[i] = rng.normal();
    RowMajor x = a * wanted;
    RowMajor twice(2 * k, kSides);
    twice << x, x;
    solve_by_factor(lower, x.data(), 1);
    EXPECT_LT((x - wanted).cwiseAbs().maxCoeff(), 1e-9) << k;
    solve_by_factor(lower, twice.data(), 2);
    EXPECT_TRUE(twice.topRows(k) == x && twice.bottomRows(k) == x) << k;
  }
}

/// Every sum is one chain of fused multiply-adds over all that came before, wherever tiles are cut.
TEST(Cholesky, SumsInOneOrder) {
  constexpr int64_t kRows = 6, kDepth = 9;
  Rng rng(4, 0);
  std::vector<double> l(kDepth * kTile), y(kDepth * kSides), x(kRows * kSides);
  for (auto* const of : {&l, &y, &x})
    for (double& v : *of) v = rng.normal();
  std::vector<double> wanted = x;
  for (int64_t i = 0; i < kRows; ++i)
    for (int64_t s = 0; s < kSides; ++s)
      for (int64_t p = 0; p < kDepth; ++p) {
        double& sum = wanted[static_cast<size_t>(i * kSides + s)];
        sum = std::fma(l[static_cast<size_t>(p * kTile + i)], y[static_cast<size_t>(p * kSides + s)], sum);
      }
  add_tile_product(l.data(), kRows, kDepth, y.data(), kSides, x.data(), kSides);
  EXPECT_EQ(x, wanted);
}

}  // namespace
}  // namespace lowbit
