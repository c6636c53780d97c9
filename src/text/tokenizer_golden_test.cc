// Small tokenizers of our own against PyPI `tokenizers` (tests/golden/text/make_tokenizer_cases.py).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lowbit/tokenizer.h"
#include "text/test_data.h"
#include "text/utf8.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

const Json& golden_cases() {
  static const Json json = Json::parse(test::read_file(test::golden("tokenizer_cases.json")));
  return json;
}

void expect_cases(const Tokenizer& tokenizer, const Json& cases) {
  for (const Json& c : cases) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    const std::vector<TokenId> ids = c["ids"];
    EXPECT_EQ(test::must(tokenizer.encode(text, {.add_special = false, .parse_special = true})), ids);
    EXPECT_EQ(test::must(tokenizer.encode(text, {.add_special = true, .parse_special = true})),
              c.value("with_special", ids));
    if (c.contains("decoded") && c["decoded"].is_null()) continue;
    const std::string wanted = c.value("decoded", text);
    const std::string decoded = test::must(tokenizer.decode(ids, {.skip_special = false}));
    // Hugging Face puts U+FFFD where lowbit keeps the bytes.
    if (wanted.find("\xEF\xBF\xBD") == std::string::npos) {
      EXPECT_EQ(decoded, wanted);
    }
  }
}

TEST(TokenizerGolden, EqualsHuggingFace) {
  ASSERT_GE(golden_cases().size(), 13u);
  for (const Json& entry : golden_cases()) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto spec = test::must(spec_from_tokenizer_json(entry["tokenizer"].dump()));
    expect_cases(test::must(Tokenizer::build(spec)), entry["cases"]);
  }
}

TEST(TokenizerGolden, WrittenFilesReadBackTheSame) {
  for (const Json& entry : golden_cases()) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto spec = test::must(spec_from_tokenizer_json(entry["tokenizer"].dump()));
    const std::string written = test::must(to_tokenizer_json(spec));
    const std::string config = test::must(to_tokenizer_config_json(spec));
    EXPECT_EQ(test::must(spec_from_tokenizer_json(written, config)), spec);
  }
}

TEST(TokenizerGolden, StreamingGivesTheSameText) {
  for (const Json& entry : golden_cases()) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const auto tokenizer =
        test::must(Tokenizer::build(test::must(spec_from_tokenizer_json(entry["tokenizer"].dump()))));
    for (const Json& c : entry["cases"]) {
      const std::vector<TokenId> ids = c["ids"];
      StreamDecoder stream(tokenizer, {.skip_special = false});
      std::string streamed;
      for (const TokenId id : ids) {
        const std::string part = test::must(stream.push(id));
        EXPECT_EQ(text::valid_prefix(part), part.size());
        streamed += part;
      }
      streamed += stream.flush();
      const std::string decoded = test::must(tokenizer.decode(ids, {.skip_special = false}));
      if (text::valid_prefix(decoded) == decoded.size()) {
        EXPECT_EQ(streamed, decoded);
      }
    }
  }
}

}  // namespace
}  // namespace lowbit
