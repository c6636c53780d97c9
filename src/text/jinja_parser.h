#pragma once
// Tokens -> syntax tree, with Jinja2's grammar.

#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace lowbit::jinja {

/// Errors: kInvalidArgument (syntax, nested too deep), kUnsupported (include, import, extends, ...); with the line.
Result<Block> parse_template(std::string_view source);

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  /// Statements up to a block tag that begins with one of `ends`; that name is consumed and returned in `ended_by`.
  Result<Block> statements(std::vector<std::string_view> ends, std::string* ended_by = nullptr);

 private:
  using Parse = Result<ExprPtr> (Parser::*)();

  // Tokens.
  const Token& peek(std::size_t ahead = 0) const;
  const Token& next();
  bool is_op(std::string_view op, std::size_t ahead = 0) const;
  bool is_name(std::string_view name, std::size_t ahead = 0) const;
  bool take_op(std::string_view op);
  bool take_name(std::string_view name);
  Status expect_op(std::string_view op);
  Status expect_block_end();
  Result<std::string> expect_name();
  tl::unexpected<Error> unexpected(std::string wanted) const;
  Result<ExprPtr> make(Expr::Kind kind, int line, std::vector<ExprPtr> args = {}, std::string name = {});
  Status enter();
  void leave() { --nesting_; }

  // Expressions, loosest first (jinja_parser_expressions.cc).
  Result<ExprPtr> expression();
  Result<ExprPtr> expression_inner();
  Result<ExprPtr> or_expr();
  Result<ExprPtr> and_expr();
  Result<ExprPtr> not_expr();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concat();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary();
  Result<ExprPtr> unary(bool with_filter);
  Result<ExprPtr> primary();
  Result<ExprPtr> postfix(ExprPtr node);
  Result<ExprPtr> filters_and_tests(ExprPtr node);
  Result<ExprPtr> filter(ExprPtr node);
  Result<ExprPtr> test(ExprPtr node);
  Result<ExprPtr> subscript(ExprPtr node);
  Result<ExprPtr> subscript_index();
  Result<ExprPtr> dict();
  Result<ExprPtr> tuple_or_expression(bool with_condition, bool parenthesized = false);
  Result<ExprPtr> left_associative(Parse operand, std::initializer_list<std::string_view> ops);
  Result<ExprPtr> joined_by(std::string_view word, Expr::Kind kind, Parse operand);
  Status arguments(Expr& call);
  bool at_tuple_end() const;

  // Statements (jinja_parser_statements.cc).
  using StmtPtr = std::unique_ptr<Stmt>;
  Result<StmtPtr> statement();
  Result<StmtPtr> if_statement(int line);
  Result<StmtPtr> for_statement(int line);
  Result<StmtPtr> set_statement(int line);
  Result<StmtPtr> macro_statement(int line);
  Result<StmtPtr> call_statement(int line);
  Result<StmtPtr> filter_statement(int line);
  Result<StmtPtr> with_statement(int line);
  Status signature(Stmt& stmt);
  Status body(Stmt& stmt, std::string_view end);
  Result<ExprPtr> target(bool namespace_allowed);
  Result<std::vector<ExprPtr>> targets();

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
};

}  // namespace lowbit::jinja
