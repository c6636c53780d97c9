#pragma once
// Evaluates the syntax tree and writes the text. One object per rendering; it owns every scope, namespace and loop, so
// that what a template makes cannot keep itself alive.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowbit/chat_template.h"
#include "text/jinja_ast.h"

namespace lowbit::jinja {

/// The arguments of a call, filter or test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// In place of an index: the argument has no place, only a name.
  static constexpr std::size_t kNamedOnly = ~std::size_t{0};

  /// The argument at `index` or called `name`, or null.
  const Value* get(std::size_t index, std::string_view name = {}) const;
  /// The argument as a truth value or a whole number; `fallback` when it was not given (a number: or is none).
  bool flag(std::size_t index, std::string_view name, bool fallback) const;
  Result<std::int64_t> integer(std::size_t index, std::string_view name, std::int64_t fallback) const;
};

class Interpreter {
 public:
  Interpreter(const ChatLimits& limits, std::optional<std::int64_t> now_unix_s);

  /// Makes a variable that the template sees; `name` must outlive the rendering.
  void define(std::string_view name, Value value);
  Result<std::string> render(const Block& block);

  // For filters, tests, methods and builtins.
  Meter& meter() { return meter_; }
  std::optional<std::int64_t> now() const { return now_; }
  Result<Value> call(const Value& callee, const Arguments& args);
  Result<Value> apply_filter(const std::string& name, const Value& input, const Arguments& args);
  Result<bool> apply_test(const std::string& name, const Value& input, const Arguments& args);
  Result<Value> attribute(const Value& object, const std::string& name);
  Result<Value> item(const Value& object, const Value& key);
  Result<bool> contains(const Value& container, const Value& item);
  /// The items of a for loop: list items, dict keys, characters of a text.
  Result<std::vector<Value>> items_of(const Value& value);
  Value new_namespace(Dict attributes);
  /// A text value, charged to the limits.
  Value text(std::string s, bool markup = false);
  Result<Value> list(std::vector<Value> items, ListKind kind = ListKind::kList);
  /// Charges the texts among these values as read.
  void read_texts(const Value& value, const Arguments& args);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements (jinja_exec.cc).
  Result<Flow> run(const Block& block);
  Result<Flow> run_in(Scope* scope, const Block& block);
  Result<Flow> statement(const Stmt& stmt);
  Result<Flow> set_block_statement(const Stmt& stmt);
  Result<Flow> if_statement(const Stmt& stmt);
  Result<Flow> for_statement(const Stmt& stmt);
  /// Whether an iteration came to its end: else, in jinja2, belongs to loops of which none did.
  Result<bool> loop_body(const Stmt& stmt, Loop& loop);
  Result<Flow> with_statement(const Stmt& stmt);
  Result<std::vector<Value>> loop_items(const Stmt& stmt);
  Result<std::string> capture(const Block& block);
  Result<Value> call_block(const Stmt& stmt);
  Result<Value> call_macro(const Callable& macro, const Arguments& args, const Value* caller);
  Status assign(const Expr& target, Value value);
  Status assign_all(const std::vector<ExprPtr>& targets, Value value);
  Status write(std::string_view text, int line);
  Status check_limits(int line) const;
  Scope* new_scope(Scope* parent);
  void set(std::string_view name, Value value);
  Value lookup(const std::string& name);

  // Expressions (jinja_eval.cc).
  Result<Value> eval(const Expr& expr);
  Result<Value> eval_node(const Expr& expr);
  Result<Value> eval_sign(const Expr& expr);
  Result<Value> eval_concat(const Expr& expr);
  Result<Value> eval_call(const Expr& expr, const Value* caller);
  Result<Value> eval_filter(const Expr& expr, const Value* block_text);
  Result<Value> eval_slice(const Value& object, const Expr& slice);
  Result<Value> slice_text(const Value& object, std::int64_t start, std::int64_t stop, std::int64_t step);
  Result<Value> eval_dict(const Expr& expr);
  Result<Value> eval_compare(const Expr& expr);
  Result<Value> binary(const std::string& op, const Value& a, const Value& b);
  Result<Arguments> arguments(const Expr& expr, std::size_t first);

  ChatLimits limits_;
  std::optional<std::int64_t> now_;
  Meter meter_;
  int nesting_ = 0;
  std::string out_;
  std::deque<Scope> scopes_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
  Scope* scope_;  // the innermost one; made of scopes_, so it comes after them
};

/// Adds the line to an Error that has no place yet.
template <class T>
Result<T> located(int line, Result<T> result);

// jinja_methods.cc: the methods of texts, dicts and lists that templates may call.
bool has_method(const Value& self, std::string_view name);
Result<Value> call_method(Interpreter& in, const Value& self, const std::string& name, const Arguments& args);
// jinja_builtins.cc: namespace, range, dict, raise_exception, strftime_now.
bool is_builtin(std::string_view name);
Result<Value> call_builtin(Interpreter& in, const std::string& name, const Arguments& args);
// Known to parse-time checks as well.
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace lowbit::jinja
