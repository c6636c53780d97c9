#include "runtime/stages.h"

#include <gtest/gtest.h>

namespace lowbit {
namespace {

using Plans = std::vector<StagePlan>;

TEST(Stages, TheLastLayersGoToTheGpus) {
  const std::vector<int> none, one = {2}, two = {0, 1}, many = {0, 1, 2};
  EXPECT_EQ(plan_stages(7, none, -1), (Plans{{-1, 0, 7}}));
  EXPECT_EQ(plan_stages(7, none, 3), (Plans{{-1, 0, 7}}));
  EXPECT_EQ(plan_stages(7, one, -1), (Plans{{2, 0, 7}}));
  EXPECT_EQ(plan_stages(7, one, 0), (Plans{{-1, 0, 7}}));
  EXPECT_EQ(plan_stages(7, one, 3), (Plans{{-1, 0, 4}, {2, 4, 7}}));
  EXPECT_EQ(plan_stages(7, one, 7), (Plans{{2, 0, 7}}));
  EXPECT_EQ(plan_stages(7, one, 99), (Plans{{2, 0, 7}}));
  EXPECT_EQ(plan_stages(7, two, -1), (Plans{{0, 0, 3}, {1, 3, 7}}));
  EXPECT_EQ(plan_stages(7, two, 5), (Plans{{-1, 0, 2}, {0, 2, 4}, {1, 4, 7}}));
  EXPECT_EQ(plan_stages(2, many, -1), (Plans{{1, 0, 1}, {2, 1, 2}}));  // none is empty
}

}  // namespace
}  // namespace lowbit
