// The filters of lists: what `value | name(...)` does with items.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/try.h"
#include "text/jinja_filters.h"
#include "text/jinja_text.h"

namespace lowbit::jinja {
namespace {

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
    if (!in.meter().spend_bytes(s.size() + between.size()) || !in.meter().spend_text(between.size())) return Value();
    if (i > 0) out += between;
    out += s;
  }
  return in.text(std::move(out));
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
  if (v.is_undefined()) return in.list({}, ListKind::kGenerator);
  if (v.dict() == nullptr) return complain(fmt::format("items of {}", v.type_name()), "a dict");
  LOWBIT_TRY_ASSIGN(const Value pairs, call_method(in, v, "items", {}));
  return in.list(pairs.list()->items, ListKind::kGenerator);
}

Result<Value> reverse(Interpreter& in, const Value& v, const Arguments&) {
  LOWBIT_TRY_ASSIGN(std::vector<Value> parts, in.items_of(v));
  std::reverse(parts.begin(), parts.end());
  if (!v.is_string()) return in.list(std::move(parts), ListKind::kGenerator);
  std::string out;
  for (const Value& part : parts) out += part.text();
  return in.text(std::move(out));
}

/// The key by which an item is compared: itself or its attribute, in lower case unless case matters.
Result<Value> key_of(Interpreter& in, const Value& item, const Value* path, bool case_sensitive) {
  const bool has_path = path != nullptr && !path->is_none();
  LOWBIT_TRY_ASSIGN(Value key, has_path ? attribute_path(in, item, *path) : Result<Value>(item));
  return !case_sensitive && key.is_string() ? in.text(lower_text(key.text())) : key;
}

// Sorts by key(item); the order of equal ones stays.
template <class Key>
Result<std::vector<Value>> sorted(Interpreter& in, std::vector<Value> items, bool backwards, Key key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    LOWBIT_TRY_ASSIGN(Value k, key(item));
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
  const bool case_sensitive = args.flag(1, "case_sensitive", false);
  const auto key = [&](const Value& item) { return key_of(in, item, path, case_sensitive); };
  LOWBIT_TRY_ASSIGN(items, sorted(in, std::move(items), args.flag(0, "reverse", false), key));
  return in.list(std::move(items));
}

Result<Value> dictsort(Interpreter& in, const Value& v, const Arguments& args) {
  if (v.dict() == nullptr) return complain(fmt::format("dictsort of {}", v.type_name()), "a dict");
  LOWBIT_TRY_ASSIGN(const Value pairs, call_method(in, v, "items", {}));
  const Value* by = args.get(1, "by");
  const Value part(std::int64_t{by != nullptr && by->is_string() && by->text() == "value"});
  const bool case_sensitive = args.flag(0, "case_sensitive", false);
  const auto key = [&](const Value& item) { return key_of(in, item, &part, case_sensitive); };
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, sorted(in, pairs.list()->items, args.flag(2, "reverse", false), key));
  return in.list(std::move(items));
}

Result<Value> unique(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const bool case_sensitive = args.flag(0, "case_sensitive", false);
  const Value* path = args.get(1, "attribute");
  std::vector<Value> out, seen;
  for (const Value& item : items) {
    LOWBIT_TRY_ASSIGN(const Value key, key_of(in, item, path, case_sensitive));
    if (in.meter().exhausted()) break;
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(s, key, in.meter()); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return in.list(std::move(out), ListKind::kGenerator);
}

// The arguments behind the first n.
Arguments behind(const Arguments& args, std::size_t n) {
  Arguments out = args;
  out.positional.erase(out.positional.begin(),
                       out.positional.begin() + static_cast<std::ptrdiff_t>(std::min(n, out.positional.size())));
  return out;
}

Result<Value> map(Interpreter& in, const Value& v, const Arguments& args) {
  if (v.is_none()) return in.list({}, ListKind::kGenerator);  // as jinja2, for these five filters only
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  const Value* path = args.positional.empty() ? args.get(Arguments::kNamedOnly, "attribute") : nullptr;
  const Value* otherwise = args.get(Arguments::kNamedOnly, "default");
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
  return in.list(std::move(out), ListKind::kGenerator);
}

// select, reject (by_attribute = false), selectattr, rejectattr.
Result<Value> choose(Interpreter& in, const Value& v, const Arguments& args, bool keep, bool by_attribute) {
  if (v.is_none()) return in.list({}, ListKind::kGenerator);
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
  return in.list(std::move(out), ListKind::kGenerator);
}

Result<Value> select(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, false); }
Result<Value> reject(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, false); }
Result<Value> selectattr(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, true, true); }
Result<Value> rejectattr(Interpreter& in, const Value& v, const Arguments& a) { return choose(in, v, a, false, true); }

template <bool kLargest>
Result<Value> extreme(Interpreter& in, const Value& v, const Arguments& args) {
  LOWBIT_TRY_ASSIGN(const std::vector<Value> items, in.items_of(v));
  if (items.empty()) return Value::undefined("the extreme of nothing");
  const bool case_sensitive = args.flag(0, "case_sensitive", false);
  const Value* path = args.get(1, "attribute");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    LOWBIT_TRY_ASSIGN(Value key, key_of(in, item, path, case_sensitive));
    LOWBIT_TRY_ASSIGN(const int order,
                      best == nullptr ? Result<int>(kLargest ? 1 : -1) : compare(key, best_key, in.meter()));
    if (kLargest ? order <= 0 : order >= 0) continue;
    best = &item;
    best_key = std::move(key);
  }
  return *best;
}

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

constexpr NamedFilter kListFilters[] = {
    {"dictsort", dictsort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"list", list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"reverse", reverse},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const NamedFilter> list_filters() { return kListFilters; }

}  // namespace lowbit::jinja
