#include "text/stop_texts.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/rng.h"

namespace lowbit {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> found;
  bool operator==(const Outcome&) const = default;
};

/// The definition: for every end, ascending, every text, the longest first.
Outcome by_definition(std::vector<std::string> stops, const std::string& text) {
  std::sort(stops.begin(), stops.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  for (size_t end = 1; end <= text.size(); ++end)
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) return {text.substr(0, end - stop.size()), stop};
  return {text, std::nullopt};
}

Outcome in_pieces(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  auto texts = StopTexts::make(stops);
  EXPECT_TRUE(texts);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += texts->push(piece);
  if (texts->found() != nullptr) outcome.found = *texts->found();
  outcome.text += texts->flush();
  return outcome;
}

TEST(StopTexts, AcrossTheBordersOfPieces) {
  EXPECT_EQ(in_pieces({"User:"}, {"Yes.\nUs", "er", ": more"}), (Outcome{"Yes.\n", "User:"}));
  EXPECT_EQ(in_pieces({"User:"}, {"Us", "ual"}), (Outcome{"Usual", std::nullopt}));
  EXPECT_EQ(in_pieces({"aab"}, {"a", "a", "a", "b"}), (Outcome{"a", "aab"}));
  EXPECT_EQ(in_pieces({"b", "aab", "ab"}, {"xa", "ab"}),
            (Outcome{"x", "aab"}));                                      // the longest of those that end together
  EXPECT_EQ(in_pieces({"abcd", "bc"}, {"abcd"}), (Outcome{"a", "bc"}));  // the first that is complete
  EXPECT_EQ(in_pieces({}, {"a", "b"}), (Outcome{"ab", std::nullopt}));
  EXPECT_EQ(in_pieces({"\u00e9"}, {"\u00e8", "\u00e9"}), (Outcome{"\u00e8", "\u00e9"}));
}

TEST(StopTexts, ShowsWhatIsCertainAndNoMore) {
  auto texts = StopTexts::make({"</s>", "\n\n"});
  ASSERT_TRUE(texts);
  EXPECT_EQ(texts->push("one <"), "one ");
  EXPECT_EQ(texts->push("/b>\n"), "</b>");
  EXPECT_EQ(texts->push("x\n"), "\nx");
  EXPECT_EQ(texts->found(), nullptr);
  EXPECT_EQ(texts->push("\n\n"), "");
  ASSERT_NE(texts->found(), nullptr);
  EXPECT_EQ(*texts->found(), "\n\n");
  EXPECT_EQ(texts->push("more"), "");
  EXPECT_EQ(texts->flush(), "");
}

TEST(StopTexts, AnyCutGivesTheSame) {
  Rng rng(17);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t n = 1 + rng.below(most); text.size() < n;) text += char('a' + rng.below(2));
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(rng.below(4));
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(40);
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size())
      pieces.push_back(text.substr(at, 1 + rng.below(5)));
    ASSERT_EQ(in_pieces(stops, pieces), by_definition(stops, text)) << text;
  }
}

TEST(StopTexts, Errors) {
  EXPECT_FALSE(StopTexts::make({""}));
  EXPECT_FALSE(StopTexts::make({"a", "\xff"}));
  EXPECT_FALSE(StopTexts::make(std::vector<std::string>(65, "a")));
  EXPECT_FALSE(StopTexts::make({std::string((64 << 10) + 1, 'a')}));
  EXPECT_TRUE(StopTexts::make(std::vector<std::string>(64, "a")));
}

}  // namespace
}  // namespace lowbit
