#include "calibrate/held_out.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lowbit {
namespace {

NextTokens next(std::vector<TokenId> likeliest, std::vector<char> sure = {}) {
  NextTokens out;
  out.likeliest = std::move(likeliest);
  out.sure = std::move(sure);
  return out;
}

TEST(HeldOut, NextTokensAreCountedBySequence) {
  // Two sequences of five positions; what is said behind the last of each does not count.
  const NextTokens source = next({1, 2, 3, 4, 9, 5, 6, 7, 8, 9}, {1, 1, 0, 0, 1, 0, 1, 1, 0, 1});
  const NextTokens quantized = next({1, 2, 0, 4, 0, 5, 6, 7, 8, 0});
  HeldOutReport report;
  compare_next_tokens(source, quantized, 5, report);
  EXPECT_DOUBLE_EQ(report.same_token, 7.0 / 8);
  EXPECT_EQ(report.sure_tokens, 4);
  EXPECT_DOUBLE_EQ(report.same_where_sure, 1);
  // From each place on: 2 1 0 1 and 4 3 2 1.
  EXPECT_DOUBLE_EQ(report.continued, 1.5);
}

TEST(HeldOut, ThoseOfOneModelNeverPart) {
  const NextTokens source = next({1, 2, 3, 4, 5, 6}, {0, 0, 0, 0, 0, 0});
  HeldOutReport report;
  compare_next_tokens(source, source, 6, report);
  EXPECT_EQ(report.same_token, 1);
  EXPECT_EQ(report.continued, 3);
  EXPECT_EQ(report.sure_tokens, 0);
  EXPECT_EQ(report.same_where_sure, 0);
}

HeldOutReport held(double ratio, int64_t sure, double same) {
  HeldOutReport report;
  report.tokens = 1000;
  report.source_ppl = 10;
  report.ppl = 10 * ratio;
  report.sure_tokens = sure;
  report.same_where_sure = same;
  return report;
}

TEST(HeldOut, AModelThatSaysOtherThingsIsBrokenWhateverItsPerplexity) {
  EXPECT_FALSE(judge(held(1.1, 500, 0.95)).broken());
  EXPECT_FALSE(judge(held(2.9, 500, 0.6)).broken());
  const Verdict other = judge(held(1.1, 500, 0.4));
  EXPECT_NE(other.what.find("40 % of 500 positions"), std::string::npos) << other.what;
  EXPECT_EQ(other.wanted, "at least 50 %");
  const Verdict garbage = judge(held(3.2, 500, 0.95));
  EXPECT_NE(garbage.what.find("3.2 times the source's"), std::string::npos) << garbage.what;
  EXPECT_TRUE(judge(held(std::nan(""), 500, 0.95)).broken());
}

TEST(HeldOut, AModelThatIsNeverSureIsJudgedByPerplexityAlone) {
  EXPECT_FALSE(judge(held(1.1, 0, 0)).broken());
  EXPECT_FALSE(judge(held(1.1, 63, 0.1)).broken());
  EXPECT_TRUE(judge(held(1.1, 64, 0.1)).broken());
}

}  // namespace
}  // namespace lowbit
