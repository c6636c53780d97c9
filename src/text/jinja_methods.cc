// The methods of texts and dicts that templates call, with Python's meaning. Lists have none that leave them unchanged
// and that templates use, except index and count.

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

constexpr std::string_view kTextMethods[] = {
    "strip",     "lstrip",     "rstrip",   "split",        "rsplit",       "splitlines", "startswith",
    "endswith",  "upper",      "lower",    "title",        "replace",      "capitalize", "join",
    "find",      "rfind",      "index",    "count",        "isdigit",      "isalpha",    "isalnum",
    "isspace",   "isupper",    "islower",  "removeprefix", "removesuffix", "format",     "zfill",
    "partition", "rpartition", "swapcase", "casefold",     "isnumeric",    "isdecimal"};
constexpr std::string_view kDictMethods[] = {"items", "get", "keys", "values"};
constexpr std::string_view kListMethods[] = {"index", "count"};
constexpr std::string_view kLoopMethods[] = {"cycle", "changed"};

template <std::size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return is_cased(c) || category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND; }

Result<std::string_view> text_argument(const Arguments& args, std::size_t i, const std::string& method) {
  const Value* v = args.get(i);
  if (v == nullptr || !v->is_string())
    return complain(fmt::format("{} as argument {} of {}", v == nullptr ? "nothing" : v->type_name(), i + 1, method),
                    "a text");
  return std::string_view(v->text());
}

Result<Value> split_at(Interpreter& in, std::string_view s, std::string_view separator, std::int64_t limit,
                       bool right) {
  if (separator.empty()) return complain("an empty separator", "a text");
  std::vector<Value> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t hit = right ? s.rfind(separator) : s.find(separator);
    if (hit == std::string_view::npos || in.meter().exhausted()) break;
    parts.push_back(in.text(std::string(right ? s.substr(hit + separator.size()) : s.substr(0, hit))));
    s = right ? s.substr(0, hit) : s.substr(hit + separator.size());
  }
  parts.push_back(in.text(std::string(s)));
  if (right) std::reverse(parts.begin(), parts.end());
  return in.list(std::move(parts));
}

// split() without a separator: words between white space.
Result<Value> split_words(Interpreter& in, std::string_view s, std::int64_t limit) {
  std::vector<Value> parts;
  std::size_t at = 0;
  const auto space_at = [&](std::size_t i, int& length) {
    const text::CodePoint c = text::decode_utf8(s, i);
    length = std::max(c.length, 1);
    return c.length > 0 && is_python_space(c.value);
  };
  int length = 0;
  while (!in.meter().exhausted()) {
    while (at < s.size() && space_at(at, length)) at += length;
    if (at >= s.size()) break;
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(in.text(strip_text(s.substr(at), {}, false, true)));
      break;
    }
    const std::size_t begin = at;
    while (at < s.size() && !space_at(at, length)) at += length;
    parts.push_back(in.text(std::string(s.substr(begin, at - begin))));
  }
  return in.list(std::move(parts));
}

Result<Value> split(Interpreter& in, const std::string& s, const Arguments& args, bool right) {
  LOWBIT_TRY_ASSIGN(const std::int64_t limit, args.integer(1, "maxsplit", -1));
  const Value* separator = args.get(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    if (right && limit >= 0) return complain("rsplit with a limit and no separator", "a separator");
    return split_words(in, s, limit);
  }
  if (!separator->is_string()) return complain(fmt::format("{} as separator", separator->type_name()), "a text");
  return split_at(in, s, separator->text(), limit, right);
}

Result<Value> split_lines(Interpreter& in, std::string_view s) {
  std::vector<Value> parts;
  while (!s.empty() && !in.meter().exhausted()) {
    const std::size_t end = s.find_first_of("\n\r\v\f");
    parts.push_back(in.text(std::string(s.substr(0, end))));
    if (end == std::string_view::npos) break;
    s.remove_prefix(end + (s.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  return in.list(std::move(parts));
}

Result<Value> begins_or_ends(const std::string& s, const Arguments& args, bool begins) {
  const Value* what = args.get(0);
  std::vector<Value> options;
  if (what != nullptr && what->list() != nullptr && what->list()->is_tuple)
    options = what->list()->items;
  else if (what != nullptr)
    options.push_back(*what);
  if (what == nullptr) return complain("no argument for startswith or endswith", "a text");
  for (const Value& option : options) {
    if (!option.is_string())
      return complain(fmt::format("{} for startswith or endswith", option.type_name()), "a text or a tuple of texts");
    if (begins ? s.starts_with(option.text()) : s.ends_with(option.text())) return Value(true);
  }
  return Value(false);
}

// Plain fields only: {}, {0}, {name}.
Result<Value> format_text(Interpreter& in, const std::string& s, const Arguments& args) {
  std::string out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const char c = s[i];
    if ((c == '{' || c == '}') && i + 1 < s.size() && s[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '{') {
      const std::size_t end = s.find('}', i);
      if (end == std::string::npos) return complain("'{' without '}' in format");
      const std::string field = s.substr(i + 1, end - i - 1);
      const bool numeric = !field.empty() && field.size() < 9 &&
                           std::all_of(field.begin(), field.end(), [](char d) { return d >= '0' && d <= '9'; });
      const Value* value = field.empty() ? args.get(automatic++)
                           : numeric     ? args.get(std::stoul(field))
                                         : args.get(Arguments::kNamedOnly, field);
      if (value == nullptr)
        return complain(fmt::format("the field '{{{:.40}}}' in format", field), "a plain field with an argument");
      out += to_text(*value, in.meter());
      i = end;
    } else if (c == '}') {
      return complain("'}' without '{' in format");
    } else {
      out += c;
    }
    if (!in.meter().spend_bytes(1 + out.size() / 16)) return Value();
  }
  return in.text(std::move(out));
}

template <class Test>
Value all_characters(std::string_view s, Test test) {
  bool all = !s.empty();
  for (std::size_t at = 0; at < s.size() && all;) {
    const text::CodePoint c = text::decode_utf8(s, at);
    all = c.length > 0 && test(c.value);
    at += std::max(c.length, 1);
  }
  return Value(all);
}

Result<Value> partition(Interpreter& in, const std::string& s, std::string_view separator, bool right) {
  if (separator.empty()) return complain("an empty separator", "a text");
  const std::size_t hit = right ? s.rfind(separator) : s.find(separator);
  const auto part = [&](std::string_view v) { return in.text(std::string(v)); };
  const std::string_view all = s;
  if (hit == std::string::npos)
    return in.list(
        right ? std::vector<Value>{part(""), part(""), part(all)} : std::vector<Value>{part(all), part(""), part("")},
        true);
  return in.list({part(all.substr(0, hit)), part(separator), part(all.substr(hit + separator.size()))}, true);
}

Result<Value> find_text(const std::string& s, const Arguments& args, const std::string& name) {
  LOWBIT_TRY_ASSIGN(const std::string_view wanted, text_argument(args, 0, name));
  if (args.get(1) != nullptr) return complain(fmt::format("a start for {}", name), "the text only");
  if (name == "count") {
    std::int64_t n = 0;
    if (wanted.empty()) return Value(static_cast<std::int64_t>(count_characters(s)) + 1);
    for (std::size_t at = 0; (at = s.find(wanted, at)) != std::string::npos; at += wanted.size()) ++n;
    return Value(n);
  }
  const std::size_t hit = name == "rfind" ? s.rfind(wanted) : s.find(wanted);
  if (hit != std::string::npos)
    return Value(static_cast<std::int64_t>(count_characters(std::string_view(s).substr(0, hit))));
  if (name == "index") return complain("a text without the part that index looks for");
  return Value(std::int64_t{-1});
}

Result<Value> is_kind(const std::string& s, const std::string& name) {
  if (name == "isdigit" || name == "isnumeric" || name == "isdecimal") return all_characters(s, is_digit);
  if (name == "isalpha") return all_characters(s, is_letter);
  if (name == "isalnum") return all_characters(s, [](char32_t c) { return is_letter(c) || is_digit(c); });
  if (name == "isspace") return all_characters(s, is_python_space);
  // isupper, islower: some letter has a case, and none the wrong one.
  const std::string same = name == "isupper" ? upper_text(s) : lower_text(s);
  const std::string other = name == "isupper" ? lower_text(s) : upper_text(s);
  return Value(s == same && s != other);
}

Result<Value> text_method(Interpreter& in, const std::string& s, const std::string& name, const Arguments& args) {
  in.meter().spend_steps(s.size() / 256);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Value* characters = args.get(0);
    if (characters != nullptr && !characters->is_string() && !characters->is_none())
      return complain(fmt::format("{} for {}", characters->type_name(), name), "a text");
    const bool given = characters != nullptr && characters->is_string();
    if (given && characters->text().empty()) return in.text(s);
    return in.text(strip_text(s, given ? characters->text() : "", name != "rstrip", name != "lstrip"));
  }
  if (name == "split" || name == "rsplit") return split(in, s, args, name == "rsplit");
  if (name == "splitlines") return split_lines(in, s);
  if (name == "startswith" || name == "endswith") return begins_or_ends(s, args, name == "startswith");
  if (name == "upper") return in.text(upper_text(s));
  if (name == "lower" || name == "casefold") return in.text(lower_text(s));
  if (name == "title") return in.text(title_text(s));
  if (name == "capitalize") return in.text(capitalize_text(s));
  if (name == "swapcase") return in.text(swap_case_text(s));
  if (name == "replace") {
    LOWBIT_TRY_ASSIGN(const std::string_view from, text_argument(args, 0, name));
    LOWBIT_TRY_ASSIGN(const std::string_view to, text_argument(args, 1, name));
    LOWBIT_TRY_ASSIGN(const std::int64_t count, args.integer(2, "count", -1));
    return Value(replace_text(in, s, from, to, count));
  }
  if (name == "join") return in.apply_filter("join", args.get(0) != nullptr ? *args.get(0) : Value(), {{Value(s)}, {}});
  if (name == "find" || name == "rfind" || name == "index" || name == "count") return find_text(s, args, name);
  if (name == "removeprefix" || name == "removesuffix") {
    LOWBIT_TRY_ASSIGN(const std::string_view part, text_argument(args, 0, name));
    if (name == "removeprefix") return in.text(s.starts_with(part) ? s.substr(part.size()) : s);
    return in.text(s.ends_with(part) ? s.substr(0, s.size() - part.size()) : s);
  }
  if (name == "format") return format_text(in, s, args);
  if (name == "zfill") {
    LOWBIT_TRY_ASSIGN(const std::int64_t width, args.integer(0, "width", 0));
    const auto n = static_cast<std::int64_t>(count_characters(s));
    if (width <= n) return in.text(s);
    if (!in.meter().spend_bytes(static_cast<std::size_t>(width - n))) return Value();
    const std::size_t sign = s.starts_with('-') || s.starts_with('+') ? 1 : 0;
    return Value(s.substr(0, sign) + std::string(static_cast<std::size_t>(width - n), '0') + s.substr(sign));
  }
  if (name == "partition" || name == "rpartition") {
    LOWBIT_TRY_ASSIGN(const std::string_view separator, text_argument(args, 0, name));
    return partition(in, s, separator, name == "rpartition");
  }
  return is_kind(s, name);
}

Result<Value> dict_method(Interpreter& in, const Dict& dict, const std::string& name, const Arguments& args) {
  if (name == "get") {
    const Value* key = args.get(0);
    if (key == nullptr) return complain("get without a key", "a key");
    if (const Value* found = dict.find(*key)) return *found;
    const Value* fallback = args.get(1, "default");
    return fallback != nullptr ? *fallback : Value(None{});
  }
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      LOWBIT_TRY_ASSIGN(Value pair, in.list({key, value}, true));
      out.push_back(std::move(pair));
    } else {
      out.push_back(name == "keys" ? key : value);
    }
  }
  return in.list(std::move(out));
}

Result<Value> loop_method(Interpreter& in, const Loop& loop, const std::string& name, const Arguments& args) {
  if (name == "cycle") {
    if (args.positional.empty()) return complain("loop.cycle without values", "values");
    return args.positional[loop.index % args.positional.size()];
  }
  LOWBIT_TRY_ASSIGN(Value now, in.list(args.positional, true));
  const bool changed = !loop.has_changed || !equal(loop.changed, now, in.meter());
  loop.changed = std::move(now);
  loop.has_changed = true;
  return Value(changed);
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  if (self.is_string()) return is_one_of(kTextMethods, name);
  if (self.dict() != nullptr) return is_one_of(kDictMethods, name);
  if (self.list() != nullptr) return is_one_of(kListMethods, name);
  return self.loop() != nullptr && is_one_of(kLoopMethods, name);
}

Result<Value> call_method(Interpreter& in, const Value& self, const std::string& name, const Arguments& args) {
  if (self.is_string()) return text_method(in, self.text(), name, args);
  if (const Dict* dict = self.dict()) return dict_method(in, *dict, name, args);
  if (const Loop* loop = self.loop()) return loop_method(in, *loop, name, args);
  const Value* wanted = args.get(0);
  if (wanted == nullptr) return complain(fmt::format("{} without a value", name), "a value");
  std::int64_t count = 0, at = 0;
  for (const Value& v : self.list()->items) {
    if (equal(v, *wanted, in.meter())) {
      if (name == "index") return Value(at);
      ++count;
    }
    ++at;
  }
  if (name == "index") return complain("a list without the value that index looks for");
  return Value(count);
}

}  // namespace lowbit::jinja
