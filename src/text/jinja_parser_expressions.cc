// The expressions of the template language, from the weakest operator to the strongest.

#include <fmt/format.h>

#include <charconv>

#include "base/try.h"
#include "text/jinja_parser.h"

namespace lowbit::jinja {
namespace {

using ExprKind = Expr::Kind;

// std::vector cannot be made of a list of move-only values.
template <class... Ptr>
std::vector<ExprPtr> list_of(Ptr... nodes) {
  std::vector<ExprPtr> out;
  (out.push_back(std::move(nodes)), ...);
  return out;
}

}  // namespace

Result<ExprPtr> Parser::expression() {
  LOWBIT_TRY(enter());
  Result<ExprPtr> node = expression_inner();
  leave();
  return node;
}

Result<ExprPtr> Parser::expression_inner() {
  LOWBIT_TRY_ASSIGN(ExprPtr node, or_expr());
  while (is_name("if")) {
    const int line = next().line;
    LOWBIT_TRY_ASSIGN(ExprPtr condition, or_expr());
    ExprPtr otherwise;
    if (take_name("else")) {
      LOWBIT_TRY_ASSIGN(otherwise, expression());
    }
    LOWBIT_TRY_ASSIGN(
        node, make(ExprKind::kCond, line, list_of(std::move(condition), std::move(node), std::move(otherwise))));
  }
  return node;
}

Result<ExprPtr> Parser::or_expr() { return joined_by("or", ExprKind::kOr, &Parser::and_expr); }
Result<ExprPtr> Parser::and_expr() { return joined_by("and", ExprKind::kAnd, &Parser::not_expr); }

Result<ExprPtr> Parser::joined_by(std::string_view word, ExprKind kind, Parse operand) {
  LOWBIT_TRY_ASSIGN(ExprPtr node, (this->*operand)());
  while (is_name(word)) {
    const int line = next().line;
    LOWBIT_TRY_ASSIGN(ExprPtr right, (this->*operand)());
    LOWBIT_TRY_ASSIGN(node, make(kind, line, list_of(std::move(node), std::move(right))));
  }
  return node;
}

Result<ExprPtr> Parser::not_expr() {
  if (!is_name("not")) return comparison();
  const int line = next().line;
  LOWBIT_TRY(enter());
  LOWBIT_TRY_ASSIGN(ExprPtr node, not_expr());
  leave();
  return make(ExprKind::kNot, line, list_of(std::move(node)));
}

Result<ExprPtr> Parser::comparison() {
  const int line = peek().line;
  LOWBIT_TRY_ASSIGN(ExprPtr first, sum());
  std::vector<ExprPtr> args = list_of(std::move(first));
  std::vector<std::string> ops;
  while (true) {
    std::string op;
    for (const char* candidate : {"==", "!=", "<=", ">=", "<", ">"})
      if (op.empty() && take_op(candidate)) op = candidate;
    if (op.empty() && take_name("in")) op = "in";
    if (op.empty() && is_name("not") && is_name("in", 1)) {
      next();
      next();
      op = "not in";
    }
    if (op.empty()) break;
    LOWBIT_TRY_ASSIGN(ExprPtr right, sum());
    args.push_back(std::move(right));
    ops.push_back(std::move(op));
  }
  if (ops.empty()) return std::move(args[0]);
  LOWBIT_TRY_ASSIGN(ExprPtr node, make(ExprKind::kCompare, line, std::move(args)));
  node->ops = std::move(ops);
  return node;
}

Result<ExprPtr> Parser::left_associative(Parse operand, std::initializer_list<std::string_view> ops) {
  LOWBIT_TRY_ASSIGN(ExprPtr node, (this->*operand)());
  while (true) {
    const int line = peek().line;
    std::string_view taken;
    for (const std::string_view op : ops)
      if (taken.empty() && take_op(op)) taken = op;
    if (taken.empty()) return node;
    LOWBIT_TRY_ASSIGN(ExprPtr right, (this->*operand)());
    LOWBIT_TRY_ASSIGN(node,
                      make(ExprKind::kBinary, line, list_of(std::move(node), std::move(right)), std::string(taken)));
  }
}

Result<ExprPtr> Parser::sum() { return left_associative(&Parser::concat, {"+", "-"}); }
Result<ExprPtr> Parser::product() { return left_associative(&Parser::power, {"*", "//", "/", "%"}); }
Result<ExprPtr> Parser::power() { return left_associative(&Parser::unary, {"**"}); }

Result<ExprPtr> Parser::concat() {
  const int line = peek().line;
  LOWBIT_TRY_ASSIGN(ExprPtr first, product());
  if (!is_op("~")) return first;
  std::vector<ExprPtr> args = list_of(std::move(first));
  while (take_op("~")) {
    LOWBIT_TRY_ASSIGN(ExprPtr part, product());
    args.push_back(std::move(part));
  }
  return make(ExprKind::kConcat, line, std::move(args));
}

Result<ExprPtr> Parser::unary() { return unary(true); }

Result<ExprPtr> Parser::unary(bool with_filter) {
  const int line = peek().line;
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    const ExprKind kind = next().text == "-" ? ExprKind::kNegate : ExprKind::kPlus;
    LOWBIT_TRY(enter());
    LOWBIT_TRY_ASSIGN(ExprPtr inner, unary(false));
    leave();
    LOWBIT_TRY_ASSIGN(node, make(kind, line, list_of(std::move(inner))));
  } else {
    LOWBIT_TRY_ASSIGN(node, primary());
  }
  LOWBIT_TRY_ASSIGN(node, postfix(std::move(node)));
  if (with_filter) return filters_and_tests(std::move(node));
  return node;
}

Result<ExprPtr> Parser::primary() {
  const Token token = peek();
  LOWBIT_TRY_ASSIGN(ExprPtr node, make(ExprKind::kConst, token.line));
  switch (token.kind) {
    case Token::Kind::kName:
      next();
      if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
        node->constant = Value(token.text[0] == 't' || token.text[0] == 'T');
      } else if (token.text == "none" || token.text == "None") {
        node->constant = Value(None{});
      } else {
        node->kind = ExprKind::kName;
        node->name = token.text;
      }
      return node;
    case Token::Kind::kString: {
      std::string text;
      while (peek().kind == Token::Kind::kString) text += next().text;
      node->constant = Value(std::move(text));
      return node;
    }
    case Token::Kind::kInteger: {
      next();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (error != std::errc())
        return fail(ErrorCode::kInvalidArgument, place(token.line), fmt::format("the number {:.40}", token.text),
                    "one of 64 bits");
      node->constant = Value(value);
      return node;
    }
    case Token::Kind::kFloat: {
      next();
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      node->constant = Value(value);
      return node;
    }
    default:
      break;
  }
  if (take_op("(")) {
    LOWBIT_TRY_ASSIGN(node, tuple_or_expression(true, true));
    LOWBIT_TRY(expect_op(")"));
    return node;
  }
  if (take_op("[")) {
    std::vector<ExprPtr> items;
    while (!take_op("]")) {
      if (!items.empty()) LOWBIT_TRY(expect_op(","));
      if (take_op("]")) break;
      LOWBIT_TRY_ASSIGN(ExprPtr item, expression());
      items.push_back(std::move(item));
    }
    return make(ExprKind::kList, token.line, std::move(items));
  }
  if (is_op("{")) return dict();
  return unexpected("an expression");
}

Result<ExprPtr> Parser::dict() {
  const int line = next().line;
  std::vector<ExprPtr> items;
  while (!take_op("}")) {
    if (!items.empty()) LOWBIT_TRY(expect_op(","));
    if (take_op("}")) break;
    LOWBIT_TRY_ASSIGN(ExprPtr key, expression());
    LOWBIT_TRY(expect_op(":"));
    LOWBIT_TRY_ASSIGN(ExprPtr value, expression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  return make(ExprKind::kDict, line, std::move(items));
}

bool Parser::at_tuple_end() const {
  const Token::Kind kind = peek().kind;
  return kind == Token::Kind::kBlockEnd || kind == Token::Kind::kOutputEnd || kind == Token::Kind::kEnd || is_op(")") ||
         is_name("in") || is_name("recursive");
}

Result<ExprPtr> Parser::tuple_or_expression(bool with_condition, bool parenthesized) {
  const int line = peek().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!at_tuple_end()) {
    LOWBIT_TRY_ASSIGN(ExprPtr item, with_condition ? expression() : or_expr());
    items.push_back(std::move(item));
    if (!take_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !parenthesized) return unexpected("an expression");
  return make(ExprKind::kTuple, line, std::move(items));
}

Result<ExprPtr> Parser::postfix(ExprPtr node) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      LOWBIT_TRY_ASSIGN(node, subscript(std::move(node)));
    } else if (is_op("(")) {
      const int line = peek().line;
      LOWBIT_TRY_ASSIGN(node, make(ExprKind::kCall, line, list_of(std::move(node))));
      LOWBIT_TRY(arguments(*node));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::filters_and_tests(ExprPtr node) {
  while (true) {
    if (take_op("|")) {
      LOWBIT_TRY_ASSIGN(node, filter(std::move(node)));
    } else if (is_name("is")) {
      LOWBIT_TRY_ASSIGN(node, test(std::move(node)));
    } else if (is_op("(")) {
      LOWBIT_TRY_ASSIGN(node, postfix(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> Parser::filter(ExprPtr node) {
  const int line = peek().line;
  LOWBIT_TRY_ASSIGN(std::string name, expect_name());
  LOWBIT_TRY_ASSIGN(ExprPtr out, make(ExprKind::kFilter, line, list_of(std::move(node)), std::move(name)));
  if (is_op("(")) LOWBIT_TRY(arguments(*out));
  return out;
}

Result<ExprPtr> Parser::test(ExprPtr node) {
  const int line = next().line;
  const bool negated = take_name("not");
  LOWBIT_TRY_ASSIGN(std::string name, expect_name());
  LOWBIT_TRY_ASSIGN(ExprPtr out, make(ExprKind::kTest, line, list_of(std::move(node)), std::move(name)));
  const Token& token = peek();
  const bool literal = token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
                       token.kind == Token::Kind::kFloat || is_op("[") || is_op("{");
  const bool word = token.kind == Token::Kind::kName && token.text != "else" && token.text != "or" &&
                    token.text != "and" && token.text != "if" && token.text != "in" && token.text != "not";
  if (is_op("(")) {
    LOWBIT_TRY(arguments(*out));
  } else if (literal || word) {
    if (is_name("is")) return unexpected("one test only");
    LOWBIT_TRY_ASSIGN(ExprPtr argument, primary());
    LOWBIT_TRY_ASSIGN(argument, postfix(std::move(argument)));
    out->args.push_back(std::move(argument));
  }
  if (negated) return make(ExprKind::kNot, line, list_of(std::move(out)));
  return out;
}

Result<ExprPtr> Parser::subscript(ExprPtr node) {
  const Token token = next();
  if (token.text == ".") {
    if (peek().kind == Token::Kind::kInteger) {
      LOWBIT_TRY_ASSIGN(ExprPtr index, primary());
      return make(ExprKind::kItem, token.line, list_of(std::move(node), std::move(index)));
    }
    LOWBIT_TRY_ASSIGN(std::string name, expect_name());
    return make(ExprKind::kAttr, token.line, list_of(std::move(node)), std::move(name));
  }
  LOWBIT_TRY_ASSIGN(ExprPtr index, subscript_index());
  LOWBIT_TRY(expect_op("]"));
  return make(ExprKind::kItem, token.line, list_of(std::move(node), std::move(index)));
}

Result<ExprPtr> Parser::subscript_index() {
  const int line = peek().line;
  std::vector<ExprPtr> parts(3);
  if (!is_op(":")) {
    LOWBIT_TRY_ASSIGN(parts[0], expression());
    if (!is_op(":")) return std::move(parts[0]);
  }
  for (int part = 1; part < 3 && take_op(":"); ++part) {
    if (is_op("]") || is_op(":")) continue;
    LOWBIT_TRY_ASSIGN(parts[part], expression());
  }
  return make(ExprKind::kSlice, line, std::move(parts));
}

Status Parser::arguments(Expr& call) {
  LOWBIT_TRY(expect_op("("));
  LOWBIT_TRY(enter());
  bool first = true;
  while (!take_op(")")) {
    if (!first) LOWBIT_TRY(expect_op(","));
    if (take_op(")")) break;
    first = false;
    if (is_op("*") || is_op("**"))
      return fail(ErrorCode::kUnsupported, place(peek().line), "'*' before an argument", "plain arguments");
    const bool named = peek().kind == Token::Kind::kName && is_op("=", 1);
    if (!named && !call.kwargs.empty()) return unexpected("name=value");
    std::string name;
    if (named) {
      name = next().text;
      next();
    }
    LOWBIT_TRY_ASSIGN(ExprPtr value, expression());
    call.depth = std::max(call.depth, value->depth + 1);
    if (named) {
      call.kwargs.emplace_back(std::move(name), std::move(value));
    } else {
      call.args.push_back(std::move(value));
    }
  }
  leave();
  return {};
}

}  // namespace lowbit::jinja
