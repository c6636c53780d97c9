// Shared parts of the parser; expressions are in jinja_parser_expressions.cc, statements in jinja_parser_statements.cc.

#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <charconv>

#include "base/try.h"

namespace lowbit::jinja {
namespace {

using ExprKind = Expr::Kind;

constexpr int kMaxNesting = 100;  // of the parser's own calls
constexpr int kMaxDepth = 300;    // of an expression's tree: long chains such as a + b + c are deep, too

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kBlockEnd:
      return "'%}'";
    case Token::Kind::kOutputEnd:
      return "'}}'";
    case Token::Kind::kString:
      return fmt::format("the string '{:.40}'", token.text);
    default:
      return fmt::format("'{:.40}'", token.text);
  }
}

}  // namespace

const Token& Parser::peek(std::size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

const Token& Parser::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::is_op(std::string_view op, std::size_t ahead) const {
  return peek(ahead).kind == Token::Kind::kOperator && peek(ahead).text == op;
}

bool Parser::is_name(std::string_view name, std::size_t ahead) const {
  return peek(ahead).kind == Token::Kind::kName && peek(ahead).text == name;
}

bool Parser::take_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool Parser::take_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

tl::unexpected<Error> Parser::unexpected(std::string wanted) const {
  return fail(ErrorCode::kInvalidArgument, place(peek().line), describe(peek()), std::move(wanted));
}

Status Parser::expect_op(std::string_view op) {
  if (!take_op(op)) return unexpected(fmt::format("'{}'", op));
  return {};
}

Status Parser::expect_block_end() {
  if (peek().kind != Token::Kind::kBlockEnd) return unexpected("'%}'");
  next();
  return {};
}

Result<std::string> Parser::expect_name() {
  if (peek().kind != Token::Kind::kName) return unexpected("a name");
  return next().text;
}

Status Parser::enter() {
  if (++nesting_ > kMaxNesting)
    return fail(ErrorCode::kInvalidArgument, place(peek().line), "expressions or blocks nested too deep",
                fmt::format("at most {}", kMaxNesting));
  return {};
}

Result<ExprPtr> Parser::make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string name) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  node->args = std::move(args);
  for (const ExprPtr& arg : node->args)
    if (arg != nullptr) node->depth = std::max(node->depth, arg->depth + 1);
  if (node->depth > kMaxDepth)
    return fail(ErrorCode::kInvalidArgument, place(line), "an expression of too many parts",
                fmt::format("at most {} within each other", kMaxDepth));
  return node;
}

}  // namespace lowbit::jinja
