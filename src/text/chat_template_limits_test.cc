// Hostile templates: always one Error, in bounded time and memory.

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "lowbit/chat_template.h"
#include "text/test_data.h"
#include "text/test_limits.h"

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
    const test::Promise promise;
    const auto result = render(source);
    promise.check(source.size(), source.substr(0, 120));
    ASSERT_FALSE(result) << source.substr(0, 120);
    EXPECT_FALSE(result.error().where.empty()) << source.substr(0, 120);
    EXPECT_LT(result.error().message().size(), 400u) << source.substr(0, 120);
  }
}

// Work on long texts that leaves nothing behind: searches, strips and numbers, once or in a loop.
TEST(ChatTemplateLimits, StepsCountTheBytesThatAreTouched) {
  const std::string long_texts = "{% set h = 'a'*14000000 %}{% set n = 'a'*7000000 ~ 'b' %}";
  const std::string spaces = "{% set s = ' '*14000000 %}";
  const std::string loop = "{% for i in range(100000) %}", end = "{% endfor %}";
  const std::string hostile[] = {
      long_texts + "{{ n in h }}",
      long_texts + "{{ h.find(n) }}",
      long_texts + "{{ h.rfind('b' ~ h[:7000000]) }}",
      long_texts + "{{ h.count(n) }}",
      long_texts + "{{ h.index(n) }}",
      long_texts + "{{ h.replace(n, '') }}",
      long_texts + "{{ h|replace(n, '') }}",
      long_texts + "{{ h.split(n)|length }}",
      long_texts + "{{ h.rsplit(n)|length }}",
      long_texts + "{{ h.partition(n)|length }}",
      long_texts + "{{ h.rpartition(n)|length }}",
      long_texts + "{{ h.strip(n) }}",
      "{% set c = 'x'*500000 ~ 'a' %}{{ ('a'*14000000).strip(c) }}",
      "{% set h = 'a'*10000000 %}{{ h.startswith((h ~ 'b',)*100000) }}",
      "{% set h = 'a'*10000000 %}{{ h.endswith(('b' ~ h[1:],)*100000) }}",
      spaces + loop + "{{ s|trim }}" + end,
      spaces + loop + "{{ s|int }}" + end,
      spaces + loop + "{{ s|float }}" + end,
      spaces + loop + "{{ s.isspace() }}" + end,
      spaces + loop + "{{ s.islower() }}{{ s is lower }}" + end,
      spaces + loop + "{{ s|length }}" + end,
      spaces + loop + "{{ s[-1] }}" + end,
      spaces + loop + "{{ s[:1] }}" + end,
      spaces + loop + "{{ s.split()|length }}" + end,
      spaces + loop + "{{ 'x' in s }}{{ s == s }}" + end,
      spaces + "{% set d = {s: 1} %}" + loop + "{{ d[s] }}" + end,
      spaces + "{% set d = {s: 1} %}" + loop + "{{ d.get(s) }}" + end,
      spaces + "{% set d = {'a': 1} %}" + loop + "{{ s in d }}" + end,
      spaces + "{{ s[::-1] }}",
      "{{ ('a'*16000000).replace('a', '') }}" + loop + "{{ ('a'*1000000).replace('a', '') }}" + end,
      "{{ ('a'*16000000).split('a')|length }}",
      "{{ ('a '*8000000).split()|length }}",
      "{{ ('a\n'*8000000).splitlines()|length }}",
      "{{ ('a'*16000000)|list|length }}",
      "{% set l = ['a']*100000 %}{% set ns = namespace(l=[]) %}" + loop +
          "{% set ns.l = [ns.l, l|map(attribute='strip')|list][-1:] %}" + end,
      "{% set l = ['a']*10000 %}{% set ns = namespace(l=[]) %}" + loop +
          "{% set ns.l = ns.l + [dict(a=1, b=2, c=3)] %}{{ l|map('upper')|join }}" + end,
      "{{ raise_exception('x'*10000000) }}",
      "{{ " + repeat("x", 1000000) + " }}",
      "{% macro m(x) %}{% endmacro %}" + loop + loop + "{{ m(i) }}" + end + end,
  };
  for (const std::string& source : hostile) {
    const test::Promise promise;
    const auto result = render(source);
    promise.check(source.size(), source.substr(0, 160));
    if (!result) {
      EXPECT_LT(result.error().message().size(), 500u) << source.substr(0, 160);
    }
  }
  // Long enough to matter, and what a conversation of a million characters may still do.
  EXPECT_TRUE(
      render("{% set s = 'abc '*250000 %}{{ s|trim|length }}{{ s.split('b')|length }}{{ 'x' in s }}"
             "{{ s.replace('abc', 'd')|length }}{{ (s|upper).find('D') }}{{ s|tojson|length }}"));
}

TEST(ChatTemplateLimits, TheTreeOfALongTemplateIsBounded) {
  const int n = 1 << 19;
  for (const char* part :
       {"{{a}}", "{{a+a+a+a+a+a}}", "{{a<a<a<a<a<a<a<a}}", "{{f(a,b=1)}}", "{%if a%}{%endif%}", "{#a#}x", "{{''}}"}) {
    const std::string source = repeat(part, n / static_cast<int>(std::string_view(part).size()));
    const test::Promise promise;
    EXPECT_TRUE(ChatTemplate::parse(source)) << part;
    promise.check(source.size(), part);
  }
  for (const char* part : {"1,", "a~", "[", "+", "1:1,", "a|e"}) {
    const std::string source =
        "{{ [" + repeat(part, n / static_cast<int>(std::string_view(part).size()) - 10) + "1] }}";
    const test::Promise promise;
    (void)render(source);
    promise.check(source.size(), part);
  }
}

TEST(ChatTemplateLimits, SearchesAgreeWithTheSimpleOnes) {
  std::mt19937 rng(3);
  for (int i = 0; i < 300; ++i) {
    std::string h, n;
    for (unsigned k = 0; k < 60 + rng() % 200; ++k) h += "ab"[rng() % 8 == 0];
    n = h.substr(rng() % 30, 17 + rng() % 12);
    if (i % 3 == 0) n.back() ^= 3;
    const auto number = [](std::size_t at) {
      return std::to_string(at == std::string::npos ? -1 : static_cast<long>(at));
    };
    const std::string set = "{% set h = '" + h + "' %}{% set n = '" + n + "' %}";
    EXPECT_EQ(test::must(render(set + "{{ h.find(n) }} {{ h.rfind(n) }}")),
              number(h.find(n)) + " " + number(h.rfind(n)));
    EXPECT_EQ(test::must(render(set + "{{ h.rsplit(n)|join(n) }}{{ h.split(n)|join(n) }}")), h + h);
    EXPECT_EQ(test::must(render(set + "{{ h.rsplit(n, 1)|last }}")),
              h.rfind(n) == std::string::npos ? h : h.substr(h.rfind(n) + n.size()));
  }
}

// Variables come from whoever sends a request: they are data, whatever they are called and however large they are.
TEST(ChatTemplateLimits, TemplateArgumentsNeitherBlockNorReplaceAnything) {
  const auto parsed = test::must(ChatTemplate::parse(
      "{% for m in messages %}{{ m.content }}{% endfor %}{{ range(3)|list }}{{ loop is defined }}{{ tools|length }}"));
  ChatInput input;
  input.messages = {{"user", "hi"}};
  input.extra_json = R"({"chat_template": "{{ 1 }}", "tokenize": true, "loop": [], "tools": [1]})";
  EXPECT_EQ(test::must(parsed.render(input)), "hi[0, 1, 2]True1");
  const std::pair<const char*, std::string> floods[] = {{"lists", repeat("[],", 3'000'000)},
                                                        {"objects", repeat("{},", 3'000'000)},
                                                        {"numbers", repeat("1,", 5'000'000)},
                                                        {"members", repeat(R"({"":0},)", 1'400'000)},
                                                        {"texts", repeat("\"\",", 3'000'000)}};
  for (const auto& [what, part] : floods) {
    input.extra_json = "{\"tools\": [" + part + "1]}";
    const test::Promise promise;
    (void)parsed.render(input);
    promise.check(input.extra_json.size(), what);
  }
}

TEST(ChatTemplateLimits, NothingLeadsOutOfTheSandbox) {
  for (const char* source :
       {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__init__.__globals__ }}",
        "{{ self.__init__ }}{{ self.__dict__.x }}", "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].system('id') }}", "{{ ''|attr('__class__') }}", "{{ namespace.__init__.x }}",
        "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% extends '/etc/passwd' %}",
        "{{ messages.append(1) }}", "{{ messages|map(attribute='__class__.__mro__.x')|list }}",
        "{{ '{0.__class__.__init__}'.format(1) }}", "{{ url_for.__globals__ }}", "{{ config.items() }}"})
    EXPECT_FALSE(render(source)) << source;
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
