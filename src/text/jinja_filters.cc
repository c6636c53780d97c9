// `value | name(...)`: the filters of single values, and how a name finds its filter.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja_filters.h"
#include "text/jinja_json.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

// The result of a filter on a text: one that counted as escaped still does.
Value same_kind(Interpreter& in, const Value& v, std::string s) { return in.text(std::move(s), v.is_markup()); }

template <std::string (*kChange)(std::string_view)>
Result<Value> changed(Interpreter& in, const Value& v, const Arguments&) {
  const std::string s = to_text(v, in.meter());
  if (!in.meter().spend_text(3 * s.size())) return Value();
  return same_kind(in, v, kChange(s));
}

Result<Value> trim(Interpreter& in, const Value& v, const Arguments& args) {
  const Value* characters = args.get(0, "chars");
  const bool given = characters != nullptr && characters->is_string();
  if (given && characters->text().empty()) return same_kind(in, v, to_text(v, in.meter()));
  return same_kind(in, v, strip_text(to_text(v, in.meter()), given ? characters->text() : "", true, true));
}

Result<Value> length(Interpreter&, const Value& v, const Arguments&) {
  if (v.is_string()) {
    return Value(static_cast<std::int64_t>(count_characters(v.text())));
  }
  if (v.list() != nullptr && v.list()->kind != ListKind::kGenerator)
    return Value(static_cast<std::int64_t>(v.list()->items.size()));
  if (v.dict() != nullptr) return Value(static_cast<std::int64_t>(v.dict()->entries.size()));
  if (v.is_undefined()) return Value(std::int64_t{0});
  return complain(fmt::format("length of {}", v.type_name()), "a text, list or dict");
}

// Unlike the method: words are what lies between white space, '-' and opening brackets.
Result<Value> title(Interpreter& in, const Value& v, const Arguments&) {
  std::string out, word;
  const auto end_word = [&] {
    out += capitalize_text(word);
    word.clear();
  };
  const std::string s = to_text(v, in.meter());
  if (!in.meter().spend_text(3 * s.size())) return Value();
  for (std::size_t at = 0; at < s.size();) {
    const text::CodePoint c = text::decode_utf8(s, at);
    const std::string_view bytes = std::string_view(s).substr(at, static_cast<std::size_t>(std::max(c.length, 1)));
    const bool ends =
        c.length > 0 && (is_python_space(c.value) || std::string_view("-({[<").find(bytes) != std::string_view::npos);
    if (ends) end_word();
    (ends ? out : word) += bytes;
    at += bytes.size();
  }
  end_word();
  return in.text(std::move(out));  // jinja2 builds a new text here: one that counted as escaped no longer does
}

Result<Value> string(Interpreter& in, const Value& v, const Arguments&) {
  return v.is_string() ? v : in.text(to_text(v, in.meter()));
}

Result<Value> safe(Interpreter& in, const Value& v, const Arguments&) {
  return in.text(to_text(v, in.meter()), /*markup=*/true);
}

Result<Value> escape(Interpreter& in, const Value& v, const Arguments&) {
  if (v.is_markup()) return v;
  return in.text(escape_text(in, to_text(v, in.meter())), /*markup=*/true);
}

Result<Value> tojson(Interpreter& in, const Value& v, const Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = args.flag(Arguments::kNamedOnly, "ensure_ascii", false);
  style.sort_keys = args.flag(Arguments::kNamedOnly, "sort_keys", false);
  // transformers' signature: tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
  const Value* indent = args.get(Arguments::kNamedOnly, "indent");
  if (indent == nullptr) indent = args.get(1);
  if (!args.positional.empty()) style.ensure_ascii = args.positional[0].truthy();
  if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_integer() || indent->integer() < 0 || indent->integer() > 64)
      return complain("indent of tojson", "0 to 64");
    style.indent = static_cast<int>(indent->integer());
    style.item_separator = ",";
  }
  if (const Value* separators = args.get(2, "separators"); separators != nullptr && !separators->is_none()) {
    const List* pair = separators->list();
    if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].is_string() || !pair->items[1].is_string())
      return complain("separators of tojson", "two texts");
    style.item_separator = pair->items[0].text();
    style.key_separator = pair->items[1].text();
    // Bounds what a long separator can make of many items.
    if (style.item_separator.size() > 64 || style.key_separator.size() > 64)
      return complain("separators of tojson", "short texts");
  }
  LOWBIT_TRY_ASSIGN(std::string out, to_json(v, style, in.meter()));
  return in.text(std::move(out));
}

Result<Value> replace(Interpreter& in, const Value& v, const Arguments& args) {
  const Value *from = args.get(0, "old"), *to = args.get(1, "new");
  if (from == nullptr || to == nullptr) return complain("replace without two texts", "replace(old, new)");
  LOWBIT_TRY_ASSIGN(const std::int64_t count, args.integer(2, "count", -1));
  return Value(replace_text(in, to_text(v, in.meter()), to_text(*from, in.meter()), to_text(*to, in.meter()), count));
}

Result<Value> fallback(Interpreter&, const Value& v, const Arguments& args) {
  const Value* other = args.get(0, "default_value");
  const bool use = v.is_undefined() || (args.flag(1, "boolean", false) && !v.truthy());
  if (!use) return v;
  return other != nullptr ? *other : Value(std::string());
}

/// A number's text as Python's int() and float() take it: white space around it, a plus before it.
std::string number_text(const std::string& s) {
  std::string number = strip_text(s, {}, true, true);
  if (number.starts_with('+') && !number.starts_with("+-")) number.erase(0, 1);
  return number;
}

Result<Value> to_int(Interpreter&, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::int64_t otherwise, args.integer(0, "default", 0));
  if (v.is_integer()) return Value(v.integer());
  double d = 0;
  if (v.is_string()) {
    const std::string s = number_text(v.text());
    std::int64_t i = 0;
    if (const auto r = std::from_chars(s.data(), s.data() + s.size(), i);
        r.ec == std::errc() && r.ptr == s.data() + s.size())
      return Value(i);
    const auto r = std::from_chars(s.data(), s.data() + s.size(), d);
    if (r.ec != std::errc() || r.ptr != s.data() + s.size()) return Value(otherwise);
  } else if (const double* f = v.as<double>()) {
    d = *f;
  } else {
    return Value(otherwise);
  }
  if (std::isnan(d)) return Value(otherwise);
  if (!(std::fabs(d) < 9e18)) return complain(fmt::format("{:g} as an integer", d), "one of 64 bits");
  return Value(static_cast<std::int64_t>(d));
}

Result<Value> to_float(Interpreter&, const Value& v, const Arguments& args) {
  const Value* otherwise = args.get(0, "default");
  if (v.is_number()) return Value(v.number());
  if (v.is_string()) {
    const std::string s = number_text(v.text());
    double d = 0;
    const auto r = std::from_chars(s.data(), s.data() + s.size(), d);
    if (r.ec == std::errc() && r.ptr == s.data() + s.size()) return Value(d);
  }
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

Result<Value> absolute(Interpreter&, const Value& v, const Arguments&) {
  if (!v.is_number()) return complain(fmt::format("abs of {}", v.type_name()), "a number");
  if (v.is_integer() && v.integer() != INT64_MIN) return Value(std::abs(v.integer()));
  return Value(std::fabs(v.number()));
}

Result<Value> indent(Interpreter& in, const Value& v, const Arguments& args) {
  const Value* width = args.get(0, "width");
  std::string pad(4, ' ');
  if (width != nullptr && width->is_string()) pad = width->text();
  if (width != nullptr && width->is_integer()) {
    if (width->integer() < 0 || width->integer() > 1000) return complain("width of indent", "0 to 1000");
    pad.assign(static_cast<std::size_t>(width->integer()), ' ');
  }
  const bool first_too = args.flag(1, "first", false), blank_too = args.flag(2, "blank", false);
  const std::string s = to_text(v, in.meter()) + "\n";
  const std::vector<std::string_view> lines = lines_of(s, false, in.meter());
  if (!in.meter().spend_bytes(s.size() + lines.size() * pad.size())) return Value();
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 ? !lines[i].empty() || blank_too : first_too) out += pad;
    out += lines[i];
  }
  return v.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
}

constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"capitalize", changed<capitalize_text>},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"e", escape},
    {"escape", escape},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"length", length},
    {"lower", changed<lower_text>},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", changed<upper_text>},
};

Filter find_filter(std::string_view name) {
  for (const std::span<const NamedFilter> filters : {std::span<const NamedFilter>(kFilters), list_filters()})
    for (const auto& [known, filter] : filters)
      if (name == known) return filter;
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

void Interpreter::read_texts(const Value& value, const Arguments& args) {
  const auto read = [&](const Value& v) {
    if (v.is_string()) meter_.spend_text(v.text().size());
  };
  read(value);
  for (const Value& v : args.positional) read(v);
  for (const auto& [name, v] : args.named) read(v);
}

Result<Value> Interpreter::apply_filter(const std::string& name, const Value& input, const Arguments& args) {
  read_texts(input, args);
  if (meter_.exhausted()) return Value();
  if (const Filter filter = find_filter(name)) return filter(*this, input, args);
  return fail(ErrorCode::kUnsupported, "", fmt::format("the filter '{:.40}'", name),
              "a filter that chat templates use");
}

}  // namespace lowbit::jinja
