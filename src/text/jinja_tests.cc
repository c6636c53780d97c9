// `value is name`.

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

namespace lowbit::jinja {
namespace {

constexpr std::string_view kTests[] = {
    "defined", "undefined", "none",     "string", "mapping", "iterable",    "sequence", "number", "integer", "float",
    "boolean", "true",      "false",    "odd",    "even",    "in",          "equalto",  "eq",     "==",      "ne",
    "!=",      "lt",        "lessthan", "<",      "gt",      "greaterthan", ">",        "le",     "<=",      "ge",
    ">=",      "sameas",    "callable", "upper",  "lower",   "divisibleby", "filter",   "test"};

}  // namespace

bool is_test(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

Result<bool> Interpreter::apply_test(const std::string& name, const Value& v, const Arguments& args) {
  const bool is_bool = v.as<bool>() != nullptr;
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.dict() != nullptr;
  if (name == "iterable" || name == "sequence")
    return v.is_string() || v.list() != nullptr || v.dict() != nullptr || v.is_undefined() ||
           (name == "iterable" && v.loop() != nullptr);
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is_integer() && !is_bool;
  if (name == "float") return v.as<double>() != nullptr;
  if (name == "boolean") return is_bool;
  if (name == "true") return is_bool && v.truthy();
  if (name == "false") return is_bool && !v.truthy();
  if (name == "callable") return v.callable() != nullptr;
  if (name == "upper" || name == "lower") {
    const std::string s = to_text(v, meter_);
    const std::string other = name == "upper" ? lower_text(s) : upper_text(s);
    return s == (name == "upper" ? upper_text(s) : lower_text(s)) && s != other;
  }
  if (name == "odd" || name == "even") {
    if (!v.is_integer()) return complain(fmt::format("{} is {}", v.type_name(), name), "a whole number");
    return (v.integer() % 2 != 0) == (name == "odd");
  }
  if (!is_test(name))
    return fail(ErrorCode::kUnsupported, "", fmt::format("the test '{:.40}'", name), "a test of Jinja's own");
  const Value* other = args.get(0);
  if (other == nullptr) return complain(fmt::format("'is {}' without a value", name), "a value");
  if (name == "filter" || name == "test")
    return v.is_string() && (name == "filter" ? is_filter(v.text()) : is_test(v.text()));
  if (name == "in") return contains(*other, v);
  if (name == "divisibleby") {
    if (!v.is_integer() || !other->is_integer() || other->integer() == 0 || other->integer() == -1)
      return complain("'is divisibleby' of these values", "whole numbers");
    return v.integer() % other->integer() == 0;
  }
  if (name == "equalto" || name == "eq" || name == "==") return equal(v, *other, meter_);
  if (name == "ne" || name == "!=") return !equal(v, *other, meter_);
  if (name == "sameas") {
    const bool same_type = std::string_view(v.type_name()) == other->type_name();
    return same_type && equal(v, *other, meter_);
  }
  LOWBIT_TRY_ASSIGN(const int order, compare(v, *other, meter_));
  if (name == "lt" || name == "lessthan" || name == "<") return order < 0;
  if (name == "gt" || name == "greaterthan" || name == ">") return order > 0;
  if (name == "le" || name == "<=") return order <= 0;
  return order >= 0;
}

}  // namespace lowbit::jinja
