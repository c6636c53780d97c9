#include "quantize/feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "quantize/feedback_factor.h"
#include "quantize/rotation.h"
#include "quantize/test_problem.h"

namespace lowbit {
namespace {

using testing_quantize::grouped;
using testing_quantize::Problem;
using testing_quantize::run;

TEST(Feedback, TheLadderDescends) {
  double in_order_sum = 0, ordered_sum = 0;
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    const Problem p(seed);
    ThreadPool pool(1);
    const std::vector<float> importance = p.hessian.diagonal();
    for (const FormatId format : {FormatId::kInt2Odd, FormatId::kInt3, FormatId::kTernary}) {
      const FitOptions options = grouped(format);
      const double plain = p.loss(*fit(p.w.data(), p.n, p.k, options, nullptr, pool));
      if (format != FormatId::kTernary) {  // whose least squares in the weights are no better in the outputs
        FitOptions nearest = options;
        nearest.method = FitMethod::kAbsmax;
        EXPECT_LT(plain, p.loss(*fit(p.w.data(), p.n, p.k, nearest, nullptr, pool)));
      }
      const double weighted = p.loss(*fit(p.w.data(), p.n, p.k, options, importance.data(), pool));
      const double in_order = p.loss(run(p, options, {.act_order = false, .refine_rounds = 0}));
      const double ordered = p.loss(run(p, options, {.refine_rounds = 0}));
      FeedbackReport report;
      const double refined = p.loss(run(p, options, {.refine_rounds = 4}, 1, &report));
      EXPECT_LT(weighted, plain);
      EXPECT_LT(in_order, 0.85 * weighted);
      EXPECT_LT(refined, 0.98 * ordered);
      EXPECT_NEAR(report.output_error, refined, 1e-3 * refined);
      EXPECT_FALSE(report.fell_back);
      in_order_sum += std::log(in_order);
      ordered_sum += std::log(ordered);
    }
  }
  EXPECT_LT(ordered_sum, in_order_sum);  // a small gain, not in every case
}

/// Heavy tails in weights and channels, as trained models have.
Problem heavy_tailed(uint64_t seed) {
  Problem p(seed);
  Rng rng(seed, 1);
  std::vector<float> louder(static_cast<size_t>(p.k), 1.0f);
  for (int i = 0; i < 6; ++i) louder[rng.below(static_cast<uint64_t>(p.k))] *= 8;
  for (int64_t i = 0; i < p.k; ++i)
    for (int64_t j = 0; j < p.k; ++j)
      p.hessian.h[static_cast<size_t>(i * p.k + j)] *= louder[static_cast<size_t>(i)] * louder[static_cast<size_t>(j)];
  for (float& w : p.w) {  // Student's t with six degrees of freedom
    double squares = 0;
    for (int d = 0; d < 6; ++d) squares += std::pow(rng.normal(), 2);
    w = static_cast<float>(rng.normal() / std::sqrt(squares / 6));
  }
  return p;
}

TEST(Feedback, RotationHelpsOnlyWithFeedback) {
  double with_feedback = 0, without = 0;
  for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
    const Problem p = heavy_tailed(seed);
    Problem turned = p;
    const Rotation t(p.k, seed);
    t.rotate_rows(turned.w.data(), p.n, p.k);
    t.rotate_rows(turned.hessian.h.data(), p.k, p.k);  // H T^T, then T H T^T
    t.rotate_outputs(turned.hessian.h.data(), p.k);
    ThreadPool pool(1);
    const FitOptions options = grouped(FormatId::kInt2Odd);
    const FeedbackOptions refined{.refine_rounds = 4};
    with_feedback += std::log(turned.loss(run(turned, options, refined)) / p.loss(run(p, options, refined)));
    const std::vector<float> before = p.hessian.diagonal(), after = turned.hessian.diagonal();
    without += std::log(turned.loss(*fit(turned.w.data(), p.n, p.k, options, after.data(), pool)) /
                        p.loss(*fit(p.w.data(), p.n, p.k, options, before.data(), pool)));
  }
  EXPECT_LT(with_feedback, -0.5);
  EXPECT_GT(without, 0);
}

TEST(Feedback, DoubleQuantizedScalesAreRefittedToo) {
  const Problem p;
  FitOptions options = grouped(FormatId::kInt2Odd, 16);
  options.scaling.scale = ScaleKind::kDouble;
  const double coarse = p.loss(run(p, grouped(FormatId::kInt2Odd, 64), {}));
  const double fine = p.loss(run(p, options, {}));
  EXPECT_LT(fine, 0.9 * coarse);
  EXPECT_LT(fine, p.loss(run(p, options, {.refine_rounds = 0})));
}

TEST(Feedback, SameBitsForAnyThreadCount) {
  const Problem p;
  const ValueTensor a = run(p, grouped(FormatId::kInt3), {}, 1), b = run(p, grouped(FormatId::kInt3), {}, 3);
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.scales, b.scales);
}

TEST(Feedback, RowsDoNotInfluenceEachOther) {  // and each goes on as long as it moves, whatever the others do
  const Problem p;
  const ValueTensor all = run(p, grouped(FormatId::kInt2Odd), {});
  Problem one = p;
  one.n = 1;
  for (int64_t r = 0; r < p.n; ++r) {
    one.w.assign(p.w.begin() + r * p.k, p.w.begin() + (r + 1) * p.k);
    const ValueTensor alone = run(one, grouped(FormatId::kInt2Odd), {});
    EXPECT_TRUE(std::equal(alone.codes.begin(), alone.codes.end(), all.codes.begin() + r * p.k)) << r;
    EXPECT_TRUE(std::equal(alone.scales.begin(), alone.scales.end(), all.scales.begin() + r * p.k / 64)) << r;
  }
}

TEST(Feedback, EveryRoundOfRefiningHelps) {
  const Problem p;
  double before = std::numeric_limits<double>::infinity();
  for (const int rounds : {0, 1, 2, 4}) {
    const double loss = p.loss(run(p, grouped(FormatId::kInt2Odd), {.refine_rounds = rounds}));
    EXPECT_LT(loss, before) << rounds << " rounds";
    before = loss;
  }
}

TEST(Feedback, EveryScalingIsServed) {
  const Problem p;
  ThreadPool pool(1);
  for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8})
    for (const ScaleKind scale : {ScaleKind::kF16, ScaleKind::kF32, ScaleKind::kPow2, ScaleKind::kDouble})
      for (const int64_t n_block : {int64_t{1}, int64_t{5}, Scaling::kAll}) {
        FitOptions options = grouped(FormatId::kInt4, 50);  // a short last group
        options.scaling.zero = zero;
        options.scaling.scale = scale;
        options.scaling.n_block = n_block;
        const std::vector<float> importance = p.hessian.diagonal();
        const auto weighted = fit(p.w.data(), p.n, p.k, options, importance.data(), pool);
        if (!weighted) continue;  // a scaling that no fitter takes
        EXPECT_LT(p.loss(run(p, options, {})), p.loss(*weighted));
      }
}

TEST(Feedback, SilentChannelsAreRoundedPlainly) {
  Problem p;
  for (int64_t i = 0; i < p.k; ++i)
    for (const int64_t dead : {int64_t{0}, int64_t{7}, p.k - 1})
      p.hessian.h[static_cast<size_t>(dead * p.k + i)] = p.hessian.h[static_cast<size_t>(i * p.k + dead)] = 0;
  FeedbackReport report;
  run(p, grouped(FormatId::kInt4), {}, 1, &report);
  EXPECT_FALSE(report.fell_back);
  EXPECT_LT(report.output_error, 0.02);
  p.hessian.h.assign(p.hessian.h.size(), 0.0f);  // nothing was ever seen
  run(p, grouped(FormatId::kInt4), {}, 1, &report);
  EXPECT_TRUE(report.fell_back);
  EXPECT_LT(report.weights.rel_error, 0.02);
}

TEST(Feedback, DampingRisesAndThenGivesUp) {
  Problem p;
  std::fill(p.hessian.h.begin(), p.hessian.h.end(), 1.0f);
  p.hessian.h[1] = p.hessian.h[static_cast<size_t>(p.k)] = 1.05f;  // not positive definite
  FeedbackReport report;
  run(p, grouped(FormatId::kInt4), {}, 1, &report);
  EXPECT_FALSE(report.fell_back);
  EXPECT_NEAR(report.damping, 0.1, 1e-12);
  p.hessian.h[1] = p.hessian.h[static_cast<size_t>(p.k)] = 100.0f;
  run(p, grouped(FormatId::kInt4), {}, 1, &report);
  EXPECT_TRUE(report.fell_back);
  EXPECT_LT(report.weights.rel_error, 0.02);
}

TEST(Feedback, AnInputIsFactoredOnceForSeveralFits) {
  const Problem p;
  ThreadPool pool(2);
  const auto input = FeedbackInput::make(std::make_shared<const InputHessian>(p.hessian), {});
  ASSERT_TRUE(input);
  for (const FormatId format : {FormatId::kInt3, FormatId::kInt4})
    for (const int rounds : {0, 2}) {
      const FeedbackOptions feedback{.refine_rounds = rounds};
      FeedbackReport shared_report, own_report;
      const auto shared =
          fit_with_feedback(p.w.data(), p.n, p.k, grouped(format), *input, feedback, pool, &shared_report);
      ASSERT_TRUE(shared);
      const ValueTensor own = run(p, grouped(format), feedback, 1, &own_report);
      EXPECT_EQ(shared->codes, own.codes);
      EXPECT_EQ(shared->scales, own.scales);
      EXPECT_EQ(shared_report.output_error, own_report.output_error);
    }
  const auto other = fit_with_feedback(p.w.data(), p.n, p.k - 1, grouped(FormatId::kInt4), *input, {}, pool);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kShapeMismatch);
}

TEST(Feedback, EnergyOfOutputs) {
  for (const int64_t k : {1, 15, 16, 70, 192}) {
    Rng rng(static_cast<uint64_t>(k));
    InputHessian m;
    m.k = k;
    m.h.resize(static_cast<size_t>(k * k));
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j <= i; ++j)
        m.h[static_cast<size_t>(i * k + j)] = m.h[static_cast<size_t>(j * k + i)] = rng.normal();
    for (const int64_t rows : {1, 4, 5, 19}) {
      std::vector<float> x(static_cast<size_t>(rows * k));
      for (float& v : x) v = rng.normal();
      double wanted = 0, size = 0;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < k; ++i)
          for (int64_t j = 0; j < k; ++j) {
            const double part = double(x[static_cast<size_t>(r * k + i)]) * m.h[static_cast<size_t>(i * k + j)] *
                                x[static_cast<size_t>(r * k + j)];
            wanted += part;
            size += std::fabs(part);
          }
      EXPECT_NEAR(quadratic_form(m, x.data(), rows), wanted, 1e-6 * size) << rows << " rows of " << k;
    }
  }
}

TEST(Feedback, BadHessiansAreErrors) {
  Problem p;
  ThreadPool pool(1);
  const auto code = [&](const InputHessian& m) {
    const auto q = fit_with_feedback(p.w.data(), p.n, p.k, grouped(FormatId::kInt4), m, {}, pool);
    EXPECT_FALSE(q);
    return q ? ErrorCode::kIo : q.error().code;
  };
  InputHessian m = p.hessian;
  m.h[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(m), ErrorCode::kInvalidArgument);
  m.h[5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(code(m), ErrorCode::kInvalidArgument);
  m = p.hessian;
  m.h[0] = -1;
  EXPECT_EQ(code(m), ErrorCode::kInvalidArgument);
  m = p.hessian;
  m.k -= 1;
  EXPECT_EQ(code(m), ErrorCode::kShapeMismatch);
  p.w[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(p.hessian), ErrorCode::kInvalidArgument);
}

/// Inputs y of the source's layer and x of the quantized one, whose channels leak into each other; means over tokens.
TEST(Feedback, AlignedTargetsGiveTheSourcesOutputs) {
  constexpr int64_t kTokens = 1500, kRows = 6, kColumns = 70;
  Rng rng(3, 0);
  std::vector<float> y(kTokens * kColumns), x(y.size()), w(kRows * kColumns);
  for (float& v : y) v = static_cast<float>(rng.normal());
  for (float& v : w) v = static_cast<float>(rng.normal());
  for (int64_t i = 0; i < kTokens * kColumns; ++i) {
    const int64_t next = i % kColumns + 1 < kColumns ? i + 1 : i;
    x[static_cast<size_t>(i)] = 0.9f * y[static_cast<size_t>(i)] + 0.3f * y[static_cast<size_t>(next)];
  }
  InputHessian hessian;
  hessian.k = kColumns;
  hessian.h.assign(kColumns * kColumns, 0.0f);
  hessian.mismatch = hessian.h;
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < kColumns; ++i)
      for (int64_t j = 0; j < kColumns; ++j) {
        const auto a = static_cast<size_t>(t * kColumns + i), b = static_cast<size_t>(t * kColumns + j);
        hessian.h[static_cast<size_t>(i * kColumns + j)] += x[a] * x[b] / kTokens;
        hessian.mismatch[static_cast<size_t>(i * kColumns + j)] += (y[a] - x[a]) * x[b] / kTokens;
      }
  ThreadPool pool(2);
  const auto loss = [&](float shift) {
    FeedbackOptions feedback;
    feedback.shift = shift;
    feedback.damping = 1e-4;
    const auto q = fit_with_feedback(w.data(), kRows, kColumns, grouped(FormatId::kInt8, 32), hessian, feedback, pool);
    EXPECT_TRUE(q);
    std::vector<float> reals(w.size());
    dequantize_rows(*pack(*q), 0, kRows, reals.data());
    double sum = 0;
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t r = 0; r < kRows; ++r) {
        double d = 0;
        for (int64_t i = 0; i < kColumns; ++i) {
          const auto at = static_cast<size_t>(r * kColumns + i), in = static_cast<size_t>(t * kColumns + i);
          d += static_cast<double>(w[at]) * y[in] - static_cast<double>(reals[at]) * x[in];
        }
        sum += d * d;
      }
    return sum;
  };
  const double none = loss(0), half = loss(0.5f), whole = loss(1);
  EXPECT_LT(half, 0.4 * none);    // half of the way leaves a quarter of the square
  EXPECT_LT(whole, 0.05 * none);  // x is y turned, so that weights can make up for all of it
}

/// Outputs that lack something which is a product of the inputs, against the normal equations solved one row at a time.
TEST(Feedback, TargetsMakeUpForWhatOutputsLack) {
  const Problem p;
  Rng rng(5, 0);
  InputHessian lacking = p.hessian;
  std::vector<float> wanted(p.w.size());
  for (float& v : wanted) v = 0.3f * rng.normal();
  lacking.missing.resize(p.w.size());
  for (int64_t r = 0; r < p.n; ++r)
    for (int64_t i = 0; i < p.k; ++i) {
      double e = 0;  // row times H: what is missing is `wanted` of the inputs
      for (int64_t j = 0; j < p.k; ++j)
        e += double(wanted[static_cast<size_t>(r * p.k + j)]) * p.hessian.h[static_cast<size_t>(j * p.k + i)];
      lacking.missing[static_cast<size_t>(r * p.k + i)] = static_cast<float>(e);
    }
  ThreadPool pool(2);
  const auto distance = [&](float shift, float part) {
    FeedbackOptions feedback;
    feedback.shift = shift;
    feedback.damping = 1e-5;
    const auto q = fit_with_feedback(p.w.data(), p.n, p.k, grouped(FormatId::kInt8, 32), lacking, feedback, pool);
    EXPECT_TRUE(q);
    std::vector<float> reals(p.w.size());
    dequantize_rows(*pack(*q), 0, p.n, reals.data());
    double sum = 0;
    for (int64_t r = 0; r < p.n; ++r) {
      std::vector<float> row(static_cast<size_t>(p.k));
      for (size_t c = 0; c < row.size(); ++c) {
        const size_t at = static_cast<size_t>(r * p.k) + c;
        row[c] = reals[at] - p.w[at] - part * wanted[at];
      }
      sum += quadratic_form(p.hessian, row.data(), 1);
    }
    return sum / quadratic_form(p.hessian, wanted.data(), p.n);
  };
  EXPECT_LT(distance(0, 0), 0.01);
  EXPECT_LT(distance(0.5f, 0.5f), 0.01);
  EXPECT_LT(distance(1, 1), 0.01);
  EXPECT_NEAR(distance(0.5f, 1), 0.25, 0.05);
  InputHessian other = lacking;
  other.missing.resize(other.missing.size() - static_cast<size_t>(p.k));
  const auto refused = fit_with_feedback(p.w.data(), p.n, p.k, grouped(FormatId::kInt4), other, {}, pool);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kShapeMismatch);
}

}  // namespace
}  // namespace lowbit
