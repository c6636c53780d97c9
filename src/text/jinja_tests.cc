// `value is name(...)`.

#include <fmt/format.h>

#include <functional>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"

namespace lowbit::jinja {
namespace {

/// `other` is the value that the name is followed by; null only for tests of one value.
using Test = Result<bool> (*)(Interpreter&, const Value& v, const Value* other);

struct NamedTest {
  std::string_view name;
  Test test;
  bool compares = false;  // with another value
};

bool is_bool(const Value& v) { return v.as<bool>() != nullptr; }

bool is_sequence(const Value& v) {
  const bool has_places = v.list() != nullptr && v.list()->kind != ListKind::kGenerator;
  return v.is_string() || has_places || v.dict() != nullptr || v.is_undefined();
}

bool is_iterable(const Value& v) { return is_sequence(v) || v.list() != nullptr || v.loop() != nullptr; }

/// Some letter has a case, and none the wrong one.
template <std::string (*kSame)(std::string_view), std::string (*kOther)(std::string_view)>
Result<bool> has_case(Interpreter& in, const Value& v, const Value*) {
  const std::string s = to_text(v, in.meter());
  if (!in.meter().spend_text(12 * s.size())) return false;
  return s == kSame(s) && kSame(s) != kOther(s);
}

template <bool kOdd>
Result<bool> has_parity(Interpreter&, const Value& v, const Value*) {
  if (!v.is_integer()) return complain(fmt::format("{} is {}", v.type_name(), kOdd ? "odd" : "even"), "a whole number");
  return (v.integer() % 2 != 0) == kOdd;
}

Result<bool> is_divisible(Interpreter&, const Value& v, const Value* by) {
  if (!v.is_integer() || !by->is_integer() || by->integer() == 0 || by->integer() == -1)
    return complain("'is divisibleby' of these values", "whole numbers");
  return v.integer() % by->integer() == 0;
}

Result<bool> is_same(Interpreter& in, const Value& v, const Value* other) {
  return std::string_view(v.type_name()) == other->type_name() && equal(v, *other, in.meter());
}

template <bool kWanted>
Result<bool> is_equal(Interpreter& in, const Value& v, const Value* other) {
  return equal(v, *other, in.meter()) == kWanted;
}

template <class Relation>
Result<bool> in_order(Interpreter& in, const Value& v, const Value* other) {
  LOWBIT_TRY_ASSIGN(const int order, compare(v, *other, in.meter()));
  return Relation()(order, 0);
}

template <bool (*kKnown)(std::string_view)>
Result<bool> is_name(Interpreter&, const Value& v, const Value*) {
  return v.is_string() && kKnown(v.text());
}

template <bool (*kHolds)(const Value&)>
Result<bool> alone(Interpreter&, const Value& v, const Value*) {
  return kHolds(v);
}

constexpr NamedTest kTests[] = {
    {"boolean", alone<is_bool>},
    {"callable", alone<[](const Value& v) { return v.callable() != nullptr; }>},
    {"defined", alone<[](const Value& v) { return !v.is_undefined(); }>},
    {"even", has_parity<false>},
    {"false", alone<[](const Value& v) { return is_bool(v) && !v.truthy(); }>},
    {"float", alone<[](const Value& v) { return v.as<double>() != nullptr; }>},
    {"integer", alone<[](const Value& v) { return v.is_integer() && !is_bool(v); }>},
    {"iterable", alone<is_iterable>},
    {"lower", has_case<lower_text, upper_text>},
    {"mapping", alone<[](const Value& v) { return v.dict() != nullptr; }>},
    {"none", alone<[](const Value& v) { return v.is_none(); }>},
    {"number", alone<[](const Value& v) { return v.is_number(); }>},
    {"odd", has_parity<true>},
    {"sequence", alone<is_sequence>},
    {"string", alone<[](const Value& v) { return v.is_string(); }>},
    {"true", alone<[](const Value& v) { return is_bool(v) && v.truthy(); }>},
    {"undefined", alone<[](const Value& v) { return v.is_undefined(); }>},
    {"upper", has_case<upper_text, lower_text>},

    {"!=", is_equal<false>, true},
    {"<", in_order<std::less<>>, true},
    {"<=", in_order<std::less_equal<>>, true},
    {"==", is_equal<true>, true},
    {">", in_order<std::greater<>>, true},
    {">=", in_order<std::greater_equal<>>, true},
    {"divisibleby", is_divisible, true},
    {"eq", is_equal<true>, true},
    {"equalto", is_equal<true>, true},
    {"filter", is_name<is_filter>},
    {"ge", in_order<std::greater_equal<>>, true},
    {"greaterthan", in_order<std::greater<>>, true},
    {"gt", in_order<std::greater<>>, true},
    {"in", [](Interpreter& in, const Value& v, const Value* other) { return in.contains(*other, v); }, true},
    {"le", in_order<std::less_equal<>>, true},
    {"lessthan", in_order<std::less<>>, true},
    {"lt", in_order<std::less<>>, true},
    {"ne", is_equal<false>, true},
    {"sameas", is_same, true},
    {"test", is_name<is_test>},
};

const NamedTest* find_test(std::string_view name) {
  for (const NamedTest& known : kTests)
    if (name == known.name) return &known;
  return nullptr;
}

}  // namespace

bool is_test(std::string_view name) { return find_test(name) != nullptr; }

Result<bool> Interpreter::apply_test(const std::string& name, const Value& v, const Arguments& args) {
  const NamedTest* known = find_test(name);
  if (known == nullptr)
    return fail(ErrorCode::kUnsupported, "", fmt::format("the test '{:.40}'", name), "a test of Jinja's own");
  const Value* other = args.get(0);
  if (known->compares && other == nullptr) return complain(fmt::format("'is {}' without a value", name), "a value");
  return known->test(*this, v, other);
}

}  // namespace lowbit::jinja
