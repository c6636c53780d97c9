// `value | name(...)`.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_json.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

using Filter = Result<Value> (*)(Interpreter&, const Value&, const Arguments&);

Result<std::int64_t> whole(const Arguments& args, std::size_t i, std::string_view name, std::int64_t fallback) {
  const Value* v = args.get(i, name);
  if (v == nullptr || v->is_none()) return fallback;
  if (!v->is_integer()) return complain(fmt::format("{} for '{}'", v->type_name(), name), "a whole number");
  return v->integer();
}

bool flag(const Arguments& args, std::size_t i, std::string_view name, bool fallback) {
  const Value* v = args.get(i, name);
  return v != nullptr ? v->truthy() : fallback;
}

Result<Value> trim(Interpreter& in, const Value& v, const Arguments& args) {
  const Value* characters = args.get(0, "chars");
  const std::string which = characters != nullptr && characters->is_string() ? characters->text() : "";
  return in.text(strip_text(to_text(v, in.meter()), which, true, true));
}

Result<Value> length(Interpreter& in, const Value& v, const Arguments&) {
  if (v.is_string()) {
    in.meter().spend_steps(v.text().size() / 256);
    return Value(static_cast<std::int64_t>(count_characters(v.text())));
  }
  if (v.list() != nullptr) return Value(static_cast<std::int64_t>(v.list()->items.size()));
  if (v.dict() != nullptr) return Value(static_cast<std::int64_t>(v.dict()->entries.size()));
  if (v.is_undefined()) return Value(std::int64_t{0});
  return complain(fmt::format("length of {}", v.type_name()), "a text, list or dict");
}

Result<Value> upper(Interpreter& in, const Value& v, const Arguments&) {
  return in.text(upper_text(to_text(v, in.meter())));
}
Result<Value> lower(Interpreter& in, const Value& v, const Arguments&) {
  return in.text(lower_text(to_text(v, in.meter())));
}
// Unlike the method: words are what lies between white space, '-' and opening brackets.
Result<Value> title(Interpreter& in, const Value& v, const Arguments&) {
  std::string out, word;
  const auto end_word = [&] {
    out += capitalize_text(word);
    word.clear();
  };
  for (const char c : to_text(v, in.meter())) {
    if (std::string_view(" \t\n\r\v\f-({[<").find(c) == std::string_view::npos) {
      word += c;
    } else {
      end_word();
      out += c;
    }
  }
  end_word();
  return in.text(std::move(out));
}

Result<Value> capitalize(Interpreter& in, const Value& v, const Arguments&) {
  return in.text(capitalize_text(to_text(v, in.meter())));
}
Result<Value> string(Interpreter& in, const Value& v, const Arguments&) { return in.text(to_text(v, in.meter())); }
Result<Value> safe(Interpreter&, const Value& v, const Arguments&) { return v; }

Result<Value> escape(Interpreter& in, const Value& v, const Arguments&) {
  std::string s = to_text(v, in.meter());
  constexpr std::pair<const char*, const char*> kEscapes[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  for (const auto& [from, to] : kEscapes) s = replace_text(in, s, from, to, -1);
  return Value(std::move(s));
}

Result<Value> tojson(Interpreter& in, const Value& v, const Arguments& args) {
  JsonStyle style;
  style.ensure_ascii = flag(args, ~std::size_t{0}, "ensure_ascii", false);
  style.sort_keys = flag(args, ~std::size_t{0}, "sort_keys", false);
  // transformers' signature: tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
  const Value* indent = args.get(~std::size_t{0}, "indent");
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

Result<Value> attribute_path(Interpreter& in, Value v, const Value& path) {
  if (path.is_integer()) return in.item(v, path);
  std::string_view rest = path.is_string() ? std::string_view(path.text()) : std::string_view();
  while (!rest.empty()) {
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool numeric = error == std::errc() && end == part.data() + part.size();
    LOWBIT_TRY_ASSIGN(v, in.item(v, numeric ? Value(index) : Value(part)));
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  }
  return v;
}

Result<Value> join(Interpreter& in, const Value& v, const Arguments& args) {
  const Value* separator = args.get(0, "d");
  const Value* path = args.get(1, "attribute");
  const std::string between = separator != nullptr ? to_text(*separator, in.meter()) : "";
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Value part = items[i];
    if (path != nullptr && !path->is_none()) {
      LOWBIT_TRY_ASSIGN(part, attribute_path(in, part, *path));
    }
    const std::string s = to_text(part, in.meter());
    if (!in.meter().spend_bytes(s.size() + between.size())) return Value();
    if (i > 0) out += between;
    out += s;
  }
  return in.text(std::move(out));
}

Result<Value> replace(Interpreter& in, const Value& v, const Arguments& args) {
  const Value *from = args.get(0, "old"), *to = args.get(1, "new");
  if (from == nullptr || to == nullptr) return complain("replace without two texts", "replace(old, new)");
  LOWBIT_TRY_ASSIGN(const std::int64_t count, whole(args, 2, "count", -1));
  return Value(replace_text(in, to_text(v, in.meter()), to_text(*from, in.meter()), to_text(*to, in.meter()), count));
}

Result<Value> fallback(Interpreter&, const Value& v, const Arguments& args) {
  const Value* other = args.get(0, "default_value");
  const bool use = v.is_undefined() || (flag(args, 1, "boolean", false) && !v.truthy());
  if (!use) return v;
  return other != nullptr ? *other : Value(std::string());
}

Result<Value> first(Interpreter& in, const Value& v, const Arguments&) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  return items.empty() ? Value::undefined("the first item of nothing") : items.front();
}

Result<Value> last(Interpreter& in, const Value& v, const Arguments&) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  return items.empty() ? Value::undefined("the last item of nothing") : items.back();
}

Result<Value> list(Interpreter& in, const Value& v, const Arguments&) {
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, in.items_of(v));
  return in.list(std::move(items));
}

Result<Value> items(Interpreter& in, const Value& v, const Arguments&) {
  if (v.is_undefined()) return in.list({});
  if (v.dict() == nullptr) return complain(fmt::format("items of {}", v.type_name()), "a dict");
  return call_method(in, v, "items", {});
}

Result<Value> reverse(Interpreter& in, const Value& v, const Arguments&) {
  LOWBIT_TRY_ASSIGN(std::vector<Value> parts, in.items_of(v));
  std::reverse(parts.begin(), parts.end());
  if (!v.is_string()) return in.list(std::move(parts));
  std::string out;
  for (const Value& part : parts) out += part.text();
  return in.text(std::move(out));
}

// Sorts by key(item); the order of equal ones stays.
template <class Key>
Result<std::vector<Value>> sorted(Interpreter& in, std::vector<Value> items, bool backwards, bool case_sensitive,
                                  Key key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    LOWBIT_TRY_ASSIGN(Value k, key(item));
    if (!case_sensitive && k.is_string()) k = in.text(lower_text(k.text()));
    keyed.emplace_back(std::move(k), std::move(item));
  }
  in.meter().spend_steps(keyed.size() * 16);
  std::optional<Error> error;
  const auto less = [&](const Value& a, const Value& b) {
    if (error || in.meter().exhausted()) return false;
    const Result<int> order = compare(a, b, in.meter());
    if (!order) error = order.error();
    return order && *order < 0;
  };
  // The comparison may turn constant in the middle of a sort (an error), which std::sort must not meet: merge sort
  // with checks only reads positions that exist.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return backwards ? less(b.first, a.first) : less(a.first, b.first);
  });
  if (error) return tl::unexpected<Error>(std::move(*error));
  std::vector<Value> out;
  for (auto& entry : keyed) out.push_back(std::move(entry.second));
  return out;
}

Result<Value> sort(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, in.items_of(v));
  const Value* path = args.get(2, "attribute");
  const bool has_path = path != nullptr && !path->is_none();
  LOWBIT_TRY_ASSIGN(items, sorted(in, std::move(items), flag(args, 0, "reverse", false),
                                  flag(args, 1, "case_sensitive", false), [&](const Value& item) {
                                    return has_path ? attribute_path(in, item, *path) : Result<Value>(item);
                                  }));
  return in.list(std::move(items));
}

Result<Value> dictsort(Interpreter& in, const Value& v, const Arguments& args) {
  if (v.dict() == nullptr) return complain(fmt::format("dictsort of {}", v.type_name()), "a dict");
  LOWBIT_TRY_ASSIGN(const Value pairs, call_method(in, v, "items", {}));
  const Value* by = args.get(1, "by");
  const std::int64_t part = by != nullptr && by->is_string() && by->text() == "value" ? 1 : 0;
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, sorted(in, pairs.list()->items, flag(args, 2, "reverse", false),
                                                     flag(args, 0, "case_sensitive", false),
                                                     [&](const Value& item) { return in.item(item, Value(part)); }));
  return in.list(std::move(items));
}

Result<Value> unique(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const bool case_sensitive = flag(args, 0, "case_sensitive", false);
  std::vector<Value> out, seen;
  for (const Value& item : items) {
    const Value key = !case_sensitive && item.is_string() ? in.text(lower_text(item.text())) : item;
    if (in.meter().exhausted()) break;
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key, in.meter()); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return in.list(std::move(out));
}

// The arguments behind the first n.
Arguments behind(const Arguments& args, std::size_t n) {
  Arguments out = args;
  out.positional.erase(out.positional.begin(),
                       out.positional.begin() + static_cast<std::ptrdiff_t>(std::min(n, out.positional.size())));
  return out;
}

Result<Value> map(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const Value* path = args.positional.empty() ? args.get(~std::size_t{0}, "attribute") : nullptr;
  const Value* otherwise = args.get(~std::size_t{0}, "default");
  if (path == nullptr && (args.positional.empty() || !args.positional[0].is_string()))
    return complain("map without a filter", "map('filter') or map(attribute='name')");
  std::vector<Value> out;
  for (const Value& item : items) {
    Value mapped;
    if (path != nullptr) {
      LOWBIT_TRY_ASSIGN(mapped, attribute_path(in, item, *path));
      if (mapped.is_undefined() && otherwise != nullptr) mapped = *otherwise;
    } else {
      LOWBIT_TRY_ASSIGN(mapped, in.apply_filter(args.positional[0].text(), item, behind(args, 1)));
    }
    if (!in.meter().spend_steps()) break;
    out.push_back(std::move(mapped));
  }
  return in.list(std::move(out));
}

// select, reject (by_attribute = false), selectattr, rejectattr.
Result<Value> choose(Interpreter& in, const Value& v, const Arguments& args, bool keep, bool by_attribute) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const std::size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty())
    return complain("selectattr or rejectattr without a name", "an attribute's name");
  const Value* test = args.get(test_at);
  if (test != nullptr && !test->is_string())
    return complain(fmt::format("{} as a test", test->type_name()), "a test's name");
  const Arguments rest = behind(args, test_at + 1);
  std::vector<Value> out;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      LOWBIT_TRY_ASSIGN(subject, attribute_path(in, item, args.positional[0]));
    }
    bool holds = subject.truthy();
    if (test != nullptr) {
      LOWBIT_TRY_ASSIGN(holds, in.apply_test(test->text(), subject, rest));
    }
    if (!in.meter().spend_steps()) break;
    if (holds == keep) out.push_back(item);
  }
  return in.list(std::move(out));
}

Result<Value> select(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, false); }
Result<Value> reject(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, false); }
Result<Value> selectattr(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, true); }
Result<Value> rejectattr(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, true); }

Result<Value> to_int(Interpreter&, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::int64_t otherwise, whole(args, 0, "default", 0));
  if (v.is_integer()) return Value(v.integer());
  double d = 0;
  if (v.is_string()) {
    const std::string s = strip_text(v.text(), {}, true, true);
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
  if (!(std::fabs(d) < 9e18)) return Value(otherwise);
  return Value(static_cast<std::int64_t>(d));
}

Result<Value> to_float(Interpreter&, const Value& v, const Arguments& args) {
  const Value* otherwise = args.get(0, "default");
  if (v.is_number()) return Value(v.number());
  if (v.is_string()) {
    const std::string s = strip_text(v.text(), {}, true, true);
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
  const bool first_too = flag(args, 1, "first", false), blank_too = flag(args, 2, "blank", false);
  const std::string s = to_text(v, in.meter());
  const auto lines = static_cast<std::size_t>(std::count(s.begin(), s.end(), '\n')) + 1;
  if (!in.meter().spend_bytes(s.size() + lines * pad.size())) return Value();
  std::string out;
  for (std::size_t at = 0, line = 0; at <= s.size(); ++line) {
    const std::size_t end = std::min(s.find('\n', at), s.size());
    if (line > 0) out += '\n';
    if ((line > 0 || first_too) && (end > at || blank_too)) out += pad;
    out.append(s, at, end - at);
    at = end + 1;
  }
  return Value(std::move(out));
}

Result<Value> extreme(Interpreter& in, const Value& v, bool largest) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  if (items.empty()) return Value::undefined("the extreme of nothing");
  Value best = items[0];
  for (const Value& item : items) {
    LOWBIT_TRY_ASSIGN(const int order, compare(item, best, in.meter()));
    if (largest ? order > 0 : order < 0) best = item;
  }
  return best;
}

Result<Value> smallest(Interpreter& in, const Value& v, const Arguments&) { return extreme(in, v, false); }
Result<Value> largest(Interpreter& in, const Value& v, const Arguments&) { return extreme(in, v, true); }

Result<Value> sum(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const Value* path = args.get(0, "attribute");
  double total = 0;
  bool integers = true;
  for (const Value& item : items) {
    Value part = item;
    if (path != nullptr && !path->is_none()) {
      LOWBIT_TRY_ASSIGN(part, attribute_path(in, item, *path));
    }
    if (!part.is_number()) return complain(fmt::format("sum with {}", part.type_name()), "numbers");
    integers = integers && part.is_integer();
    total += part.number();
  }
  if (integers && std::fabs(total) < 9e15) return Value(static_cast<std::int64_t>(total));
  return Value(total);
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", absolute},
    {"capitalize", capitalize},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"max", largest},
    {"min", smallest},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"safe", safe},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

}  // namespace

bool is_filter(std::string_view name) {
  return std::any_of(std::begin(kFilters), std::end(kFilters), [&](const auto& f) { return f.first == name; });
}

Result<Value> Interpreter::apply_filter(const std::string& name, const Value& input, const Arguments& args) {
  for (const auto& [known, filter] : kFilters)
    if (name == known) return filter(*this, input, args);
  return fail(ErrorCode::kUnsupported, "", fmt::format("the filter '{:.40}'", name),
              "a filter that chat templates use");
}

}  // namespace lowbit::jinja
