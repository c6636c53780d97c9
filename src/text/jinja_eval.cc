// Expressions; their operators are in jinja_operators.cc, statements in jinja_exec.cc.

#include "text/jinja_eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja_lexer.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace lowbit::jinja {
namespace {

using ExprKind = Expr::Kind;

// Python's index rules: from the end when negative, cut to the ends for slices.
std::int64_t clamp_index(std::int64_t i, std::int64_t n, std::int64_t low, std::int64_t high) {
  if (i < 0) i += n;
  return std::clamp(i, low, high);
}

}  // namespace

template <class T>
Result<T> located(int line, Result<T> result) {
  if (!result && result.error().where.empty()) result.error().where = place(line);
  return result;
}
template Result<Value> located(int, Result<Value>);
template Result<bool> located(int, Result<bool>);
template Status located(int, Status);
template Result<std::vector<Value>> located(int, Result<std::vector<Value>>);

const Value* Arguments::get(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named)
    if (!name.empty() && key == name) return &value;
  return nullptr;
}

bool Arguments::flag(std::size_t index, std::string_view name, bool fallback) const {
  const Value* v = get(index, name);
  return v != nullptr ? v->truthy() : fallback;
}

Result<std::int64_t> Arguments::integer(std::size_t index, std::string_view name, std::int64_t fallback) const {
  const Value* v = get(index, name);
  if (v == nullptr || v->is_none()) return fallback;
  if (!v->is_integer()) return complain(fmt::format("{} for '{}'", v->type_name(), name), "a whole number");
  return v->integer();
}

Value Interpreter::text(std::string s, bool markup) {
  meter_.spend_bytes(s.size() + kTextBytes);
  meter_.spend_text(s.size());
  return markup ? Value::markup(std::move(s)) : Value(std::move(s));
}

Result<Value> Interpreter::list(std::vector<Value> items, ListKind kind) {
  meter_.spend_bytes(items.size() * sizeof(Value) + kListBytes);
  return make_list(std::move(items), kind);
}

Result<Value> Interpreter::eval(const Expr& expr) {
  meter_.spend_steps();
  LOWBIT_TRY(check_limits(expr.line));
  if (++nesting_ > limits_.nesting)
    return fail(ErrorCode::kInvalidArgument, place(expr.line), "expressions or calls nested too deep",
                fmt::format("at most {}", limits_.nesting), "does a macro call itself?");
  Result<Value> value = located(expr.line, eval_node(expr));
  --nesting_;
  if (value) LOWBIT_TRY(check_limits(expr.line));
  return value;
}

Result<Value> Interpreter::eval_node(const Expr& expr) {
  const auto arg = [&](std::size_t i) { return eval(*expr.args[i]); };
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      LOWBIT_TRY_ASSIGN(Arguments items, arguments(expr, 0));
      return list(std::move(items.positional), expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
    }
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttr: {
      LOWBIT_TRY_ASSIGN(const Value object, arg(0));
      return attribute(object, expr.name);
    }
    case ExprKind::kItem: {
      LOWBIT_TRY_ASSIGN(const Value object, arg(0));
      if (expr.args[1]->kind == ExprKind::kSlice) return eval_slice(object, *expr.args[1]);
      LOWBIT_TRY_ASSIGN(const Value key, arg(1));
      return item(object, key);
    }
    case ExprKind::kSlice:
      return complain("a slice", "an index");
    case ExprKind::kCall:
      return eval_call(expr, nullptr);
    case ExprKind::kFilter:
      return eval_filter(expr, nullptr);
    case ExprKind::kTest: {
      LOWBIT_TRY_ASSIGN(const Value input, arg(0));
      LOWBIT_TRY_ASSIGN(const Arguments args, arguments(expr, 1));
      LOWBIT_TRY_ASSIGN(const bool holds, apply_test(expr.name, input, args));
      return Value(holds);
    }
    case ExprKind::kNot: {
      LOWBIT_TRY_ASSIGN(const Value value, arg(0));
      return Value(!value.truthy());
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus:
      return eval_sign(expr);
    case ExprKind::kBinary: {
      LOWBIT_TRY_ASSIGN(const Value a, arg(0));
      LOWBIT_TRY_ASSIGN(const Value b, arg(1));
      return binary(expr.name, a, b);
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      LOWBIT_TRY_ASSIGN(Value a, arg(0));
      if (a.truthy() == (expr.kind == ExprKind::kOr)) return a;
      return arg(1);
    }
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kCond: {
      LOWBIT_TRY_ASSIGN(const Value condition, arg(0));
      if (condition.truthy()) return arg(1);
      return expr.args[2] != nullptr ? arg(2) : Result<Value>(Value::undefined("the inline if without else"));
    }
  }
  return complain("an expression of no known kind");
}

Result<Value> Interpreter::eval_sign(const Expr& expr) {
  LOWBIT_TRY_ASSIGN(const Value value, eval(*expr.args[0]));
  if (!value.is_number()) return complain(fmt::format("a sign before {}", value.type_name()), "a number");
  if (expr.kind == ExprKind::kPlus) return value.is_integer() ? Value(value.integer()) : value;
  if (value.is_integer()) return binary("-", Value(std::int64_t{0}), value);
  return Value(-value.number());
}

Result<Value> Interpreter::eval_concat(const Expr& expr) {
  std::string out;
  for (const auto& arg : expr.args) {
    LOWBIT_TRY_ASSIGN(const Value part, eval(*arg));
    out += to_text(part, meter_);
    if (!meter_.spend_bytes(out.size() / 16)) break;
  }
  return text(std::move(out));
}

Result<Arguments> Interpreter::arguments(const Expr& expr, std::size_t first) {
  Arguments out;
  for (std::size_t i = first; i < expr.args.size(); ++i) {
    LOWBIT_TRY_ASSIGN(Value value, eval(*expr.args[i]));
    out.positional.push_back(std::move(value));
  }
  meter_.spend_steps(expr.kwargs.size() * expr.kwargs.size() / 64);  // who asks for one looks through all
  for (const auto& [name, node] : expr.kwargs) {
    LOWBIT_TRY_ASSIGN(Value value, eval(*node));
    out.named.emplace_back(name, std::move(value));
  }
  return out;
}

Result<Value> Interpreter::eval_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    LOWBIT_TRY_ASSIGN(Value key, eval(*expr.args[i]));
    LOWBIT_TRY_ASSIGN(Value value, eval(*expr.args[i + 1]));
    if (!key.is_string() && !key.is_number() && !key.is_none())
      return complain(fmt::format("{} as a key", key.type_name()), "a text or number");
    if (key.is_string()) {
      meter_.spend_text(key.text().size());
      meter_.spend_bytes(key.text().size());  // the dictionary's index has its own
    }
    dict.set(std::move(key), std::move(value));
  }
  meter_.spend_bytes(dict.entries.size() * kEntryBytes + kListBytes);
  return make_dict(std::move(dict));
}

Result<Value> Interpreter::eval_call(const Expr& expr, const Value* caller) {
  LOWBIT_TRY_ASSIGN(const Value callee, eval(*expr.args[0]));
  LOWBIT_TRY_ASSIGN(const Arguments args, arguments(expr, 1));
  const Callable* target = callee.callable();
  if (target != nullptr && target->kind == Callable::Kind::kMacro) return call_macro(*target, args, caller);
  return call(callee, args);
}

Result<Value> Interpreter::call(const Value& callee, const Arguments& args) {
  if (const Callable* target = callee.callable()) {
    switch (target->kind) {
      case Callable::Kind::kMacro:
        return call_macro(*target, args, nullptr);
      case Callable::Kind::kGlobal:
        return call_builtin(*this, target->name, args);
      case Callable::Kind::kMethod:
        return call_method(*this, target->self, target->name, args);
    }
  }
  if (const Undefined* u = callee.as<Undefined>())
    return complain(fmt::format("a call of '{}', which is undefined", u->name ? *u->name : ""));
  return complain(fmt::format("a call of {}", callee.type_name()), "a macro or function");
}

Result<Value> Interpreter::eval_filter(const Expr& expr, const Value* block_text) {
  Value input;
  if (expr.args[0] == nullptr) {
    input = *block_text;
  } else if (block_text != nullptr && expr.args[0]->kind == ExprKind::kFilter) {
    LOWBIT_TRY_ASSIGN(input, eval_filter(*expr.args[0], block_text));
  } else {
    LOWBIT_TRY_ASSIGN(input, eval(*expr.args[0]));
  }
  LOWBIT_TRY_ASSIGN(const Arguments args, arguments(expr, 1));
  return located(expr.line, apply_filter(expr.name, input, args));
}

Result<Value> Interpreter::attribute(const Value& object, const std::string& name) {
  if (const Undefined* u = object.as<Undefined>())
    return complain(fmt::format("attribute '{}' of '{}', which is undefined", name, u->name ? *u->name : ""));
  if (Namespace* space = object.space()) {
    const Value* found = space->attributes.find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (const Loop* loop = object.loop()) {
    const auto n = static_cast<std::int64_t>(loop->items.size()), i = static_cast<std::int64_t>(loop->index);
    if (name == "index") return Value(i + 1);
    if (name == "index0") return Value(i);
    if (name == "revindex") return Value(n - i);
    if (name == "revindex0") return Value(n - i - 1);
    if (name == "first") return Value(i == 0);
    if (name == "last") return Value(i + 1 == n);
    if (name == "length") return Value(n);
    if (name == "depth") return Value(std::int64_t{1});
    if (name == "depth0") return Value(std::int64_t{0});
    if (name == "previtem") return i > 0 ? loop->items[i - 1] : Value::undefined("previtem");
    if (name == "nextitem") return i + 1 < n ? loop->items[i + 1] : Value::undefined("nextitem");
  }
  if (has_method(object, name)) {
    meter_.spend_bytes(sizeof(Callable) + kTextBytes);
    auto method = std::make_shared<Callable>();
    method->kind = Callable::Kind::kMethod;
    method->name = name;
    method->self = object;
    return Value(std::shared_ptr<const Callable>(std::move(method)));
  }
  if (const Dict* dict = object.dict())
    if (const Value* found = dict->find(name)) return *found;
  return Value::undefined(name);
}

Result<Value> Interpreter::item(const Value& object, const Value& key) {
  if (const Undefined* u = object.as<Undefined>())
    return complain(fmt::format("an item of '{}', which is undefined", u->name ? *u->name : ""));
  if (key.is_string()) meter_.spend_text(key.text().size());
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->find(key)) return *found;
  } else if (key.is_integer() && object.list() != nullptr) {
    const auto& items = object.list()->items;
    const auto n = static_cast<std::int64_t>(items.size());
    const std::int64_t i = key.integer() < 0 ? key.integer() + n : key.integer();
    if (i >= 0 && i < n) return items[i];
  } else if (key.is_integer() && object.is_string()) {
    const std::string& s = object.text();
    if (!meter_.spend_text(4 * s.size())) return Value();
    const auto n = static_cast<std::int64_t>(count_characters(s));
    const std::int64_t i = key.integer() < 0 ? key.integer() + n : key.integer();
    if (i >= 0 && i < n) {
      const std::size_t begin = character_offset(s, static_cast<std::size_t>(i));
      return text(s.substr(begin, character_offset(std::string_view(s).substr(begin), 1)), object.is_markup());
    }
  }
  if (key.is_string()) return attribute(object, key.text());
  return Value::undefined(to_text(key, meter_));
}

Result<Value> Interpreter::eval_slice(const Value& object, const Expr& slice) {
  std::optional<std::int64_t> parts[3];
  for (int i = 0; i < 3; ++i) {
    if (slice.args[i] == nullptr) continue;
    LOWBIT_TRY_ASSIGN(const Value v, eval(*slice.args[i]));
    if (v.is_none()) continue;
    if (!v.is_integer()) return complain(fmt::format("a slice with {}", v.type_name()), "whole numbers");
    parts[i] = v.integer();
  }
  const List* items = object.list();
  if (items == nullptr && !object.is_string()) {
    if (object.is_undefined()) return complain("a slice of something undefined", "a list or text");
    return complain(fmt::format("a slice of {}", object.type_name()), "a list or text");
  }
  if (items == nullptr && !meter_.spend_text(4 * object.text().size())) return Value();
  const auto n = static_cast<std::int64_t>(items != nullptr ? items->items.size() : count_characters(object.text()));
  meter_.spend_steps(static_cast<std::size_t>(n) / 16);
  const std::int64_t step = parts[2].value_or(1);
  if (step == 0) return complain("a slice with step 0", "another step");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  const std::int64_t start = parts[0] ? clamp_index(*parts[0], n, low, high) : (step > 0 ? 0 : n - 1);
  const std::int64_t stop = parts[1] ? clamp_index(*parts[1], n, low, high) : (step > 0 ? n : -1);
  if (items == nullptr) return slice_text(object, start, stop, step);
  std::vector<Value> picked;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    picked.push_back(items->items[i]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list(std::move(picked), items->kind);
}

Result<Value> Interpreter::slice_text(const Value& object, std::int64_t start, std::int64_t stop, std::int64_t step) {
  const std::string& s = object.text();
  if (step == 1) {
    if (start >= stop) return text({}, object.is_markup());
    const std::size_t begin = character_offset(s, static_cast<std::size_t>(start));
    const std::string_view rest = std::string_view(s).substr(begin);
    return text(std::string(rest.substr(0, character_offset(rest, static_cast<std::size_t>(stop - start)))),
                object.is_markup());
  }
  if (!meter_.spend_bytes(s.size() * sizeof(std::size_t))) return Value();
  const std::vector<std::size_t> offsets = character_offsets(s);
  std::string piece;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    piece.append(s, offsets[i], offsets[i + 1] - offsets[i]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return text(std::move(piece), object.is_markup());
}

Result<std::vector<Value>> Interpreter::items_of(const Value& value) {
  std::vector<Value> out;
  if (const List* items = value.list()) {
    out = items->items;
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries) out.push_back(entry.first);
  } else if (value.is_string()) {
    if (!meter_.spend_text(4 * value.text().size()) ||
        !meter_.spend_bytes(count_characters(value.text()) * (kTextBytes + sizeof(std::size_t))))
      return out;
    const std::vector<std::size_t> offsets = character_offsets(value.text());
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
      out.emplace_back(value.text().substr(offsets[i], offsets[i + 1] - offsets[i]));
  } else if (!value.is_undefined()) {
    return complain(fmt::format("a loop over {}", value.type_name()), "a list, dict or text");
  }
  meter_.spend_bytes(out.size() * sizeof(Value));
  return out;
}

}  // namespace lowbit::jinja
