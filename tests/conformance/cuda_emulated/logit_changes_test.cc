// The tokens that a GPU penalizes, pass by pass, against the last ones of each text: needs no GPU.

#include "backend/cuda/logit_changes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace lowbit {
namespace {

/// A sequence whose request for some tokens is answered in calls of up to eight passes.
struct Penalized {
  std::vector<int32_t> text, known;
  int64_t window;
  std::vector<TokenChoice> choices;

  Penalized(int64_t tokens, Rng& rng) : window(int64_t(rng.below(rng.below(2) == 0 ? 12 : 600))) {
    for (uint64_t left = rng.below(700); left > 0; --left) text.push_back(int32_t(rng.below(1000)));
    known = recent();
    for (int64_t i = 0; i < tokens; ++i) {
      LogitChanges& changes = choices.emplace_back().changes;
      changes.later = std::min(i, window);
      changes.recent = std::span(known).last(size_t(std::min(std::ssize(known), window - changes.later)));
      changes.repeat = 2;
    }
  }
  std::vector<int32_t> recent() const { return {text.end() - std::min(window, std::ssize(text)), text.end()}; }
};

TEST(LogitChangesOnFibers, WindowsOfEveryPass) {
  Rng rng(1);
  CudaLogitChanges changes;
  ASSERT_TRUE(changes.reserve(1));  // too little for some
  for (int round = 0; round < 1000; ++round) {
    const auto tokens = int64_t(1 + rng.below(20));
    std::vector<Penalized> all;
    for (uint64_t left = 1 + rng.below(4); left > 0; --left) all.emplace_back(tokens, rng);
    for (int64_t first = 0, passes = 0; first < tokens; first += passes) {
      passes = std::min(tokens - first, int64_t(1 + rng.below(8)));
      for (int64_t pass = 0; pass < passes; ++pass) {
        std::vector<WantedRows> wanted = {{.rows = 2}};  // logits
        for (Penalized& p : all) wanted.push_back({.rows = 1, .choice = &p.choices[size_t(first + pass)]});
        std::vector<cuda::RowChanges> rows(wanted.size() + 1);
        ASSERT_TRUE(changes.set(wanted, pass, rows.data(), nullptr));
        for (size_t i = 0; i < all.size(); ++i) {
          const cuda::RowChanges& row = rows[i + 2];
          std::vector<int32_t> got(changes.recent() + row.recent, changes.recent() + row.recent + row.recents);
          for (int32_t p = 0; p < row.laters; ++p)
            got.push_back(all[i].choices[size_t(first + row.first_later + p)].token);
          ASSERT_EQ(got, all[i].recent()) << "round " << round << ", pass " << pass << ", window " << all[i].window;
        }
        for (Penalized& p : all) {
          p.choices[size_t(first + pass)].token = int32_t(rng.below(1000));
          p.text.push_back(p.choices[size_t(first + pass)].token);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lowbit
