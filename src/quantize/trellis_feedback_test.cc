#include "quantize/trellis_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "format/trellis.h"
#include "quantize/test_problem.h"
#include "quantize/trellis_fit.h"
#include "quantize/trellis_search.h"

namespace lowbit {
namespace {

using testing_quantize::grouped;
using testing_quantize::Problem;
using testing_quantize::run;

constexpr FormatId kTrellisFormats[] = {FormatId::kTrellis2, FormatId::kTrellis3};

struct Strip {
  TrellisStrip job;
  std::vector<float> table, base, added, scales, gain, carry;
  std::vector<uint8_t> codes;

  Strip(FormatId id, int64_t columns, double coupling, uint64_t seed) : table(gaussian_table(id)) {
    Rng rng(seed);
    for (int64_t j = 0; j < columns; ++j) {
      base.push_back(float(rng.normal()));
      added.push_back(float(0.1 * rng.normal()));
      scales.push_back(float(0.017 + 0.003 * rng.uniform()));
      gain.push_back(float(0.5 + rng.uniform()));
      for (int64_t i = 0; i < kStripWidth; ++i) carry.push_back(i > j ? float(coupling * rng.normal()) : 0.0f);
    }
    codes.resize(size_t(columns));
    job = {trellis_of(id), table.data(), columns, base.data(), added.data(), scales.data(),
           gain.data(),    carry.data(), 0,       -1,          codes.data()};
  }
  double loss() const {
    double sum = 0;
    std::vector<double> targets(base.size());
    for (size_t j = 0; j < base.size(); ++j) targets[j] = double(base[j]) + added[j];
    for (size_t j = 0; j < base.size(); ++j) {
      const double q = double(scales[j]) * table[codes[j]];
      sum += std::pow(gain[j] * (targets[j] - q), 2);
      for (size_t i = j + 1; i < base.size(); ++i) targets[i] += (base[j] - q) * carry[j * kStripWidth + i];
    }
    return sum;
  }
};

TEST(trellis_strip, the_loss_is_that_of_its_codes) {
  const auto scratch = std::make_unique<TrellisStripScratch>();
  for (const FormatId id : kTrellisFormats)
    for (const int64_t columns : {1, 5, 33, 64}) {
      Strip s(id, columns, 0.2, uint64_t(columns));
      const TrellisPath path = search_strip(s.job, *scratch);
      EXPECT_NEAR(path.loss, s.loss(), 1e-4 * s.loss());
      unsigned state = 0;
      for (const uint8_t code : s.codes) state = s.job.trellis->next(state, code);
      EXPECT_EQ(state, path.end);
    }
}

/// A strip searched by plain loops: every state keeps its path's codes, cost and targets.
std::vector<uint8_t> plain_search(const TrellisStrip& s, float& loss) {
  struct Path {
    std::vector<uint8_t> codes;
    std::vector<float> targets;
    float cost = std::numeric_limits<float>::infinity();
  };
  std::vector<Path> paths(kTrellisStates), next;
  for (Path& path : paths) path.targets.resize(size_t(s.columns));
  paths[s.start].cost = 0;
  const int bits = s.trellis->stored_bits;
  for (int64_t j = 0; j < s.columns; ++j) {
    next.assign(kTrellisStates, {});
    for (int state = 0; state < kTrellisStates; ++state)
      for (int oldest = 0; oldest < 1 << bits; ++oldest) {
        const int window = state + oldest * kTrellisStates;
        const Path& before = paths[size_t(window >> bits)];
        const float value = s.table[s.trellis->codes[window]], q = s.scales[j] * value;
        const float target = s.gain[j] * ((s.base[j] + s.added[j]) + before.targets[size_t(j)]);
        const float d = std::fma(-(s.gain[j] * s.scales[j]), value, target), cost = std::fma(d, d, before.cost);
        if (oldest > 0 && !(cost < next[size_t(state)].cost)) continue;
        Path& path = next[size_t(state)] = before;
        path.cost = cost;
        path.codes.push_back(s.trellis->codes[window]);
        for (int64_t i = j + 1; i < s.columns; ++i)
          path.targets[size_t(i)] = std::fma(s.base[j] - q, s.carry[j * kStripWidth + i], path.targets[size_t(i)]);
      }
    paths.swap(next);
  }
  const auto best = std::min_element(paths.begin(), paths.end(), [](auto& a, auto& b) { return a.cost < b.cost; });
  loss = best->cost;
  return best->codes;
}

TEST(trellis_strip, equals_plain_loops_bit_for_bit) {
  const auto scratch = std::make_unique<TrellisStripScratch>();
  for (const FormatId id : kTrellisFormats)
    for (const int64_t columns : {1, 2, 7, 8, 9, 17, 63, 64}) {
      Strip s(id, columns, 0.2, uint64_t(100 + columns));
      s.job.start = unsigned(columns) % kTrellisStates;
      float loss = 0;
      const std::vector<uint8_t> want = plain_search(s.job, loss);
      EXPECT_EQ(search_strip(s.job, *scratch).loss, loss);
      EXPECT_EQ(s.codes, want) << columns;
    }
}

TEST(trellis_strip, without_carry_it_is_the_best_of_all_paths) {
  const auto scratch = std::make_unique<TrellisStripScratch>();
  for (const FormatId id : kTrellisFormats) {
    Strip s(id, 64, 0, 3);
    std::vector<float> x(64), h(64);
    for (size_t j = 0; j < 64; ++j) x[j] = s.base[j] + s.added[j], h[j] = s.gain[j] * s.gain[j];
    std::vector<uint8_t> codes(64), search_scratch;
    TrellisRows rows;
    rows.trellis = s.job.trellis;
    rows.table = s.table.data();
    rows.rows = 1;
    rows.k = 64;
    rows.h = h.data();
    rows.x[0] = x.data();
    rows.scales[0] = s.scales.data();
    rows.codes[0] = codes.data();
    search_trellis(rows, search_scratch);
    search_strip(s.job, *scratch);
    const double loss = s.loss();
    s.codes = codes;
    EXPECT_NEAR(loss, s.loss(), 1e-5 * loss);
  }
}

TEST(trellis_strip, begins_and_ends_where_it_is_told) {
  const auto scratch = std::make_unique<TrellisStripScratch>();
  for (const FormatId id : kTrellisFormats)
    for (const unsigned start : {0u, 17u, 63u})
      for (const int end : {0, 5, 62}) {
        Strip s(id, 20, 0.2, 5);
        s.job.start = start;
        s.job.end = end;
        EXPECT_EQ(search_strip(s.job, *scratch).end, unsigned(end));
        unsigned state = start;
        for (const uint8_t code : s.codes) {
          ASSERT_NE(s.job.trellis->stored[16 * state + code], kOffTrellis);
          state = s.job.trellis->next(state, code);
        }
        EXPECT_EQ(state, unsigned(end));
      }
}

TEST(TrellisFeedback, TheLadderDescends) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const Problem p(seed);
    ThreadPool pool(1);
    const std::vector<float> importance = p.hessian.diagonal();
    for (const auto& [format, rival] :
         {std::pair{FormatId::kTrellis2, FormatId::kCodebook2}, {FormatId::kTrellis3, FormatId::kCodebook3}}) {
      const FitOptions options = grouped(format);
      const double weighted = p.loss(*fit(p.w.data(), p.n, p.k, options, importance.data(), pool));
      const double rounded = p.loss(run(p, options, {.refine_rounds = 0}));
      FeedbackReport report;
      const double once = p.loss(run(p, options, {.refine_rounds = 1}));
      const double refined = p.loss(run(p, options, {.refine_rounds = 2}, 1, &report));
      const double untangled = p.loss(run(p, grouped(rival), {.refine_rounds = 2}));
      std::printf("  %s: weighted %.5f feedback %.5f once %.5f refined %.5f; %s refined %.5f\n",
                  format_info(format).name, weighted, rounded, once, refined, format_info(rival).name, untangled);
      EXPECT_LT(rounded, 0.8 * weighted);
      EXPECT_LT(once, 0.97 * rounded);
      EXPECT_LT(refined, once);
      EXPECT_LT(refined, 0.85 * untangled);
      EXPECT_NEAR(report.output_error, refined, 1e-3 * refined);
    }
  }
}

TEST(TrellisFeedback, SameBitsForAnyThreadCountAndForEveryRowAlone) {
  const Problem p;
  for (const FormatId id : kTrellisFormats) {
    FitOptions options = grouped(id, 40);
    options.table = TableMethod::kLloydMax;  // which is the same for a row alone
    options.scaling.scale = ScaleKind::kDouble;
    const ValueTensor all = run(p, options, {}, 1), b = run(p, options, {}, 3);
    EXPECT_EQ(all.codes, b.codes);
    EXPECT_EQ(all.scales, b.scales);
    Problem one = p;
    one.n = 1;
    for (int64_t r = 0; r < p.n; r += 5) {
      one.w.assign(p.w.begin() + r * p.k, p.w.begin() + (r + 1) * p.k);
      const ValueTensor alone = run(one, options, {});
      EXPECT_TRUE(std::equal(alone.codes.begin(), alone.codes.end(), all.codes.begin() + r * p.k)) << r;
    }
  }
}

TEST(TrellisFeedback, WithoutAFactorTheCodesAreThoseOfTheWeights) {
  Problem p;
  p.hessian.h.assign(p.hessian.h.size(), 0.0f);  // nothing was ever seen
  FeedbackReport report;
  run(p, grouped(FormatId::kTrellis2), {}, 1, &report);
  EXPECT_TRUE(report.fell_back);
  EXPECT_LT(report.weights.rel_error, 0.08);
}

TEST(TrellisFeedback, ColumnsInAnotherOrderAreRefused) {
  const Problem p;
  ThreadPool pool(1);
  const auto input = FeedbackInput::make(std::make_shared<const InputHessian>(p.hessian), {});
  ASSERT_TRUE(input);
  const auto q = fit_with_feedback(p.w.data(), p.n, p.k, grouped(FormatId::kTrellis2), *input, {}, pool);
  ASSERT_FALSE(q);
  EXPECT_EQ(q.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace lowbit
