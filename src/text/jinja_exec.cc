// Statements of the evaluator; expressions are in jinja_eval.cc.

#include <fmt/format.h>

#include "base/try.h"
#include "text/jinja_eval.h"
#include "text/jinja_lexer.h"

namespace lowbit::jinja {
namespace {

using StmtKind = Stmt::Kind;

}  // namespace

Interpreter::Interpreter(const ChatLimits& limits, std::optional<std::int64_t> now_unix_s)
    : limits_(limits), now_(now_unix_s), meter_(limits.steps, limits.memory_bytes), scope_(new_scope(nullptr)) {}

void Interpreter::define(std::string_view name, Value value) { set(name, std::move(value)); }

Result<std::string> Interpreter::render(const Block& block) {
  LOWBIT_TRY(run(block));
  return std::move(out_);
}

Scope* Interpreter::new_scope(Scope* parent) {
  meter_.spend_bytes(sizeof(Scope) + 4 * sizeof(Value));
  scopes_.push_back({parent, {}});
  return &scopes_.back();
}

void Interpreter::set(std::string_view name, Value value) {
  meter_.spend_steps(scope_->variables.size() / 16);
  for (auto& [key, old] : scope_->variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  meter_.spend_bytes(2 * sizeof(scope_->variables[0]));
  scope_->variables.emplace_back(name, std::move(value));
}

Value Interpreter::lookup(const std::string& name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    meter_.spend_steps(scope->variables.size() / 16);
    for (const auto& [key, value] : scope->variables)
      if (key == name) return value;
  }
  if (is_builtin(name)) {
    auto builtin = std::make_shared<Callable>();
    builtin->kind = Callable::Kind::kGlobal;
    builtin->name = name;
    return Value(std::shared_ptr<const Callable>(std::move(builtin)));
  }
  return Value::undefined(name);
}

Value Interpreter::new_namespace(Dict attributes) {
  namespaces_.push_back({std::move(attributes)});
  meter_.spend_bytes(sizeof(Namespace) + namespaces_.back().attributes.entries.size() * kEntryBytes);
  return Value(&namespaces_.back());
}

Status Interpreter::check_limits(int line) const {
  if (meter_.exhausted())
    return fail(ErrorCode::kInvalidArgument, place(line),
                fmt::format("a template that takes too many {}", meter_.what()),
                std::string_view(meter_.what()) == "steps" ? fmt::format("at most {}", limits_.steps)
                                                           : fmt::format("at most {}", limits_.memory_bytes));
  return {};
}

Status Interpreter::write(std::string_view text, int line) {
  if (out_.size() + text.size() > limits_.output_bytes)
    return fail(ErrorCode::kInvalidArgument, place(line), "a template that writes too much",
                fmt::format("at most {} bytes", limits_.output_bytes));
  out_ += text;
  return {};
}

Result<Interpreter::Flow> Interpreter::run(const Block& block) {
  for (const auto& stmt : block) {
    meter_.spend_steps();
    LOWBIT_TRY(check_limits(stmt->line));
    if (++nesting_ > limits_.nesting)
      return fail(ErrorCode::kInvalidArgument, place(stmt->line), "blocks or calls nested too deep",
                  fmt::format("at most {}", limits_.nesting), "does a macro call itself?");
    LOWBIT_TRY_ASSIGN(const Flow flow, statement(*stmt));
    --nesting_;
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run_in(Scope* scope, const Block& block) {
  Scope* const before = std::exchange(scope_, scope);
  Result<Flow> flow = run(block);
  scope_ = before;
  return flow;
}

Result<Interpreter::Flow> Interpreter::statement(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kText:
      LOWBIT_TRY(write(stmt.text, stmt.line));
      return Flow::kNext;
    case StmtKind::kOutput: {
      LOWBIT_TRY_ASSIGN(const Value value, eval(*stmt.exprs[0]));
      const std::string text = to_text(value, meter_);
      LOWBIT_TRY(check_limits(stmt.line));
      LOWBIT_TRY(write(text, stmt.line));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return if_statement(stmt);
    case StmtKind::kFor:
      return for_statement(stmt);
    case StmtKind::kSet: {
      LOWBIT_TRY_ASSIGN(Value value, eval(*stmt.exprs[0]));
      LOWBIT_TRY(located(stmt.line, assign_all(stmt.targets, std::move(value))));
      return Flow::kNext;
    }
    case StmtKind::kSetBlock:
      return set_block_statement(stmt);
    case StmtKind::kMacro: {
      auto macro = std::make_shared<Callable>();
      macro->kind = Callable::Kind::kMacro;
      macro->macro = &stmt;
      macro->scope = scope_;
      set(stmt.text, Value(std::shared_ptr<const Callable>(std::move(macro))));
      return Flow::kNext;
    }
    case StmtKind::kCallBlock: {
      LOWBIT_TRY_ASSIGN(const Value value, located(stmt.line, call_block(stmt)));
      LOWBIT_TRY(write(to_text(value, meter_), stmt.line));
      return Flow::kNext;
    }
    case StmtKind::kFilterBlock: {
      LOWBIT_TRY_ASSIGN(std::string captured, capture(stmt.blocks[0]));
      const Value input = text(std::move(captured));
      LOWBIT_TRY_ASSIGN(const Value value, eval_filter(*stmt.exprs[0], &input));
      LOWBIT_TRY(write(to_text(value, meter_), stmt.line));
      return Flow::kNext;
    }
    case StmtKind::kWith:
      return with_statement(stmt);
    case StmtKind::kScope:
      return run_in(new_scope(scope_), stmt.blocks[0]);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::set_block_statement(const Stmt& stmt) {
  LOWBIT_TRY_ASSIGN(std::string captured, capture(stmt.blocks[0]));
  Value value = text(std::move(captured));
  if (stmt.exprs[0] != nullptr) {
    const Value input = value;
    LOWBIT_TRY_ASSIGN(value, eval_filter(*stmt.exprs[0], &input));
  }
  LOWBIT_TRY(located(stmt.line, assign_all(stmt.targets, std::move(value))));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::if_statement(const Stmt& stmt) {
  for (std::size_t i = 0; i < stmt.exprs.size(); ++i) {
    LOWBIT_TRY_ASSIGN(const Value condition, eval(*stmt.exprs[i]));
    if (condition.truthy()) return run(stmt.blocks[i]);
  }
  if (stmt.blocks.size() > stmt.exprs.size()) return run(stmt.blocks.back());
  return Flow::kNext;
}

// The items that pass the loop's own condition: loop.length and loop.last count only those.
Result<std::vector<Value>> Interpreter::loop_items(const Stmt& stmt) {
  LOWBIT_TRY_ASSIGN(const Value value, eval(*stmt.exprs[0]));
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, located(stmt.line, items_of(value)));
  if (stmt.exprs[1] == nullptr) return items;
  std::vector<Value> kept;
  Scope* const before = scope_;
  for (Value& item : items) {
    scope_ = new_scope(before);
    LOWBIT_TRY(located(stmt.line, assign_all(stmt.targets, item)));
    LOWBIT_TRY_ASSIGN(const Value condition, eval(*stmt.exprs[1]));
    if (condition.truthy()) kept.push_back(std::move(item));
  }
  scope_ = before;
  return kept;
}

Result<Interpreter::Flow> Interpreter::for_statement(const Stmt& stmt) {
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, loop_items(stmt));
  meter_.spend_bytes(sizeof(Loop));
  loops_.emplace_back();
  Loop& loop = loops_.back();
  loop.items = std::move(items);
  LOWBIT_TRY_ASSIGN(const bool finished, loop_body(stmt, loop));
  if (!finished && stmt.blocks.size() > 1) return run_in(new_scope(scope_), stmt.blocks[1]);
  return Flow::kNext;
}

Result<bool> Interpreter::loop_body(const Stmt& stmt, Loop& loop) {
  Scope* const before = scope_;
  bool finished = false;
  for (loop.index = 0; loop.index < loop.items.size(); ++loop.index) {
    scope_ = new_scope(before);
    set("loop", Value(static_cast<const Loop*>(&loop)));
    LOWBIT_TRY(located(stmt.line, assign_all(stmt.targets, loop.items[loop.index])));
    LOWBIT_TRY_ASSIGN(const Flow flow, run(stmt.blocks[0]));
    if (flow == Flow::kBreak) break;
    finished = finished || flow == Flow::kNext;
  }
  scope_ = before;
  return finished;
}

Result<Interpreter::Flow> Interpreter::with_statement(const Stmt& stmt) {
  Scope* inner = new_scope(scope_);
  for (std::size_t i = 0; i < stmt.targets.size(); ++i) {
    LOWBIT_TRY_ASSIGN(Value value, eval(*stmt.exprs[i]));  // in the outer scope
    Scope* const before = std::exchange(scope_, inner);
    Status status = located(stmt.line, assign(*stmt.targets[i], std::move(value)));
    scope_ = before;
    LOWBIT_TRY(status);
  }
  return run_in(inner, stmt.blocks[0]);
}

Result<std::string> Interpreter::capture(const Block& block) {
  std::string before = std::exchange(out_, {});
  LOWBIT_TRY(run_in(new_scope(scope_), block));
  return std::exchange(out_, std::move(before));
}

Result<Value> Interpreter::call_block(const Stmt& stmt) {
  auto caller = std::make_shared<Callable>();
  caller->kind = Callable::Kind::kMacro;
  caller->macro = &stmt;
  caller->scope = scope_;
  const Value value{std::shared_ptr<const Callable>(std::move(caller))};
  return eval_call(*stmt.exprs[0], &value);
}

Result<Value> Interpreter::call_macro(const Callable& macro, const Arguments& args, const Value* caller) {
  const Stmt& stmt = *macro.macro;
  const char* name = stmt.text.empty() ? "caller" : stmt.text.c_str();
  if (args.positional.size() > stmt.params.size())
    return complain(fmt::format("{} arguments for macro '{}'", args.positional.size(), name),
                    fmt::format("at most {}", stmt.params.size()));
  meter_.spend_steps(stmt.params.size() * args.named.size() / 16);
  for (const auto& [key, value] : args.named)
    if (std::find(stmt.params.begin(), stmt.params.end(), key) == stmt.params.end() && key != "caller")
      return complain(fmt::format("argument '{}' for macro '{}'", key, name), "one of its parameters");
  if (++nesting_ > limits_.nesting)
    return complain(fmt::format("calls of macro '{}' nested too deep", name),
                    fmt::format("at most {}", limits_.nesting));
  Scope* const before = std::exchange(scope_, new_scope(macro.scope));
  if (caller != nullptr) set("caller", *caller);
  for (std::size_t i = 0; i < stmt.params.size(); ++i) {
    Value value = Value::undefined(stmt.params[i]);
    if (const Value* given = args.get(i, stmt.params[i])) {
      value = *given;
    } else if (stmt.defaults[i] != nullptr) {
      LOWBIT_TRY_ASSIGN(value, eval(*stmt.defaults[i]));
    }
    set(stmt.params[i], std::move(value));
  }
  std::string outer = std::exchange(out_, {});
  LOWBIT_TRY(run(stmt.blocks[0]));
  std::string written = std::exchange(out_, std::move(outer));
  scope_ = before;
  --nesting_;
  return text(std::move(written));
}

Status Interpreter::assign_all(const std::vector<ExprPtr>& targets, Value value) {
  if (targets.size() == 1) return assign(*targets[0], std::move(value));
  LOWBIT_TRY_ASSIGN(std::vector<Value> items, items_of(value));
  if (items.size() != targets.size())
    return complain(fmt::format("{} values for {} names", items.size(), targets.size()), "one for each");
  for (std::size_t i = 0; i < items.size(); ++i) LOWBIT_TRY(assign(*targets[i], std::move(items[i])));
  return {};
}

Status Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kTuple) return assign_all(target.args, std::move(value));
  if (target.kind == Expr::Kind::kName) {
    set(target.name, std::move(value));
    return {};
  }
  const Value object = lookup(target.args[0]->name);
  Namespace* space = object.space();
  if (space == nullptr)
    return complain(fmt::format("'{}.{}' set, but '{}' is {}", target.args[0]->name, target.name, target.args[0]->name,
                                object.type_name()),
                    "a namespace(...)");
  space->attributes.set(Value(target.name), std::move(value));
  return {};
}

}  // namespace lowbit::jinja
