// Scales by what they do to the outputs.
#include <algorithm>
#include <cmath>

#include "gru/test_networks.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

/// Weights so large that gates saturate: what minmax ranges are worst at.
MeasuredNetwork make_tuned(uint64_t seed, int layers = 1, bool both = false) {
  return measured_network(seed, layers, both, 1.2);
}

GruTuneOptions options_for(const MeasuredNetwork& f) {
  GruTuneOptions options;
  options.config = *gru_preset("seed8");
  options.config.table = GruTableMode::kDirect;  // made at once
  options.inputs = std::span(&f.in, 1);
  return options;
}

TEST(GruTune, OutputsComeNearerToTheFloats) {
  for (const auto& [layers, both] : {std::pair{1, false}, {2, false}, {2, true}}) {
    const MeasuredNetwork f = make_tuned(1, layers, both);
    const GruTuneOptions options = options_for(f);
    const auto report = tune_gru_ranges(f.net, f.ranges, options);
    ASSERT_TRUE(report) << report.error().message();
    const auto before = GruModel::quantize(f.net, f.ranges, options.config),
               after = GruModel::quantize(f.net, report->ranges, options.config);
    ASSERT_TRUE(before && after);
    EXPECT_NEAR(sqnr(f, *before), report->start, 1e-9);
    EXPECT_NEAR(sqnr(f, *after), report->value, 1e-9);
    EXPECT_GT(report->value, report->start + 3) << layers << both;
    // The changes tell how it came about.
    double last = report->start;
    for (const auto& c : report->changes) {
      EXPECT_GE(c.value, last);
      EXPECT_FALSE(c.before == c.after);
      last = c.value;
    }
    EXPECT_EQ(last, report->value);
    const auto scales = after->report();
    std::map<std::pair<int, GruTensor>, GruScale> found;
    for (const auto& c : report->changes) found[{c.cell, c.tensor}] = c.after;
    for (const auto& [where, scale] : found)
      EXPECT_TRUE(scales[size_t(where.first)].scales[size_t(where.second)] == scale) << where.first;
  }
}

TEST(GruTune, IsTheSameEveryTimeAndSurvivesAFile) {
  const MeasuredNetwork f = make_tuned(2);
  const GruTuneOptions options = options_for(f);
  const auto a = tune_gru_ranges(f.net, f.ranges, options), b = tune_gru_ranges(f.net, f.ranges, options);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->value, b->value);
  EXPECT_EQ(a->tried, b->tried);
  const std::string path = testing::TempDir() + "gru_tuned.json";
  ASSERT_TRUE(a->ranges.save(path));
  const auto read = GruRanges::open(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(GruModel::quantize(f.net, *read, options.config)->run(f.in)->y,
            GruModel::quantize(f.net, b->ranges, options.config)->run(f.in)->y);
}

TEST(GruTune, GoesByAnyMetricAndOnlyTheTensorsAskedFor) {
  const MeasuredNetwork f = make_tuned(3);
  GruTuneOptions options = options_for(f);
  options.tensors = {GruTensor::kIh};
  int calls = 0;
  // The finest ih wins, whatever that does to the outputs.
  options.metric = [&](const GruModel& m) -> Result<double> {
    ++calls;
    return double(m.report()[0].scales[size_t(GruTensor::kIh)].shift);
  };
  const auto before = GruModel::quantize(f.net, f.ranges, options.config)->report();
  const auto report = tune_gru_ranges(f.net, f.ranges, options);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(calls, report->tried);
  const auto after = GruModel::quantize(f.net, report->ranges, options.config)->report();
  for (size_t t = 0; t < kGruTensors; ++t)
    if (t == size_t(GruTensor::kIh))
      EXPECT_EQ(after[0].scales[t].shift, before[0].scales[t].shift + options.passes);
    else
      EXPECT_TRUE(after[0].scales[t] == before[0].scales[t]) << t;
}

/// Beyond some 9 ln 2, sigmoid of 8 bits gives its last code: a range that goes on wastes its steps, at either end.
TEST(GruTune, RangesOfGateInputsEndWhereTheGatesDo) {
  const MeasuredNetwork f = make_tuned(5);
  GruTuneOptions options = options_for(f);
  options.tensors = {GruTensor::kUi};
  options.passes = 0;
  for (const auto& [low, high] : {std::pair{-500.0f, 4.0f}, std::pair{-4.0f, 500.0f}}) {
    GruRanges ranges = f.ranges;
    ranges.set_range(0, GruTensor::kUi, low, high);
    const auto report = tune_gru_ranges(f.net, ranges, options);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->value, report->start);
    const auto [from, to] = report->ranges.range(0, GruTensor::kUi);
    EXPECT_FLOAT_EQ(from, std::max(low, -9 * std::log(2.0f)));
    EXPECT_FLOAT_EQ(to, std::min(high, 9 * std::log(2.0f)));
  }
}

TEST(GruTune, NamesWhatIsMissing) {
  const MeasuredNetwork f = make_tuned(4), other = make_fixture(4, 2);
  GruTuneOptions options = options_for(f);
  EXPECT_FALSE(tune_gru_ranges(f.net, other.ranges, options));
  options.inputs = {};
  const auto none = tune_gru_ranges(f.net, f.ranges, options);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  options.metric = [](const GruModel&) -> Result<double> { return 1.0; };
  EXPECT_TRUE(tune_gru_ranges(f.net, f.ranges, options));
  options.config.rounding = GruRounding::kFeedback;
  EXPECT_FALSE(tune_gru_ranges(f.net, f.ranges, options));
}

}  // namespace
}  // namespace lowbit
