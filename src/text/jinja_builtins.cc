// The functions that every template sees.

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/try.h"
#include "text/jinja_eval.h"

namespace lowbit::jinja {
namespace {

constexpr std::string_view kBuiltins[] = {"namespace", "range", "dict", "raise_exception", "strftime_now"};
constexpr std::int64_t kMaxRange = 100'000;  // as Jinja's sandbox

Result<Dict> dict_of(Interpreter& in, const Arguments& args) {
  Dict out;
  if (const Value* from = args.get(0)) {
    if (from->dict() == nullptr) return complain(fmt::format("{}", from->type_name()), "a dict or name=value");
    if (!in.meter().spend_bytes(from->dict()->entries.size() * kEntryBytes)) return out;
    out = *from->dict();
  }
  for (const auto& [name, value] : args.named) out.set(Value(name), value);
  return out;
}

Result<Value> range(Interpreter& in, const Arguments& args) {
  std::int64_t part[3] = {0, 0, 1};
  const std::size_t n = args.positional.size();
  if (n < 1 || n > 3) return complain(fmt::format("range with {} arguments", n), "1 to 3");
  for (std::size_t i = 0; i < n; ++i) {
    if (!args.positional[i].is_integer())
      return complain(fmt::format("range of {}", args.positional[i].type_name()), "whole numbers");
    part[n == 1 ? 1 : i] = args.positional[i].integer();
  }
  const auto [start, stop, step] = part;
  if (step == 0) return complain("range with step 0", "another step");
  std::vector<Value> out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<std::int64_t>(out.size()) == kMaxRange)
      return complain("a range too long", fmt::format("at most {}", kMaxRange));
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.list(std::move(out));
}

Result<Value> time_text(Interpreter& in, const Arguments& args) {
  const Value* format = args.get(0);
  if (format == nullptr || !format->is_string()) return complain("strftime_now without a format", "a text");
  if (format->text().size() > 1000) return complain("a time format of over 1000 bytes", "a short one");
  const std::time_t now = in.now() ? static_cast<std::time_t>(*in.now()) : std::time(nullptr);
  std::tm parts{};
  const std::tm* done = in.now() ? gmtime_r(&now, &parts) : localtime_r(&now, &parts);
  if (done == nullptr) return complain("a time that has no date");
  std::string buffer(16 * 1024, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), format->text().c_str(), &parts));
  return in.text(std::move(buffer));
}

}  // namespace

bool is_builtin(std::string_view name) {
  return std::find(std::begin(kBuiltins), std::end(kBuiltins), name) != std::end(kBuiltins);
}

Result<Value> call_builtin(Interpreter& in, const std::string& name, const Arguments& args) {
  if (name == "namespace") {
    LOWBIT_TRY_ASSIGN(Dict attributes, dict_of(in, args));
    return in.new_namespace(std::move(attributes));
  }
  if (name == "dict") {
    LOWBIT_TRY_ASSIGN(Dict dict, dict_of(in, args));
    in.meter().spend_bytes(dict.entries.size() * kEntryBytes);
    return make_dict(std::move(dict));
  }
  if (name == "range") return range(in, args);
  if (name == "strftime_now") return time_text(in, args);
  const Value* message = args.get(0, "message");
  return complain(message != nullptr ? to_text(*message, in.meter()) : "raise_exception");
}

}  // namespace lowbit::jinja
