#include "evaluate/prefix_tree.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace lowbit {
namespace {

using Tokens = std::vector<int32_t>;

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::span<const int32_t>> views(const std::vector<Tokens>& sequences) {
  return {sequences.begin(), sequences.end()};
}

/// Runs the tree: what each sequence has got in the end, and how many tokens were run.
int64_t run(const std::vector<Tokens>& sequences, std::vector<Tokens>& got) {
  got.assign(sequences.size(), {});
  const auto all = views(sequences);
  std::vector<size_t> members(sequences.size());
  std::iota(members.begin(), members.end(), 0);
  int64_t tokens = 0;
  std::vector<PrefixSegment> level = next_segments(all, members, 0);
  while (!level.empty()) {
    std::vector<PrefixSegment> next;
    for (const PrefixSegment& s : level) {
      EXPECT_LT(s.first, s.last);
      tokens += s.last - s.first;
      const auto part = all[s.members.front()].subspan(size_t(s.first), size_t(s.last - s.first));
      for (const size_t m : s.members) {
        EXPECT_EQ(int64_t(got[m].size()), s.first);
        got[m].insert(got[m].end(), part.begin(), part.end());
      }
      for (PrefixSegment& child : next_segments(all, s.members, s.last)) next.push_back(std::move(child));
    }
    level = std::move(next);
  }
  return tokens;
}

TEST(PrefixTree, AContextIsRunOnceForItsChoices) {
  const Tokens context(20, 7);
  const std::vector<Tokens> sequences = {joined(context, {1, 2}), joined(context, {3}), joined(context, {4, 5, 6})};
  std::vector<Tokens> got;
  EXPECT_EQ(run(sequences, got), 20 + 2 + 1 + 3);
  EXPECT_EQ(got, sequences);
}

TEST(PrefixTree, QuestionsShareTheirExamplesAndChoicesTheirQuestion) {
  const Tokens examples(30, 1), first(10, 2), second(12, 3);
  const auto a = joined(examples, first), b = joined(examples, second);
  const std::vector<Tokens> sequences = {joined(a, {8, 8}), joined(a, {9}), joined(b, {8}), joined(b, {9, 9})};
  std::vector<Tokens> got;
  EXPECT_EQ(run(sequences, got), 30 + 10 + 12 + 6);
  EXPECT_EQ(got, sequences);
}

// A token that starts every text is not worth a pass; what stands behind it may be.
TEST(PrefixTree, LittleIsNotShared) {
  const std::vector<Tokens> sequences = {
      {0, 1, 2, 3}, {0, 4, 4, 4, 4, 4, 4, 4, 4, 5}, {0, 4, 4, 4, 4, 4, 4, 4, 4, 6}, {0, 9}};
  const auto all = views(sequences);
  const std::vector<size_t> members = {0, 1, 2, 3};
  const auto segments = next_segments(all, members, 0);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].last, 4);
  EXPECT_EQ(segments[1].last, 9);
  EXPECT_EQ(segments[1].members, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(segments[2].last, 2);
}

TEST(PrefixTree, OneSequenceMayBeginAnother) {
  const Tokens whole(12, 5);
  const std::vector<Tokens> sequences = {whole, Tokens(9, 5), whole, Tokens(3, 5)};
  std::vector<Tokens> got;
  run(sequences, got);
  EXPECT_EQ(got, sequences);
}

TEST(PrefixTree, EverySequenceIsRunWholeAndNoTokenTwice) {
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Tokens> sequences(1 + rng.below(12));
    int64_t total = 0;
    for (Tokens& s : sequences) {
      if (rng.below(2) == 0) s = sequences[rng.below(sequences.size())];
      s.resize(rng.below(s.size() + 1));
      while (s.empty() || rng.below(8) != 0) s.push_back(int32_t(rng.below(2)));
      total += int64_t(s.size());
    }
    std::vector<Tokens> got;
    EXPECT_LE(run(sequences, got), total);
    EXPECT_EQ(got, sequences);
  }
}

}  // namespace
}  // namespace lowbit
