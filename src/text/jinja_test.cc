#include <gtest/gtest.h>

#include "text/jinja_json.h"
#include "text/jinja_lexer.h"
#include "text/jinja_value.h"
#include "text/test_data.h"

namespace lowbit::jinja {
namespace {

TEST(JinjaValue, FloatsPrintAsInPython) {
  Meter meter(1000, 100000);
  const std::pair<double, const char*> cases[] = {{1.0, "1.0"},      {0.1, "0.1"},     {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},   {1e-4, "0.0001"}, {1e-5, "1e-05"},
                                                  {1e300, "1e+300"}, {-2.5, "-2.5"},   {1.0 / 3, "0.3333333333333333"}};
  for (const auto& [value, wanted] : cases) EXPECT_EQ(to_text(Value(value), meter), wanted);
}

TEST(JinjaValue, DictKeepsTheOrderOfInsertionAndFindsAmongMany) {
  Dict dict;
  for (int i = 0; i < 100; ++i) dict.set(Value("k" + std::to_string(99 - i)), Value(std::int64_t{i}));
  dict.set(Value(std::string("k50")), Value(std::int64_t{-1}));
  ASSERT_EQ(dict.entries.size(), 100u);
  EXPECT_EQ(dict.entries[0].first.text(), "k99");
  ASSERT_NE(dict.find("k50"), nullptr);
  EXPECT_EQ(dict.find("k50")->integer(), -1);
  EXPECT_EQ(dict.find("k100"), nullptr);
  dict.set(Value(std::int64_t{1}), Value(true));
  EXPECT_NE(dict.find(Value(1.0)), nullptr);  // Python: 1 == 1.0
}

TEST(JinjaJson, RoundTripKeepsOrderAndNumbers) {
  Meter meter(1000, 100000);
  const std::string text = R"({"z": 1, "a": [true, null, -2.5, "\u00e9\n"], "m": {}})";
  const Value value = test::must(from_json(text, "test"));
  EXPECT_EQ(test::must(to_json(value, {}, meter)), "{\"z\": 1, \"a\": [true, null, -2.5, \"\u00e9\\n\"], \"m\": {}}");
}

TEST(JinjaLexer, LinesCountThroughTextTagsAndComments) {
  const auto tokens = test::must(tokenize("a\n{# x\n y #}\n{{ 'p\nq' }}\n{% if %}"));
  int line = 0;
  for (const Token& token : tokens)
    if (token.kind == Token::Kind::kName) line = token.line;
  EXPECT_EQ(line, 6);
}

}  // namespace
}  // namespace lowbit::jinja
