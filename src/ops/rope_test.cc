#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/registry.h"

namespace lowbit {
namespace {

TEST(Rope, PlainAndLinearFrequencies) {
  const auto plain = rope_frequencies({64, 10000.0, {}});
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[16], 0.01, 1e-15);
  RopeScaling linear;
  linear.kind = RopeScaling::Kind::kLinear;
  linear.factor = 4;
  const auto scaled = rope_frequencies({64, 10000.0, linear});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, Llama3Frequencies) {
  // Llama 3.2 1B: head_dim 64, theta 500000, factor 32, low 1, high 4, original 8192. Values from
  // transformers' formula, evaluated in Python doubles.
  RopeScaling s;
  s.kind = RopeScaling::Kind::kLlama3;
  s.factor = 32;
  s.low_freq_factor = 1;
  s.high_freq_factor = 4;
  s.original_max_positions = 8192;
  const auto f = rope_frequencies({64, 500000.0, s});
  const std::pair<size_t, double> want[] = {{0, 1.0},
                                            {10, 0.016560440080994446},
                                            {14, 0.0032114459947525913},
                                            {15, 0.001290547928209264},
                                            {16, 0.00042955679655936815},
                                            {17, 9.70828780262767e-05},
                                            {18, 1.9461638184831125e-05},
                                            {31, 9.418306725434909e-08}};
  for (const auto& [i, value] : want) EXPECT_NEAR(f[i] / value, 1.0, 1e-12) << i;
}

TEST(Rope, TableDoesNotDependOnTheCut) {
  ThreadPool pool(2);
  const auto f = rope_frequencies({16, 10000.0, {}});
  std::vector<float> cos(100 * 8), sin(100 * 8), c(8), s(8);
  rope_table(f, 0, 100, cos.data(), sin.data(), pool);
  for (int64_t p = 0; p < 100; ++p) {
    rope_table(f, p, 1, c.data(), s.data(), pool);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(c[i], cos[size_t(p) * 8 + i]);
      EXPECT_EQ(s[i], sin[size_t(p) * 8 + i]);
      EXPECT_EQ(c[i], float(std::cos(double(p) * f[i])));
    }
  }
}

TEST(Rope, RotatesHalvesOfEveryHead) {
  ThreadPool pool(2);
  const int64_t half = 3, heads = 2, rows = 4;
  const auto f = rope_frequencies({2 * half, 100.0, {}});
  std::vector<float> cos(size_t(rows * half)), sin(cos.size()), x(size_t(rows * heads * 2 * half));
  rope_table(f, 7, rows, cos.data(), sin.data(), pool);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 13) - 6;
  const auto before = x;
  rope_rows(vector_ops(Isa::kScalar), x.data(), heads * 2 * half, rows, heads, half, cos.data(), sin.data(), pool);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const size_t a = size_t((r * heads + h) * 2 * half + i), b = a + size_t(half);
        const double angle = double(7 + r) * f[size_t(i)];
        EXPECT_NEAR(x[a], before[a] * std::cos(angle) - before[b] * std::sin(angle), 1e-5);
        EXPECT_NEAR(x[b], before[b] * std::cos(angle) + before[a] * std::sin(angle), 1e-5);
      }
}

}  // namespace
}  // namespace lowbit
