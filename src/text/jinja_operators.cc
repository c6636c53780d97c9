// Arithmetic and comparisons, with Python's meaning.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_text.h"
#include "text/search.h"

namespace lowbit::jinja {
namespace {

tl::unexpected<Error> overflow() { return complain("a number over 64 bits", "smaller numbers"); }

Result<Value> integer_binary(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
  if (op == "-") return __builtin_sub_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
  if (op == "*") return __builtin_mul_overflow(a, b, &out) ? Result<Value>(overflow()) : Value(out);
  if (op == "**") {
    if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    for (std::int64_t i = 0; i < b && out != 0 && (a != 1); ++i) {
      if (i > 64 && a != -1) return overflow();
      if (a == -1) return Value(std::int64_t{b % 2 == 0 ? 1 : -1});
      if (__builtin_mul_overflow(out, a, &out)) return overflow();
    }
    return Value(out);
  }
  if (b == 0) return complain("a division by zero");
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Result<Value>(Value(std::int64_t{0})) : integer_binary("-", 0, a);
  // Python rounds towards minus infinity; the remainder has the sign of the divisor.
  std::int64_t quotient = a / b, remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
    --quotient;
  }
  return Value(op == "//" ? quotient : remainder);
}

Result<Value> float_binary(const std::string& op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return complain("a division by zero");
  if (op == "/") return Value(a / b);
  // Python's float_divmod: the exact remainder first, so that 1 // 0.1 is 9.
  double remainder = std::fmod(a, b), quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (op == "%") return Value(remainder != 0 ? remainder : std::copysign(0.0, b));
  return Value(quotient != 0 ? std::round(quotient) : std::copysign(0.0, a / b));
}

}  // namespace

Result<bool> Interpreter::contains(const Value& container, const Value& wanted) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!wanted.is_string()) return complain(fmt::format("{} in a text", wanted.type_name()), "a text");
    if (!meter_.spend_text(container.text().size() + wanted.text().size())) return false;
    return text::find_text(container.text(), wanted.text()) != std::string::npos;
  }
  if (wanted.is_string()) meter_.spend_text(wanted.text().size());
  if (const Dict* dict = container.dict()) return dict->find(wanted) != nullptr;
  if (const List* items = container.list()) {
    for (const Value& v : items->items)
      if (equal(v, wanted, meter_)) return true;
    return false;
  }
  return complain(fmt::format("'in' {}", container.type_name()), "a list, dict or text");
}

Result<Value> Interpreter::eval_compare(const Expr& expr) {
  LOWBIT_TRY_ASSIGN(Value left, eval(*expr.args[0]));
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    LOWBIT_TRY_ASSIGN(Value right, eval(*expr.args[i + 1]));
    const std::string& op = expr.ops[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, meter_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      LOWBIT_TRY_ASSIGN(const bool inside, contains(right, left));
      holds = inside == (op == "in");
    } else {
      LOWBIT_TRY_ASSIGN(const int order, compare(left, right, meter_));
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::binary(const std::string& op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return integer_binary(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return float_binary(op, a.number(), b.number());
  if (op == "+" && a.is_string() && b.is_string()) {
    if (!meter_.spend_text(a.text().size() + b.text().size())) return Value();
    if (!a.is_markup() && !b.is_markup()) return text(a.text() + b.text());
    // A text that is added to an escaped one is escaped, too.
    std::string sum = a.is_markup() ? a.text() : escape_text(*this, a.text());
    sum += b.is_markup() ? b.text() : escape_text(*this, b.text());
    return text(std::move(sum), /*markup=*/true);
  }
  if (op == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return list(std::move(items), a.list()->kind);
  }
  const bool left_sequence = a.is_string() || a.list() != nullptr;
  if (op == "*" && ((left_sequence && b.is_integer()) || (a.is_integer() && (b.is_string() || b.list() != nullptr)))) {
    const Value& sequence = left_sequence ? a : b;
    const auto times = static_cast<std::size_t>(std::max<std::int64_t>(0, (left_sequence ? b : a).integer()));
    const std::size_t size =
        sequence.is_string() ? sequence.text().size() : sequence.list()->items.size() * sizeof(Value);
    std::size_t total = 0;
    if (__builtin_mul_overflow(size, times, &total) || !meter_.spend_bytes(total)) {
      meter_.spend_bytes(~std::size_t{0});
      return Value();
    }
    if (size == 0) return sequence;
    std::string s;
    std::vector<Value> items;
    for (std::size_t i = 0; i < times; ++i) {
      if (sequence.is_string()) {
        s += sequence.text();
      } else {
        items.insert(items.end(), sequence.list()->items.begin(), sequence.list()->items.end());
      }
    }
    if (sequence.is_string()) meter_.spend_text(s.size());
    return sequence.is_string()
               ? Result<Value>(sequence.is_markup() ? Value::markup(std::move(s)) : Value(std::move(s)))
               : make_list(std::move(items), sequence.list()->kind);
  }
  for (const Value* v : {&a, &b})
    if (const Undefined* u = v->as<Undefined>())
      return complain(fmt::format("'{}' with '{}', which is undefined", op, u->name ? *u->name : ""));
  return complain(fmt::format("{} {} {}", a.type_name(), op, b.type_name()), "operands of one kind");
}

}  // namespace lowbit::jinja
