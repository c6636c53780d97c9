// The methods of texts that templates call, with Python's meaning.

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "base/try.h"
#include "text/jinja_methods.h"
#include "text/jinja_text.h"
#include "text/numeric_characters.h"
#include "text/search.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return is_cased(c) || category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO;
}

bool is_letter_or_number(char32_t c) { return is_letter(c) || is_numeric(c); }

Result<std::string_view> text_argument(const Arguments& args, std::size_t i, const std::string& method) {
  const Value* v = args.get(i);
  if (v == nullptr || !v->is_string())
    return complain(fmt::format("{} as argument {} of {}", v == nullptr ? "nothing" : v->type_name(), i + 1, method),
                    "a text");
  return std::string_view(v->text());
}

template <std::string (*kChange)(std::string_view)>
Result<Value> changed(Interpreter& in, const std::string& s, const Arguments&) {
  if (!in.meter().spend_text(3 * s.size())) return Value();
  return in.text(kChange(s));
}

template <bool kLeft, bool kRight>
Result<Value> strip(Interpreter& in, const std::string& s, const Arguments& args) {
  const Value* characters = args.get(0);
  if (characters != nullptr && !characters->is_string() && !characters->is_none())
    return complain(fmt::format("{} for strip", characters->type_name()), "a text");
  const bool given = characters != nullptr && characters->is_string();
  if (given && characters->text().empty()) return in.text(s);
  return in.text(strip_text(s, given ? characters->text() : "", kLeft, kRight));
}

Result<Value> split_at(Interpreter& in, std::string_view s, std::string_view separator, std::int64_t limit,
                       bool right) {
  if (separator.empty()) return complain("an empty separator", "a text");
  // From the right: both are reversed, so that each search starts where the last one ended.
  const std::string backwards(right ? s.rbegin() : s.rend(), s.rend());
  const std::string separator_backwards(separator.rbegin(), separator.rend());
  if (right) {
    s = backwards;
    separator = separator_backwards;
  }
  const auto part = [&](std::string_view v) {
    return in.text(right ? std::string(v.rbegin(), v.rend()) : std::string(v));
  };
  std::vector<Value> parts;
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t hit = text::find_text(s, separator);
    if (hit == std::string_view::npos || in.meter().exhausted()) break;
    parts.push_back(part(s.substr(0, hit)));
    s = s.substr(hit + separator.size());
  }
  parts.push_back(part(s));
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
      parts.push_back(in.text(std::string(s.substr(at))));
      break;
    }
    const std::size_t begin = at;
    while (at < s.size() && !space_at(at, length)) at += length;
    parts.push_back(in.text(std::string(s.substr(begin, at - begin))));
  }
  return in.list(std::move(parts));
}

template <bool kFromRight>
Result<Value> split(Interpreter& in, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::int64_t limit, args.integer(1, "maxsplit", -1));
  const Value* separator = args.get(0, "sep");
  if (separator == nullptr || separator->is_none()) {
    if (kFromRight && limit >= 0) return complain("rsplit with a limit and no separator", "a separator");
    return split_words(in, s, limit);
  }
  if (!separator->is_string()) return complain(fmt::format("{} as separator", separator->type_name()), "a text");
  return split_at(in, s, separator->text(), limit, kFromRight);
}

Result<Value> split_lines(Interpreter& in, const std::string& s, const Arguments& args) {
  const Value* keepends = args.get(0, "keepends");
  std::vector<Value> lines;
  for (const std::string_view line : lines_of(s, keepends != nullptr && keepends->truthy(), in.meter())) {
    if (in.meter().exhausted()) break;
    lines.push_back(in.text(std::string(line)));
  }
  return in.list(std::move(lines));
}

template <bool kBegins>
Result<Value> begins_or_ends(Interpreter& in, const std::string& s, const Arguments& args) {
  const Value* what = args.get(0);
  if (what == nullptr) return complain("no argument for startswith or endswith", "a text");
  const List* tuple = what->list() != nullptr && what->list()->kind == ListKind::kTuple ? what->list() : nullptr;
  for (const Value& option : tuple != nullptr ? std::span<const Value>(tuple->items) : std::span(what, 1)) {
    if (!option.is_string())
      return complain(fmt::format("{} for startswith or endswith", option.type_name()), "a text or a tuple of texts");
    if (!in.meter().spend_steps(1 + std::min(s.size(), option.text().size()) / 64)) return Value(false);
    if (kBegins ? s.starts_with(option.text()) : s.ends_with(option.text())) return Value(true);
  }
  return Value(false);
}

Result<Value> replace(Interpreter& in, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view from, text_argument(args, 0, "replace"));
  LOWBIT_TRY_ASSIGN(const std::string_view to, text_argument(args, 1, "replace"));
  LOWBIT_TRY_ASSIGN(const std::int64_t count, args.integer(2, "count", -1));
  return Value(replace_text(in, s, from, to, count));
}

Result<Value> join(Interpreter& in, const std::string& s, const Arguments& args) {
  return in.apply_filter("join", args.get(0) != nullptr ? *args.get(0) : Value(), {{Value(s)}, {}});
}

template <bool kPrefix>
Result<Value> remove_affix(Interpreter& in, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view part, text_argument(args, 0, kPrefix ? "removeprefix" : "removesuffix"));
  if (kPrefix) return in.text(s.starts_with(part) ? s.substr(part.size()) : s);
  return in.text(s.ends_with(part) ? s.substr(0, s.size() - part.size()) : s);
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

Result<Value> zero_fill(Interpreter& in, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::int64_t width, args.integer(0, "width", 0));
  const auto n = static_cast<std::int64_t>(count_characters(s));
  if (width <= n) return in.text(s);
  if (!in.meter().spend_bytes(static_cast<std::size_t>(width - n))) return Value();
  const std::size_t sign = s.starts_with('-') || s.starts_with('+') ? 1 : 0;
  return Value(s.substr(0, sign) + std::string(static_cast<std::size_t>(width - n), '0') + s.substr(sign));
}

template <bool kFromRight>
Result<Value> partition(Interpreter& in, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view separator, text_argument(args, 0, "partition"));
  if (separator.empty()) return complain("an empty separator", "a text");
  const std::size_t hit = kFromRight ? text::rfind_text(s, separator) : text::find_text(s, separator);
  const auto part = [&](std::string_view v) { return in.text(std::string(v)); };
  const std::string_view all = s;
  if (hit != std::string::npos)
    return in.list({part(all.substr(0, hit)), part(separator), part(all.substr(hit + separator.size()))},
                   ListKind::kTuple);
  if (kFromRight) return in.list({part(""), part(""), part(all)}, ListKind::kTuple);
  return in.list({part(all), part(""), part("")}, ListKind::kTuple);
}

/// The text that find and its like look for; they take no start here.
Result<std::string_view> wanted_text(const Arguments& args, const std::string& method) {
  if (args.get(1) != nullptr) return complain(fmt::format("a start for {}", method), "the text only");
  return text_argument(args, 0, method);
}

/// The characters before byte `hit`, or -1 for npos.
std::int64_t character_index(std::string_view s, std::size_t hit) {
  if (hit == std::string_view::npos) return -1;
  return static_cast<std::int64_t>(count_characters(s.substr(0, hit)));
}

template <bool kFromRight>
Result<Value> find(Interpreter&, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view wanted, wanted_text(args, "find"));
  return Value(character_index(s, kFromRight ? text::rfind_text(s, wanted) : text::find_text(s, wanted)));
}

Result<Value> index(Interpreter&, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view wanted, wanted_text(args, "index"));
  const std::int64_t at = character_index(s, text::find_text(s, wanted));
  if (at < 0) return complain("a text without the part that index looks for");
  return Value(at);
}

Result<Value> count(Interpreter&, const std::string& s, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::string_view wanted, wanted_text(args, "count"));
  if (wanted.empty()) return Value(static_cast<std::int64_t>(count_characters(s)) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = text::find_text(s, wanted, at)) != std::string::npos; at += wanted.size()) ++n;
  return Value(n);
}

template <bool (*kTest)(char32_t)>
Result<Value> every_character(Interpreter&, const std::string& s, const Arguments&) {
  bool all = !s.empty();
  for (std::size_t at = 0; at < s.size() && all;) {
    const text::CodePoint c = text::decode_utf8(s, at);
    all = c.length > 0 && kTest(c.value);
    at += std::max(c.length, 1);
  }
  return Value(all);
}

/// Some letter has a case, and none the wrong one.
template <std::string (*kSame)(std::string_view), std::string (*kOther)(std::string_view)>
Result<Value> has_case(Interpreter& in, const std::string& s, const Arguments&) {
  if (!in.meter().spend_text(6 * s.size())) return Value(false);
  return Value(s == kSame(s) && s != kOther(s));
}

using TextMethod = Result<Value> (*)(Interpreter&, const std::string& self, const Arguments&);

struct NamedTextMethod {
  std::string_view name;
  TextMethod method;
};

constexpr NamedTextMethod kTextMethods[] = {
    {"capitalize", changed<capitalize_text>},
    {"casefold", changed<fold_case_text>},
    {"count", count},
    {"endswith", begins_or_ends<false>},
    {"find", find<false>},
    {"format", format_text},
    {"index", index},
    {"isalnum", every_character<is_letter_or_number>},
    {"isalpha", every_character<is_letter>},
    {"isdecimal", every_character<is_decimal>},
    {"isdigit", every_character<is_digit>},
    {"islower", has_case<lower_text, upper_text>},
    {"isnumeric", every_character<is_numeric>},
    {"isspace", every_character<is_python_space>},
    {"isupper", has_case<upper_text, lower_text>},
    {"join", join},
    {"lower", changed<lower_text>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", find<true>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", split_lines},
    {"startswith", begins_or_ends<true>},
    {"strip", strip<true, true>},
    {"swapcase", changed<swap_case_text>},
    {"title", changed<title_text>},
    {"upper", changed<upper_text>},
    {"zfill", zero_fill},
};

TextMethod find_text_method(std::string_view name) {
  for (const auto& [known, method] : kTextMethods)
    if (name == known) return method;
  return nullptr;
}

}  // namespace

bool has_text_method(std::string_view name) { return find_text_method(name) != nullptr; }

Result<Value> call_text_method(Interpreter& in, const std::string& self, std::string_view name, const Arguments& args) {
  // startswith and endswith look at what they compare only, and count that themselves.
  if (name != "startswith" && name != "endswith") {
    in.meter().spend_text(self.size());
    in.read_texts(Value(), args);
  }
  if (in.meter().exhausted()) return Value();
  return find_text_method(name)(in, self, args);
}

}  // namespace lowbit::jinja
