// Long words: the ids of the heap, whatever the table is, and work and memory in proportion to the word.

#include "text/long_word.h"

#include <gtest/gtest.h>

#include <random>

#include "text/test_limits.h"

namespace lowbit::text {
namespace {

using Symbols = std::vector<TokenId>;

// The meaning: the pair of the smallest rank, of those the leftmost, is merged, again and again.
Symbols by_looking_at_all(const MergeTable& table, Symbols symbols) {
  while (true) {
    const MergeTable::Merge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge* merge = table.find(symbols[i], symbols[i + 1]);
      if (merge == nullptr || (best != nullptr && merge->rank >= best->rank)) continue;
      best = merge;
      at = i;
    }
    if (best == nullptr) return symbols;
    symbols[at] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Tables as no training makes them: any rank, shared ones, merges that give one of their parts.
MergeTable random_table(std::mt19937& random, int symbols, int merges) {
  MergeTable table;
  const auto below = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  const int ranks = 1 + below(2 * merges);
  for (int i = 0; i < merges; ++i) table.insert(below(symbols), below(symbols), {below(ranks), below(symbols)});
  return table;
}

TEST(LongWord, EqualsTheHeapAndTheMeaning) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const int symbols = 1 + static_cast<int>(random() % 12);
    const MergeTable table = random_table(random, symbols, 1 + static_cast<int>(random() % 60));
    Symbols word(random() % 60);
    for (TokenId& id : word) id = static_cast<TokenId>(random() % static_cast<unsigned>(symbols + 1)) - 1;
    const Symbols wanted = by_looking_at_all(table, word);
    Symbols by_heap = word, by_lists = word;
    BpeScratch().merge_by_heap(table, by_heap);
    LongWord(table, by_lists).merge();
    ASSERT_EQ(by_heap, wanted) << "round " << round;
    ASSERT_EQ(by_lists, wanted) << "round " << round;
  }
}

// Bytes and merges of two, four, eight of them, as a training on random letters makes them.
MergeTable learned_table(int letters, int merges) {
  MergeTable table;
  std::mt19937 random(3);
  TokenId next = letters;
  for (std::int32_t rank = 0; rank < merges; ++rank, ++next)
    table.insert(static_cast<TokenId>(random() % static_cast<unsigned>(next)),
                 static_cast<TokenId>(random() % static_cast<unsigned>(next)), {rank, next});
  return table;
}

TEST(LongWord, WorkAndMemoryGrowWithTheWord) {
  MergeTable table = learned_table(26, 50000);
  for (TokenId a = 0; a < 26; ++a)
    for (TokenId b = 0; b < 26; ++b) table.insert(a, b, {26 * a + b, 50026 + 26 * a + b});
  table.insert(50026, 50026, {60000, 60000});
  table.insert(60000, 60000, {60001, 60001});
  std::mt19937 random(5);
  Symbols letters(3'000'000), one(9'000'000, 0);
  for (TokenId& id : letters) id = static_cast<TokenId>(random() % 26);
  for (Symbols* word : {&letters, &one}) {
    const test::Promise promise;
    const std::size_t n = word->size(), work = LongWord(table, *word).merge();
    EXPECT_LT(work, 6 * n);
    EXPECT_LT(word->size(), n * 3 / 4);
    promise.check(n, word == &one ? "9 MB of one letter" : "3 MB of letters");
  }
  Symbols by_lists(100'000), by_heap;
  for (TokenId& id : by_lists) id = static_cast<TokenId>(random() % 26);
  by_heap = by_lists;
  BpeScratch().merge_by_heap(table, by_heap);
  BpeScratch().merge_word(table, by_lists);
  EXPECT_EQ(by_lists, by_heap);
}

}  // namespace
}  // namespace lowbit::text
