// The methods of dicts, lists and loops that templates call, with Python's meaning. Lists have none that leave them unchanged
// and that templates use, except index and count.

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

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  if (self.is_string()) return has_text_method(name);
  if (self.dict() != nullptr) return is_one_of(kDictMethods, name);
  if (self.list() != nullptr) return is_one_of(kListMethods, name);
  return self.loop() != nullptr && is_one_of(kLoopMethods, name);
}

Result<Value> call_method(Interpreter& in, const Value& self, const std::string& name, const Arguments& args) {
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
