// Tables as a GPU looks them up: an index in one half and its complement in the other give the entry.

#include "kernels/cuda_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace lowbit::cuda {
namespace {

/// A byte of PRMT: one of eight, or its sign.
int looked_up(const ByteTable& table, int half, int index) {
  const int byte = entry_at(table, 8 * half + index % 8);
  return index < 8 ? byte : byte < 0 ? -1 : 0;
}

/// Whether halves were found; then they must be right.
bool check(const std::vector<float>& entries) {
  const ByteTable table = byte_table(entries), stored = stored_order(table);
  const auto halves = split_table(table);
  for (int i = 0; i < 16; ++i) {
    const int entry = i < int(entries.size()) ? int(entries[size_t(i)]) : 0, at = stored_index(i);
    EXPECT_EQ(entry_at(stored, at), entry) << i;
    if (halves) {
      EXPECT_EQ(looked_up(*halves, 0, at) + looked_up(*halves, 1, 15 - at), entry) << i;
    }
  }
  return halves.has_value();
}

/// But where all that is not negative is 127, and negative numbers are odd in number.
TEST(CudaLookup, SortedTablesHaveHalves) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed, 1);
    std::vector<float> entries(4u << rng.below(3));
    const int range = std::array{2, 4, 20, 256}[size_t(rng.below(4))];
    for (float& e : entries) e = std::clamp(float(int(rng.below(uint64_t(range))) - range / 2), -128.0f, 127.0f);
    if (seed % 3 == 0) entries.front() = 127, entries.back() = -128;
    check(entries);
    std::ranges::sort(entries);
    const auto first = std::ranges::find_if(entries, [](float e) { return e >= 0; });
    const bool cannot = (first - entries.begin()) % 2 == 1 && *first == 127;
    EXPECT_EQ(check(entries), !cannot) << testing::PrintToString(entries);
  }
}

TEST(CudaLookup, EveryPairHasHalvesOrIs127BesideANegativeNumber) {
  for (int a = -128; a <= 127; ++a)
    for (int b = -128; b <= 127; ++b) {
      const bool cannot = (a == 127 && b < 0) || (b == 127 && a < 0);
      EXPECT_EQ(check({float(a), float(b)}), !cannot) << a << " " << b;
    }
}

TEST(CudaLookup, ATableOfNegativeNumbersAnd127HasNone) {
  std::vector<float> entries(16, -5.0f);
  entries.back() = 127;
  EXPECT_FALSE(check(entries));
  entries[14] = 0;
  EXPECT_TRUE(check(entries));
}

}  // namespace
}  // namespace lowbit::cuda
