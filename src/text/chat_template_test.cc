// Chat templates against what jinja2 makes of them (tests/golden/text/make_template_cases.py).

#include "lowbit/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/test_data.h"

namespace lowbit {
namespace {

using Json = nlohmann::ordered_json;

const Json& cases() {
  static const Json json = Json::parse(test::read_file(test::golden("template_cases.json")));
  return json;
}

Result<std::string> render(const std::string& source, const Json& variables) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  return parsed->render_json(variables.dump(), cases()["now_unix_s"].get<std::int64_t>());
}

void expect_same(const Json& wanted, const Result<std::string>& got) {
  if (wanted.contains("error")) {
    EXPECT_FALSE(got) << "jinja2 fails, lowbit gives: " << *got;
    if (!got) {
      EXPECT_NE(got.error().where.find("line"), std::string::npos) << got.error().message();
    }
  } else {
    ASSERT_TRUE(got) << got.error().message() << "\njinja2 gives: " << wanted["expected"];
    EXPECT_EQ(*got, wanted["expected"].get<std::string>());
  }
}

TEST(ChatTemplate, EveryPublishedTemplateEqualsJinja2) {
  int compared = 0;
  for (const Json& entry : cases()["templates"]) {
    const std::string name = entry["template"];
    const std::string source = test::read_file(test::golden("templates") / name);
    for (const Json& c : entry["cases"]) {
      SCOPED_TRACE(name + " / " + c["conversation"].get<std::string>());
      Json variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_generation_prompt", true}};
      variables.update(cases()["conversations"][c["conversation"].get<std::string>()]);
      expect_same(c, render(source, variables));
      ++compared;
    }
  }
  EXPECT_GE(compared, 250);
}

TEST(ChatTemplate, EveryFeatureEqualsJinja2) {
  for (const Json& c : cases()["features"]) {
    SCOPED_TRACE(c["source"].get<std::string>());
    expect_same(c, render(c["source"], cases()["data"]));
  }
}

TEST(ChatTemplate, RenderOfMessagesEqualsRenderOfJson) {
  const auto parsed = test::must(ChatTemplate::parse(test::read_file(test::golden("templates/qwen3.jinja"))));
  ChatInput input;
  input.messages = {{"system", "Be brief."}, {"user", "Hi"}};
  input.messages.push_back({"assistant", "", R"({"tool_calls": [{"name": "f", "arguments": {"b": 1, "a": [2]}}]})"});
  input.extra_json = R"({"enable_thinking": false, "tools": [{"type": "function"}]})";
  const auto text = parsed.render(input);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_NE(text->find("<|im_start|>system\nBe brief.\n\n# Tools"), std::string::npos) << *text;
  EXPECT_NE(text->find(R"({"name": "f", "arguments": {"b": 1, "a": [2]}})"), std::string::npos) << *text;
  EXPECT_TRUE(text->ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n")) << *text;
}

TEST(ChatTemplate, MessagesMayHoldAnyBytes) {
  const auto parsed =
      test::must(ChatTemplate::parse("{{ messages[0].content|upper }}|{{ messages[0].content|length }}"));
  ChatInput input;
  input.messages = {{"user", std::string("a\xFF\0b", 4)}};
  EXPECT_EQ(test::must(parsed.render(input)), std::string("A\xFF\0B|4", 6));
}

TEST(ChatTemplate, BadExtraJsonIsAnError) {
  const auto parsed = test::must(ChatTemplate::parse("x"));
  for (const char* bad : {"[1]", "{", "{\"a\": }", "nul"}) {
    ChatInput input;
    input.extra_json = bad;
    EXPECT_FALSE(parsed.render(input)) << bad;
    input = {};
    input.messages = {{"user", "x", bad}};
    EXPECT_FALSE(parsed.render(input)) << bad;
    EXPECT_FALSE(parsed.render_json(bad)) << bad;
  }
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto syntax = ChatTemplate::parse("a\nb\n{% if x %}\n{{ y | }}\n{% endif %}");
  ASSERT_FALSE(syntax);
  EXPECT_EQ(syntax.error().where, "chat template line 4");
  const auto raised = test::must(ChatTemplate::parse("\n\n{{ raise_exception('no system role') }}")).render({});
  ASSERT_FALSE(raised);
  EXPECT_EQ(raised.error().where, "chat template line 3");
  EXPECT_EQ(raised.error().got, "no system role");
  const auto unknown = ChatTemplate::parse("{% include 'x' %}");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace lowbit
