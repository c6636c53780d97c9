#include "quantize/rotation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace lowbit {
namespace {

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(a[i]) * b[i];
  return sum;
}

TEST(Rotation, KeepsProductsAndSpreadsOutliers) {
  for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{576}, int64_t{960}}) {
    const Rotation t(n, 5);
    Rng rng(3, static_cast<uint64_t>(n));
    std::vector<float> x(static_cast<size_t>(3 * n));
    for (float& v : x) v = static_cast<float>(rng.normal());
    x[0] = 50;
    std::vector<float> y = x;
    t.rotate_rows(y.data(), 3, n);
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) {
        const double before = dot(x.data() + a * n, x.data() + b * n, n),
                     after = dot(y.data() + a * n, y.data() + b * n, n);
        EXPECT_NEAR(
            after, before,
            1e-5 * std::sqrt(dot(x.data() + a * n, x.data() + a * n, n) * dot(x.data() + b * n, x.data() + b * n, n)));
      }
    if (n < 64) continue;
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(y[static_cast<size_t>(i)]));
    EXPECT_LT(largest, 25);
  }
}

TEST(Rotation, OutputsTurnAsRowsDo) {
  const int64_t n = 12, k = 5;
  const Rotation t(n, 1);
  Rng rng(9);
  std::vector<float> w(static_cast<size_t>(n * k)), rows(static_cast<size_t>(k * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < k; ++c)
      w[static_cast<size_t>(i * k + c)] = rows[static_cast<size_t>(c * n + i)] = float(rng.normal());
  t.rotate_outputs(w.data(), k);
  t.rotate_rows(rows.data(), k, n);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < k; ++c) EXPECT_EQ(w[static_cast<size_t>(i * k + c)], rows[static_cast<size_t>(c * n + i)]);
}

}  // namespace
}  // namespace lowbit
