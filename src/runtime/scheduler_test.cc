#include "runtime/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/rng.h"

namespace lowbit {
namespace {

std::vector<int64_t> shared(const std::vector<int64_t>& left, int64_t budget) {
  std::vector<int64_t> rows(left.size(), -1);
  share_rows(left, budget, rows);
  return rows;
}

using Rows = std::vector<int64_t>;

TEST(Scheduler, TokensFirstThenPromptsInTurn) {
  EXPECT_EQ(shared({}, 8), Rows{});
  EXPECT_EQ(shared({5}, 8), Rows{5});
  EXPECT_EQ(shared({50}, 8), Rows{8});
  EXPECT_EQ(shared({1, 1, 1}, 8), (Rows{1, 1, 1}));
  EXPECT_EQ(shared({100, 1, 100, 1}, 16), (Rows{14, 1, 0, 1}));
  EXPECT_EQ(shared({3, 1, 100, 1}, 16), (Rows{3, 1, 11, 1}));
}

TEST(Scheduler, ACrowdDoesNotHoldUpAPrompt) {
  Rows left(20, 1);
  left.push_back(100);
  left.push_back(100);
  const Rows rows = shared(left, 16);
  EXPECT_EQ(rows[20], 4);
  EXPECT_EQ(rows[21], 0);
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), 16);
  EXPECT_EQ(shared({1, 7}, 1), (Rows{1, 0}));
}

TEST(Scheduler, FillsTheBudgetAndNoMore) {
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    Rows left(rng.below(12));
    for (int64_t& n : left) n = rng.below(2) == 0 ? 1 : 1 + int64_t(rng.below(60));
    const auto budget = int64_t(1 + rng.below(64));
    const Rows rows = shared(left, budget);
    int64_t sum = 0, all = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      ASSERT_GE(rows[i], 0);
      ASSERT_LE(rows[i], left[i]);
      sum += rows[i];
      all += left[i];
    }
    ASSERT_EQ(sum, std::min(all, budget));
  }
}

}  // namespace
}  // namespace lowbit
