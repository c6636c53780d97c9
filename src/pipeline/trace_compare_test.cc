#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "io/test_files.h"
#include "pipeline/trace_test_files.h"

namespace lowbit {
namespace {

using namespace testing_trace;
using testing_io::Scratch;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

class TraceCompare : public testing::Test {
 protected:
  TraceComparison compare() {
    auto out = compare_traces(a, b);
    EXPECT_TRUE(out) << out.error().message();
    return out ? std::move(*out) : TraceComparison();
  }
  Scratch scratch;
  std::string a = scratch / "a", b = scratch / "b";
};

TEST_F(TraceCompare, TheSameRunsAreEqual) {
  write_trace(a, {4, 1, 1});
  write_trace(b, {4, 1, 1});
  const TraceComparison c = compare();
  EXPECT_EQ(c.tokens, 6);
  EXPECT_FALSE(c.parted || c.first);
  ASSERT_EQ(c.taps.size(), 4u);
  EXPECT_EQ(c.taps[0].rows, 6);
  EXPECT_EQ(c.taps[3].rows, 3);
  for (const TapComparison& tap : c.taps) EXPECT_TRUE(!tap.first && tap.largest == 0 && tap.relative_rms == 0);
}

TEST_F(TraceCompare, PassesOfOtherLengthsHaveTheSameRows) {
  write_trace(a, {6});
  write_trace(b, {1, 2, 3}, value_at, true);
  TraceComparison c = compare();
  EXPECT_FALSE(c.parted || c.first);
  EXPECT_EQ(c.taps[1].rows, 6);
  EXPECT_EQ(c.taps[2].rows, 1);  // of the last token alone both have logits
  write_trace(
      b, {1, 2, 3},
      [](size_t tap, int64_t token, int64_t column) {
        return value_at(tap, token, column) + float(tap == 3 && token == 5 && column == 6);
      },
      true);
  c = compare();
  ASSERT_TRUE(c.first);
  EXPECT_EQ(c.first->place.tap, "logits");
  EXPECT_EQ(c.first->place.position, 5);
  EXPECT_EQ(c.first->place.column, 6);
}

TEST_F(TraceCompare, DifferencesAreMeasured) {
  write_trace(a, {2, 1}, [](size_t tap, int64_t token, int64_t column) {
    if (tap == 1 && token == 1 && column == 2) return 0.5f;
    return tap == 0 && token == 2 ? 3.0f : 1.0f;
  });
  write_trace(b, {2, 1}, [](size_t, int64_t, int64_t) { return 1.0f; });
  const TraceComparison c = compare();
  // Tap 0 differs in the second pass, tap 1 in the first.
  ASSERT_TRUE(c.first && c.taps[0].first && c.taps[1].first);
  EXPECT_EQ(c.first->place.tap, "blocks.0.ffn_act");
  EXPECT_EQ(c.first->place.position, 1);
  EXPECT_EQ(c.first->place.column, 2);
  EXPECT_EQ(c.first->got, 0.5f);
  EXPECT_EQ(c.first->wanted, 1.0f);
  EXPECT_EQ(c.taps[0].largest, 2);
  EXPECT_DOUBLE_EQ(c.taps[0].relative_rms, std::sqrt(12.0 / 9));
  EXPECT_DOUBLE_EQ(c.taps[1].relative_rms, std::sqrt(0.25 / 15));
  EXPECT_FALSE(c.taps[2].first || c.taps[3].first);
}

TEST_F(TraceCompare, BitsCount) {
  const auto with = [](float special) {
    return [special](size_t tap, int64_t, int64_t column) { return tap == 0 && column == 1 ? special : 1.0f; };
  };
  write_trace(a, {1}, with(-0.0f));
  write_trace(b, {1}, with(0.0f));
  TraceComparison c = compare();
  ASSERT_TRUE(c.first);
  EXPECT_EQ(c.taps[0].relative_rms, 0);
  for (const float special : {kNan, kInfinity}) {
    write_trace(a, {1}, with(special));
    c = compare();
    EXPECT_TRUE(std::isinf(c.taps[0].largest) && std::isinf(c.taps[0].relative_rms));
    write_trace(b, {1}, with(std::isnan(special) ? -special : special));
    c = compare();
    EXPECT_TRUE(!c.first && c.taps[0].largest == 0 && c.taps[0].relative_rms == 0);
    write_trace(b, {1}, with(0.0f));
  }
}

TEST_F(TraceCompare, ComparesUpToWhereTokensPart) {
  const auto loud = [](size_t tap, int64_t token, int64_t column) {
    return token < 4 ? value_at(tap, token, column) : 9;
  };
  write_trace(a, {3, 1, 1, 1});
  write_trace(b, {3, 1, 1, 1}, loud, false, [](int64_t i) { return TokenId(i == 4 ? 7 : 100 + i); });
  TraceComparison c = compare();
  ASSERT_TRUE(c.parted);
  EXPECT_EQ(c.parted->position, 4);
  EXPECT_EQ(c.parted->got, 104);
  EXPECT_EQ(c.parted->wanted, 7);
  EXPECT_EQ(c.tokens, 4);
  EXPECT_EQ(c.taps[0].rows, 4);
  EXPECT_FALSE(c.first);
  write_trace(b, {3, 1});  // ends earlier
  c = compare();
  ASSERT_TRUE(c.parted);
  EXPECT_EQ(c.parted->got, 104);
  EXPECT_FALSE(c.parted->wanted);
  EXPECT_FALSE(c.first);
}

TEST_F(TraceCompare, WhatCannotBeComparedIsNamed) {
  write_trace(a, {3});
  write_trace(b, {3}, value_at, false, [](int64_t) { return TokenId(5); });
  auto refused = compare_traces(a, b);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().got, "100");
  TraceHeader other = small_header();
  other.taps[1].width = 6;
  ASSERT_TRUE(TraceFileWriter::create(b, other)->finish());
  refused = compare_traces(a, b);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kShapeMismatch);
  EXPECT_EQ(refused.error().got, "blocks.0.ffn_act of 5 columns");
  EXPECT_EQ(compare_traces(a, scratch / "absent").error().code, ErrorCode::kNotFound);
}

TEST_F(TraceCompare, ASummaryFindsOverflows) {
  write_trace(a, {2, 1}, [](size_t tap, int64_t token, int64_t column) {
    if (tap == 0 && token == 2) return kNan;
    if (tap == 1 && token == 1 && column == 4) return -kInfinity;
    return tap == 3 ? -2.0f : 2.0f;
  });
  const auto s = summarize_trace(a);
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_EQ(s->passes, 2);
  EXPECT_EQ(s->tokens, 3);
  ASSERT_EQ(s->taps.size(), 4u);
  EXPECT_EQ(s->taps[0].nans, 3);
  EXPECT_EQ(s->taps[1].infinities, 1);
  EXPECT_EQ(s->taps[1].max, 2);
  EXPECT_EQ(s->taps[3].min, -2);
  EXPECT_DOUBLE_EQ(s->taps[3].rms, 2);
  EXPECT_EQ(s->taps[3].rows, 2);
  ASSERT_TRUE(s->not_finite);
  EXPECT_EQ(s->not_finite->tap, "blocks.0.ffn_act");
  EXPECT_EQ(s->not_finite->position, 1);
  EXPECT_EQ(s->not_finite->column, 4);
}

}  // namespace
}  // namespace lowbit
