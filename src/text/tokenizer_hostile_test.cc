// Files that lie: always one Error that names the place, in bounded time and memory.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "lowbit/tokenizer.h"
#include "text/test_data.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

Result<Tokenizer> load(const std::string& json, const std::string& config = {}) {
  auto spec = spec_from_tokenizer_json(json, config);
  if (!spec) return tl::unexpected<Error>(spec.error());
  return Tokenizer::build(std::move(*spec));
}

std::string repeat(std::string_view s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

void expect_error(const Result<Tokenizer>& result, const std::string& what) {
  ASSERT_FALSE(result) << what;
  EXPECT_FALSE(result.error().where.empty()) << what;
  EXPECT_LT(result.error().message().size(), 500u) << what;
}

// A small valid file with one part replaced.
std::string with(const char* pointer, const Json& value) {
  Json json = Json::parse(R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"], "unk_token": "a"}})");
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

TEST(TokenizerHostile, NotJson) {
  ASSERT_TRUE(load(with("/version", "1.0")));
  const std::string whole = with("/version", "1.0");
  for (std::size_t n = 0; n < whole.size(); ++n) expect_error(load(whole.substr(0, n)), whole.substr(0, n));
  for (const std::string& bad :
       {std::string(), std::string("null"), std::string("[]"), std::string("\xFF"), std::string("{\"model\": 1e999}"),
        repeat("[", 1'000'000), repeat("{\"a\":", 1'000'000), repeat("[", 70) + repeat("]", 70)})
    expect_error(load(bad), bad.substr(0, 60));
  const auto cut = load(whole.substr(0, 100));
  EXPECT_NE(cut.error().message().find("byte 10"), std::string::npos) << cut.error().message();
}

TEST(TokenizerHostile, WrongParts) {
  const std::pair<const char*, Json> parts[] = {
      {"/model", nullptr},
      {"/model", 5},
      {"/model", Json::array()},
      {"/model/type", "Unigram"},
      {"/model/type", "WordPiece"},
      {"/model/type", 3},
      {"/model/vocab", nullptr},
      {"/model/vocab", Json::array({"a", "b"})},
      {"/model/vocab", Json::object()},
      {"/model/vocab/b", -1},
      {"/model/vocab/b", 4294967297},
      {"/model/vocab/b", 2147483647},
      {"/model/vocab/b", 1e30},
      {"/model/vocab/b", "1"},
      {"/model/vocab/b", 0},
      {"/model/merges", nullptr},
      {"/model/merges", "a b"},
      {"/model/merges/0", "a  b"},
      {"/model/merges/0", "ab"},
      {"/model/merges/0", "a x"},
      {"/model/merges/0", "b a"},
      {"/model/merges/0", " b"},
      {"/model/merges/0", "a "},
      {"/model/merges/0", 7},
      {"/model/merges/0", Json::array({"a"})},
      {"/model/merges/0", Json::array({"a", 1})},
      {"/model/unk_token", "zz"},
      {"/model/unk_token", 1},
      {"/model/byte_fallback", "yes"},
      {"/model/dropout", 0.5},
      {"/model/end_of_word_suffix", "</w>"},
      {"/added_tokens", 1},
      {"/added_tokens", Json::array({1})},
      {"/added_tokens", Json::parse(R"([{"id": 99999999, "content": "x"}])")},
      {"/added_tokens", Json::parse(R"([{"id": -4, "content": "x"}])")},
      {"/added_tokens", Json::parse(R"([{"id": 0, "content": "x"}])")},
      {"/added_tokens", Json::parse(R"([{"id": 3}])")},
      {"/added_tokens", Json::parse(R"([{"id": 3, "content": "x", "special": 1}])")},
      {"/added_tokens", Json::array({{{"id", 3}, {"content", std::string(2000, 'x')}}})},
      {"/normalizer", 1},
      {"/normalizer", Json::object()},
      {"/normalizer", {{"type", "Precompiled"}}},
      {"/normalizer", {{"type", "Sequence"}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}}},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}},
      {"/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "[a"}}}, {"behavior", "Isolated"}}},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "((a{1000}){1000}){1000}"}}}, {"behavior", "Isolated"}}},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", std::string(100000, 'a')}}}, {"behavior", "Isolated"}}},
      {"/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Sideways"}}},
      {"/pre_tokenizer", {{"type", "Split"}}},
      {"/pre_tokenizer",
       Json::parse(R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})")},
      {"/decoder", {{"type", "WordPiece"}}},
      {"/decoder", {{"type", "Strip"}, {"content", "x"}, {"start", 1}}},
      {"/decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}}},
      {"/post_processor", {{"type", "BertProcessing"}}},
      {"/post_processor", {{"type", "TemplateProcessing"}}},
      {"/post_processor", Json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "zz"}}]})")},
  };
  for (const auto& [pointer, value] : parts)
    expect_error(load(with(pointer, value)), std::string(pointer) + " = " + value.dump().substr(0, 80));
}

TEST(TokenizerHostile, WrongConfig) {
  const std::string json = with("/version", "1.0");
  for (const char* bad : {"[]", "{", "{\"bos_token\": 1}", "{\"add_bos_token\": \"x\"}", "{\"chat_template\": {}}",
                          "{\"chat_template\": [1, {\"name\": 2}]}"})
    expect_error(load(json, bad), bad);
}

TEST(TokenizerHostile, PatternsThatNeverEndGiveUp) {
  const auto t = load(with("/pre_tokenizer",
                           {{"type", "Split"}, {"pattern", {{"Regex", "(a+)+$|(a|aa)+c"}}}, {"behavior", "Isolated"}}));
  ASSERT_TRUE(t);
  const auto ids = t->encode(repeat("a", 5000) + "b");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
}

TEST(TokenizerHostile, NormalizersThatGrowTheTextStop) {
  Json step = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", repeat("a", 1000)}};
  const auto t =
      load(with("/normalizer", {{"type", "Sequence"}, {"normalizers", Json::array({step, step, step, step, step})}}));
  ASSERT_TRUE(t);
  EXPECT_FALSE(t->encode(repeat("a", 100)));
}

GgufTokenizerFields fields() {
  GgufTokenizerFields f;
  f.model = "llama";
  f.tokens = {"<unk>", "<s>", "</s>", "<0x00>", "a", "b", "ab"};
  f.scores = {0, 0, 0, 0, -1, -2, -3};
  f.token_type = {2, 3, 3, 6, 1, 1, 1};
  f.bos_token_id = 1;
  return f;
}

Result<Tokenizer> load(const GgufTokenizerFields& f) {
  auto spec = spec_from_gguf_fields(f);
  if (!spec) return tl::unexpected<Error>(spec.error());
  return Tokenizer::build(std::move(*spec));
}

TEST(TokenizerHostile, GgufFieldsThatLie) {
  ASSERT_TRUE(load(fields()));
  const std::pair<const char*, std::function<void(GgufTokenizerFields&)>> lies[] = {
      {"byte token <0x-1>", [](auto& f) { f.tokens[3] = "<0x-1>"; }},
      {"byte token <0x100>", [](auto& f) { f.tokens[3] = "<0x100>"; }},
      {"no tokens", [](auto& f) { f.tokens.clear(); }},
      {"no scores", [](auto& f) { f.scores.clear(); }},
      {"few scores", [](auto& f) { f.scores.pop_back(); }},
      {"few types", [](auto& f) { f.token_type.pop_back(); }},
      {"bad type", [](auto& f) { f.token_type[4] = 77; }},
      {"negative type", [](auto& f) { f.token_type[4] = -1; }},
      {"duplicate", [](auto& f) { f.tokens[5] = "a"; }},
      {"huge bos", [](auto& f) { f.bos_token_id = 1LL << 40; }},
      {"negative eos", [](auto& f) { f.eos_token_id = -7; }},
      {"unknown id outside", [](auto& f) { f.unknown_token_id = 7; }},
      {"NaN score", [](auto& f) { f.scores[4] = std::numeric_limits<float>::quiet_NaN(); }},
      {"model", [](auto& f) { f.model = "bert"; }},
      {"no model", [](auto& f) { f.model = ""; }},
      {"long token", [](auto& f) { f.tokens[4] = std::string(100000, 'x'); }},
      {"long special token", [](auto& f) { f.tokens[1] = std::string(2000, 'x'); }},
      {"merge of unknown",
       [](auto& f) {
         f.model = "gpt2";
         f.merges = {"a zz"};
       }},
      {"merge without a space",
       [](auto& f) {
         f.model = "gpt2";
         f.merges = {"ab"};
       }},
      {"empty merge",
       [](auto& f) {
         f.model = "gpt2";
         f.merges = {""};
       }},
      {"merge into nothing",
       [](auto& f) {
         f.model = "gpt2";
         f.merges = {"b a"};
       }},
  };
  for (const auto& [what, lie] : lies) {
    GgufTokenizerFields f = fields();
    lie(f);
    expect_error(load(f), what);
  }
}

// A token's text goes out as long as it is, whatever it is: no length of it is taken from elsewhere.
TEST(TokenizerHostile, PiecesAreCopiedWhole) {
  TokenizerSpec spec;
  spec.tokens = {"a", std::string(64 * 1024, 'x'), std::string("\0\0", 2), "\xFF\xFE", ""};
  spec.types.assign(5, TokenType::kNormal);
  const Tokenizer t = test::must(Tokenizer::build(spec));
  const std::vector<TokenId> all = {0, 1, 2, 3, 4};
  std::string wanted;
  for (const TokenId id : all) {
    EXPECT_EQ(t.piece(id), spec.tokens[id]);
    wanted += spec.tokens[id];
  }
  EXPECT_EQ(test::must(t.decode(all)), wanted);
  for (const TokenId id : {-1, 5, std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max()}) {
    EXPECT_EQ(t.piece(id), "");
    EXPECT_FALSE(t.decode(std::vector<TokenId>{0, id}));
    EXPECT_FALSE(StreamDecoder(t).push(id));
  }
  spec.tokens[1] += 'x';
  EXPECT_FALSE(Tokenizer::build(spec)) << "a token of over 64 KiB";
  const std::vector<TokenId> long_text((std::size_t{1} << 30) / (64 * 1024) + 1, 1);
  EXPECT_FALSE(t.decode(long_text)) << "over 1 GiB";
}

// <0x-1>, <0x100> and the like are texts: only <0x00> to <0xFF> are bytes.
TEST(TokenizerHostile, ByteTokensThatAreNoneStayTexts) {
  Json json = Json::parse(with("/model/byte_fallback", true));
  int id = 3;
  for (const char* text : {"<0x-1>", "<0x100>", "<0x1>", "<0x+1>", "<0x 1>", "<0xG0>", "<0x41>"})
    json["model"]["vocab"][text] = id++;
  json["decoder"] = {{"type", "ByteFallback"}};
  const Tokenizer t = test::must(load(json.dump()));
  for (TokenId i = 3; i < id - 1; ++i)
    EXPECT_EQ(test::must(t.decode(std::vector<TokenId>{i})), t.spec().tokens[static_cast<std::size_t>(i)]);
  EXPECT_EQ(test::must(t.decode(std::vector<TokenId>{id - 1})), "A");
}

// Text from users never becomes a control token, in whatever way the file describes that token.
TEST(TokenizerHostile, UserTextIsNoSpecialToken) {
  Json json =
      Json::parse(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", "Q"}}}, {"content", "<e>"}}));
  json["model"]["vocab"]["<"] = 3;
  json["model"]["vocab"]["e"] = 4;
  json["model"]["vocab"][">"] = 5;
  int id = 6;
  for (const bool normalized : {false, true})
    for (const bool strips : {false, true})
      json["added_tokens"].push_back(
          {{"id", id},
           {"content", id++ == 6 ? "<e>" : "<" + std::string(static_cast<std::size_t>(id), 'e') + ">"},
           {"special", true},
           {"normalized", normalized},
           {"lstrip", strips},
           {"rstrip", strips}});
  const Tokenizer t = test::must(load(json.dump()));
  for (const AddedToken& token : t.spec().added_tokens) {
    for (const std::string& text :
         {token.content, "a " + token.content + " b", std::string("aQb"), token.content + token.content}) {
      for (const TokenId got : test::must(t.encode(text, {.add_special = false})))
        EXPECT_LT(got, 6) << text;  // the added ones begin there
    }
    EXPECT_EQ(test::must(t.encode(token.content, {.add_special = false, .parse_special = true})),
              std::vector<TokenId>{token.id});
  }
}

TEST(TokenizerHostile, SpecsMadeByHandAreChecked) {
  TokenizerSpec spec;
  EXPECT_FALSE(Tokenizer::build(spec));
  spec.tokens = {"a"};
  EXPECT_FALSE(Tokenizer::build(spec));
  EXPECT_FALSE(to_tokenizer_json(spec));
  EXPECT_FALSE(to_tokenizer_config_json(spec));
  spec.types = {TokenType::kNormal};
  EXPECT_TRUE(Tokenizer::build(spec));
  spec.eos_id = 1;
  EXPECT_FALSE(Tokenizer::build(spec));
  spec.eos_id.reset();
  spec.added_tokens = {{.id = 5, .content = "x"}};
  EXPECT_FALSE(Tokenizer::build(spec));
}

TEST(TokenizerHostile, MutatedFilesNeverCrash) {
  const Json all = Json::parse(test::read_file(test::golden("tokenizer_cases.json")));
  std::mt19937 rng(5);
  for (const Json& entry : all) {
    const std::string file = entry["tokenizer"].dump();
    for (int i = 0; i < 40; ++i) {
      std::string s = file;
      for (unsigned n = 0; n <= rng() % 3; ++n) {
        // Away from the vocabulary, where most of the bytes and none of the structure is.
        const std::size_t at =
            rng() % 2 == 0 ? rng() % std::min<std::size_t>(s.size(), 1500) : s.size() - 1 - rng() % 600;
        s[at] = "0123456789-{}[]\",:aTn \xFF"[rng() % 22];
      }
      const auto t = load(s);
      if (t) (void)t->encode("The quick brown fox 123 Größe\xFF", {.parse_special = true});
    }
  }
}

}  // namespace
}  // namespace lowbit
