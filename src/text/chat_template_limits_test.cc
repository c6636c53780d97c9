// Hostile templates: always one Error, in bounded time and memory.

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>

#include "lowbit/chat_template.h"
#include "text/test_data.h"

namespace lowbit {
namespace {

std::string repeat(std::string_view s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

std::string numbered(std::string_view before, std::string_view behind, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out.append(before).append(std::to_string(i)).append(behind);
  return out;
}

Result<std::string> render(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  ChatInput input;
  input.messages = {{"user", "hi"}};
  return parsed->render(input);
}

TEST(ChatTemplateLimits, HostileTemplatesEndInOneError) {
  const std::string hostile[] = {
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m('ab') }}",
      "{% for i in range(10**9) %}x{% endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'a' * 10**9 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [1] * 10**9 }}",
      "{{ 10 ** 10 ** 10 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{% set s = 'aaaaaaaaaaaaaaaa' %}{% for i in range(40) %}{% set s = s %}{% endfor %}" +
          repeat("{% set s = s ~ s %}", 60),
      "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson "
      "}}",
      "{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(90) %}{% set a.l = [a.l, a.l] %}"
      "{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}",
      "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
      "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
      "{{ (['x'] * 100000)|join('y' * 100000) }}",
      "{{ [1]|tojson(indent=1000000000) }}",
      "{{ 'x'|indent(1000000000) }}",
      "{{ '7'.zfill(10**12) }}",
      "{% set a = 'a' * 30000000 %}{{ a" + repeat(" ~ a", 250) + " }}",
      "{% set a = 'a' * 30000000 %}{{ '" + repeat("{0}", 10000) + "'.format(a) }}",
      numbered("{% set x", "= 1 %}", 60000),
      numbered("{% set x", "= 1 %}", 7000) +
          "{% for i in range(99999) %}{{ y }}{{ y }}{{ y }}{{ y }}{{ y }}{% endfor %}",
      "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
      repeat("{% if true %}", 5000),
      repeat("{{ (", 5000),
      "{{ " + repeat("(", 100000),
      "{{ " + repeat("[", 100000),
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ x" + repeat(".a", 100000) + " }}",
      "{{ x" + repeat("|trim", 100000) + " }}",
      "{{ x" + repeat("[0]", 100000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 100000) + " }}",
      "{% set " + repeat("(", 100000),
      repeat("x", (1 << 20) + 1),
      "{{ 99999999999999999999999 }}",
      "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns.a.a.a.b.c }}",
      "{{ range(5).__class__.__mro__ }}",
      "{{ (('a' * 100000).split('a') * 1000)|unique|list|length }}{% for a in range(99999) %}{{ ('a' * 9999)|upper "
      "}}{% endfor %}",
  };
  for (const std::string& source : hostile) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = render(source);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ASSERT_FALSE(result) << source.substr(0, 120);
    EXPECT_FALSE(result.error().where.empty()) << source.substr(0, 120);
    EXPECT_LT(result.error().message().size(), 400u) << source.substr(0, 120);
    EXPECT_LT(seconds, 10.0) << source.substr(0, 120);
  }
}

TEST(ChatTemplateLimits, LimitsAreTheCallers) {
  const auto loop = test::must(ChatTemplate::parse("{% for i in range(1000) %}abc{% endfor %}"));
  ChatLimits limits;
  EXPECT_TRUE(loop.render({}, limits));
  limits.steps = 100;
  EXPECT_FALSE(loop.render({}, limits));
  limits = {};
  limits.output_bytes = 2999;
  EXPECT_FALSE(loop.render({}, limits));
  limits.output_bytes = 3000;
  EXPECT_TRUE(loop.render({}, limits));
  limits.memory_bytes = 1000;
  EXPECT_FALSE(loop.render({}, limits));
}

TEST(ChatTemplateLimits, DeepJsonIsAnError) {
  const auto parsed = test::must(ChatTemplate::parse("{{ tools|tojson }}"));
  ChatInput input;
  input.extra_json = "{\"tools\": " + repeat("[", 80) + repeat("]", 80) + "}";
  EXPECT_TRUE(parsed.render(input));
  input.extra_json = "{\"tools\": " + repeat("[", 100000) + repeat("]", 100000) + "}";
  EXPECT_FALSE(parsed.render(input));
}

// Cuts and changes of real templates: no crash, no hang; that the result is right is not the question here.
TEST(ChatTemplateLimits, MutatedTemplatesNeverCrash) {
  std::mt19937 rng(7);
  for (const char* name : {"templates/qwen3.jinja", "templates/llama31.jinja", "templates/mistral_v3.jinja"}) {
    const std::string source = test::read_file(test::golden(name));
    ASSERT_FALSE(source.empty());
    constexpr std::string_view kBits[] = {"{{", "}}", "{%",  "%}",    "(",    ")",    "[", "]",  "|",  ".",   "'",
                                          "\"", "-",  "if ", "endif", "for ", "set ", "0", "{#", "\\", "\xFF"};
    for (int i = 0; i < 400; ++i) {
      std::string s = source;
      if (i % 2 == 0) {
        s.resize(rng() % s.size());
      } else {
        for (unsigned n = 0; n <= rng() % 4; ++n) s.insert(rng() % s.size(), kBits[rng() % std::size(kBits)]);
      }
      const auto result = render(s);
      if (!result) {
        EXPECT_FALSE(result.error().where.empty());
      }
    }
  }
}

}  // namespace
}  // namespace lowbit
