// Small files that ask for much memory or time, each of a kind once seen: one Error, within the promise.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lowbit/tokenizer.h"
#include "text/byte_alphabet.h"
#include "text/test_data.h"
#include "text/test_limits.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

std::string repeat(std::string_view s, std::size_t n) {
  std::string out;
  out.reserve(s.size() * n);
  for (std::size_t i = 0; i < n; ++i) out += s;
  return out;
}

Json small_tokenizer() {
  return Json::parse(R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "unk_token": "a"}})");
}

// Reads, encodes and decodes; the first Error ends it.
Status use(const std::string& json, const std::string& text) {
  auto spec = spec_from_tokenizer_json(json);
  if (!spec) return tl::unexpected<Error>(spec.error());
  const auto t = Tokenizer::build(std::move(*spec));
  if (!t) return tl::unexpected<Error>(t.error());
  const auto ids = t->encode(text, {.parse_special = true});
  if (!ids) return tl::unexpected<Error>(ids.error());
  const auto back = t->decode(*ids, {.skip_special = false});
  return back ? Status() : Status(tl::unexpected<Error>(back.error()));
}

void expect_refused(const std::string& json, const std::string& text, const std::string& what) {
  const test::Promise promise;
  const Status status = use(json, text);
  promise.check(json.size() + text.size(), what);
  ASSERT_FALSE(status) << what;
  EXPECT_FALSE(status.error().where.empty()) << what;
  EXPECT_LT(status.error().message().size(), 500u) << what;
}

void expect_bounded(const std::string& json, const std::string& text, const std::string& what) {
  const test::Promise promise;
  (void)use(json, text);
  promise.check(json.size() + text.size(), what);
}

Json sequence(const char* list, const Json& step, int n) {
  Json steps = Json::array();
  for (int i = 0; i < n; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}

TEST(TokenizerBudget, MetaspacesThatDoubleTheText) {
  Json json = small_tokenizer();
  json["pre_tokenizer"] = sequence("pretokenizers", {{"type", "Metaspace"}, {"replacement", "  "}}, 32);
  expect_refused(json.dump(), "a b", "a replacement of two spaces");
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", repeat("x", 1 << 20)}};
  expect_refused(json.dump(), repeat("a ", 1000), "a replacement of 1 MB");
  json = small_tokenizer();
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", repeat("x", 1 << 20)}};
  expect_refused(json.dump(), "a", "a decoder's replacement of 1 MB");
}

TEST(TokenizerBudget, DecodersThatGrowTokens) {
  Json json = small_tokenizer();
  for (int i = 3; i < 203; ++i) json["model"]["vocab"][repeat("a", i)] = i;
  json["decoder"] =
      sequence("decoders", {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", repeat("a", 64)}}, 4);
  expect_refused(json.dump(), "a", "64 times longer, four times");
}

TEST(TokenizerBudget, AddedTokensThatANormalizerLengthens) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", repeat("c", 1000)}};
  for (int i = 0; i < 100; ++i)
    json["added_tokens"].push_back(
        {{"id", 3 + i}, {"content", std::to_string(1000 + i) + repeat("b", 1000)}, {"normalized", true}});
  expect_refused(json.dump(), "a", "100 added tokens of 1,004 bytes");
}

TEST(TokenizerBudget, TheTrieOfAddedTokens) {
  Json json = small_tokenizer();
  for (int i = 0; i < 8000; ++i)
    json["added_tokens"].push_back({{"id", 3 + i}, {"content", std::to_string(10000 + i) + repeat("b", 1000)}});
  expect_refused(json.dump(), "a", "8 MB of added tokens");
  json = small_tokenizer();
  json["added_tokens"].push_back({{"id", 3}, {"content", repeat("a", 1023) + "b"}});
  expect_bounded(json.dump(), repeat("a", 1 << 20), "a text that nearly matches everywhere");
}

TEST(TokenizerBudget, NormalizersThatGrowEachGap) {
  Json json = small_tokenizer();
  json["added_tokens"].push_back({{"id", 3}, {"content", "|"}});
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", repeat("a", 1000000)}};
  expect_refused(json.dump(), repeat("a|", 1000), "1 MB for each of 1,000 gaps");
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", repeat("a", 1000000)}};
  expect_refused(json.dump(), repeat("a|", 1000), "a prefix of 1 MB for each of 1,000 gaps");
}

TEST(TokenizerBudget, LiteralsThatNearlyMatchEverywhere) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", repeat("a", 500000) + "b"}}}, {"content", ""}};
  expect_bounded(json.dump(), repeat("a", 1 << 20), "normalizer");
  json = small_tokenizer();
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", repeat("a", 500000) + "b"}}}, {"behavior", "Isolated"}};
  expect_bounded(json.dump(), repeat("a", 1 << 20), "pre-tokenizer");
}

TEST(TokenizerBudget, MarksInTheWrongOrder) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  // U+0345 (class 240) and U+0334 (class 1) by turns: sorted by exchanging neighbours.
  expect_refused(json.dump(), "a" + repeat("\u0345\u0334", 100000), "200,000 marks on one letter");
  EXPECT_TRUE(use(json.dump(), "a" + repeat("\u0345\u0334", 100)));
}

TEST(TokenizerBudget, PatternsThatTakeTheTextsCube) {
  Json json = small_tokenizer();
  for (const char* pattern : {R"([\s\S]*?(?=[\s\S]*Z)|.)", R"((a+)+$|(a|aa)+c|.)", R"((?:.*){20}Z|.)",
                              R"((?=a*?a*?a*?a*?a*?a*?Z)|a)", R"((?:a?){40}a{40}Z)", R"((a*)*\1Z|a)"}) {
    json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    for (const std::size_t n : {std::size_t{2000}, std::size_t{100000}})
      expect_bounded(json.dump(), repeat("a", n), std::string(pattern) + " on " + std::to_string(n));
  }
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", R"([\s\S]*?(?=[\s\S]*Z)|.)"}}}, {"behavior", "Isolated"}};
  EXPECT_FALSE(use(json.dump(), repeat("a", 20000)));
}

TEST(TokenizerBudget, ManyLargePatterns) {
  Json json = small_tokenizer();
  const std::string pattern = repeat(R"([\p{L}\p{M}]*|)", 1100) + "a";
  json["pre_tokenizer"] =
      sequence("pretokenizers", {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}, 63);
  expect_bounded(json.dump(), "a b", "63 patterns of 15 KB");
}

// Long runs are no attack: what real patterns do with them stays possible.
TEST(TokenizerBudget, LongRunsOfOneKindAreCut) {
  Json json = small_tokenizer();
  const char* llama3 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", llama3}}}, {"behavior", "Isolated"}};
  for (const char* part : {" ", "a", "1", "!", "\n", "\u00e9", "a ", " \n"}) {
    const Status status = use(json.dump(), repeat(part, 300000));
    EXPECT_TRUE(status) << '"' << part << "\": " << status.error().message();
  }
}

// Texts of one long word, of words of one character, and of bytes that are no UTF-8: ids, and memory for nothing else.
TEST(TokenizerBudget, TextsOfNineMegabytes) {
  const std::size_t n = 9'000'000;
  Json characters = small_tokenizer(), bytes = small_tokenizer(), marks = small_tokenizer();
  characters["model"]["byte_fallback"] = true;
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    characters["model"]["vocab"][name] = 3 + b;
    bytes["model"]["vocab"].emplace(text::byte_to_alphabet(static_cast<unsigned char>(b)), 3 + b);
  }
  bytes["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  marks["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  marks["model"]["vocab"] = {{"a", 0}, {"▁", 1}, {"▁▁", 2}};
  marks["model"]["merges"] = {"▁ ▁"};
  const std::pair<const char*, const Json*> tokenizers[] = {
      {"characters", &characters}, {"bytes", &bytes}, {"marks", &marks}};
  for (const char* part : {" ", "a", "\xff",
                           "\xff"
                           "a",
                           "\xe4\xb8", "中"})
    for (const auto& [name, json] : tokenizers) {
      const std::string text = repeat(part, n / std::string_view(part).size());
      const auto t = Tokenizer::build(test::must(spec_from_tokenizer_json(json->dump())));
      ASSERT_TRUE(t) << t.error().message();
      const test::Promise promise;
      const auto ids = t->encode(text);
      promise.check(text.size(), std::string(name) + ", \"" + part + '"');
      ASSERT_TRUE(ids) << ids.error().message();
      EXPECT_GT(ids->size(), n / 8);
    }
}

// 10 MB of each shape that makes many small things.
TEST(TokenizerBudget, TreesOfManySmallValues) {
  const std::size_t n = 10'000'000;
  const std::string head = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [)";
  expect_bounded(R"({"x": [)" + repeat("[],", n / 3) + "1]}", "a", "empty lists");
  expect_bounded(R"({"x": [)" + repeat("{},", n / 3) + "1]}", "a", "empty objects");
  expect_bounded(R"({"x": [)" + repeat("1,", n / 2) + "1]}", "a", "numbers");
  expect_bounded(R"({"x": [)" + repeat("\"\",", n / 3) + "1]}", "a", "empty strings");
  expect_bounded(R"({"x": [)" + repeat(R"({"":0},)", n / 7) + "1]}", "a", "members");
  expect_bounded(head + repeat(R"("a b",)", n / 6) + "\"a b\"]}}", "a", "merges");
  expect_bounded(head + repeat(R"(["a","b"],)", n / 10) + "\"a b\"]}}", "a", "pairs");
  expect_bounded(head + repeat("[],", n / 3) + "\"a b\"]}}", "a", "empty pairs");
  std::string vocab = R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0)";
  for (std::size_t i = 1; vocab.size() < n; ++i) {
    char text[32];
    std::snprintf(text, sizeof text, ",\"%zx\":%zu", i + (1 << 20), i);
    vocab += text;
  }
  expect_bounded(vocab + "}}}", "a", "tokens");
  std::string added = R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 0}}, "added_tokens": [)";
  for (std::size_t i = 1; added.size() < n; ++i) {
    char text[64];
    std::snprintf(text, sizeof text, "%s{\"id\":%zu,\"content\":\"%zx\"}", i == 1 ? "" : ",", i, i + (1 << 20));
    added += text;
  }
  expect_bounded(added + "]}", "a", "added tokens");
}

TEST(TokenizerBudget, ATokenizerConfigOfManySmallValues) {
  const std::string json = small_tokenizer().dump();
  const std::string config = R"({"x": [)" + repeat("{},", 3'000'000) + "1]}";
  const test::Promise promise;
  EXPECT_FALSE(spec_from_tokenizer_json(json, config));
  promise.check(config.size(), "tokenizer_config.json");
}

}  // namespace
}  // namespace lowbit
