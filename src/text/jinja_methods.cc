// The methods of dicts, lists and loops that templates call, with Python's meaning. Lists have none that leave them
// unchanged and that templates use, except index and count.

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "text/jinja_methods.h"

namespace lowbit::jinja {
namespace {

constexpr std::string_view kDictMethods[] = {"items", "get", "keys", "values"};
constexpr std::string_view kListMethods[] = {"index", "count"};
constexpr std::string_view kLoopMethods[] = {"cycle", "changed"};

template <std::size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result<Value> dict_method(Interpreter& in, const Dict& dict, const std::string& name, const Arguments& args) {
  if (name == "get") {
    const Value* key = args.get(0);
    if (key == nullptr) return complain("get without a key", "a key");
    if (key->is_string()) in.meter().spend_text(key->text().size());
    if (const Value* found = dict.find(*key)) return *found;
    const Value* fallback = args.get(1, "default");
    return fallback != nullptr ? *fallback : Value(None{});
  }
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      LOWBIT_TRY_ASSIGN(Value pair, in.list({key, value}, ListKind::kTuple));
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
  LOWBIT_TRY_ASSIGN(Value now, in.list(args.positional, ListKind::kTuple));
  const bool changed = !loop.has_changed || !equal(loop.changed, now, in.meter());
  loop.changed = std::move(now);
  loop.has_changed = true;
  return Value(changed);
}

Result<Arguments> escaped_texts(Interpreter& in, const Arguments& args) {
  const auto escaped = [&](const Value& v) -> Result<Value> {
    if (v.is_string()) return v.is_markup() ? v : in.apply_filter("escape", v, {});
    if (v.list() == nullptr) return v;
    std::vector<Value> items;
    for (const Value& item : v.list()->items) {
      LOWBIT_TRY_ASSIGN(Value text, item.is_string() ? in.apply_filter("escape", item, {}) : Result<Value>(item));
      items.push_back(std::move(text));
    }
    return in.list(std::move(items), v.list()->kind);
  };
  Arguments out;
  for (const Value& v : args.positional) {
    LOWBIT_TRY_ASSIGN(Value value, escaped(v));
    out.positional.push_back(std::move(value));
  }
  for (const auto& [name, v] : args.named) {
    LOWBIT_TRY_ASSIGN(Value value, escaped(v));
    out.named.emplace_back(name, std::move(value));
  }
  return out;
}

// Methods that keep a text escaped: what they give counts as escaped, and the texts they are given are escaped first.
constexpr std::string_view kMarkupMethods[] = {
    "capitalize", "casefold",   "format", "join",  "lower",    "lstrip", "partition", "removeprefix", "removesuffix",
    "replace",    "rpartition", "rstrip", "strip", "swapcase", "title",  "upper",     "zfill"};
constexpr std::string_view kMarkupSplits[] = {"rsplit", "split", "splitlines"};  // these take their separator as it is

Result<Value> call_markup_method(Interpreter& in, const Value& self, const std::string& name, const Arguments& args) {
  const bool escapes = is_one_of(kMarkupMethods, name);
  if (!escapes && !is_one_of(kMarkupSplits, name)) return call_text_method(in, self.text(), name, args);
  LOWBIT_TRY_ASSIGN(const Arguments used, escapes ? escaped_texts(in, args) : Result<Arguments>(args));
  LOWBIT_TRY_ASSIGN(const Value out, call_text_method(in, self.text(), name, used));
  if (out.is_string()) return in.text(out.text(), /*markup=*/true);
  if (out.list() == nullptr) return out;
  std::vector<Value> parts;
  for (const Value& part : out.list()->items) parts.push_back(in.text(part.text(), /*markup=*/true));
  return in.list(std::move(parts), out.list()->kind);
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  if (self.is_string()) return has_text_method(name);
  if (self.dict() != nullptr) return is_one_of(kDictMethods, name);
  if (self.list() != nullptr) return is_one_of(kListMethods, name);
  return self.loop() != nullptr && is_one_of(kLoopMethods, name);
}

Result<Value> call_method(Interpreter& in, const Value& self, const std::string& name, const Arguments& args) {
  if (self.is_markup()) return call_markup_method(in, self, name, args);
  if (self.is_string()) return call_text_method(in, self.text(), name, args);
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
