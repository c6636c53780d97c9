// The statements of the template language; expressions are in jinja_parser_expressions.cc.

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "text/jinja_parser.h"

namespace lowbit::jinja {
namespace {

using StmtKind = Stmt::Kind;

constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 19;  // the tree takes up to 200 times as much

std::unique_ptr<Stmt> make_stmt(StmtKind kind, int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

}  // namespace

Result<Block> parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes)
    return fail(ErrorCode::kInvalidArgument, "chat template", fmt::format("{} bytes", source.size()),
                fmt::format("at most {}", kMaxSourceBytes));
  LOWBIT_TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).statements({});
}

Result<Block> Parser::statements(std::vector<std::string_view> ends, std::string* ended_by) {
  LOWBIT_TRY(enter());
  Block block;
  while (true) {
    const Token& token = peek();
    if (token.kind == Token::Kind::kEnd) {
      if (!ends.empty()) return unexpected(fmt::format("'{}'", ends.back()));
      break;
    }
    if (token.kind == Token::Kind::kText) {
      auto text = make_stmt(StmtKind::kText, token.line);
      text->text = next().text;
      block.push_back(std::move(text));
    } else if (token.kind == Token::Kind::kOutputBegin) {
      auto output = make_stmt(StmtKind::kOutput, next().line);
      LOWBIT_TRY_ASSIGN(ExprPtr value, tuple_or_expression(true));
      output->exprs.push_back(std::move(value));
      if (peek().kind != Token::Kind::kOutputEnd) return unexpected("'}}'");
      next();
      block.push_back(std::move(output));
    } else {
      next();  // {%
      const bool ends_here =
          peek().kind == Token::Kind::kName && std::find(ends.begin(), ends.end(), peek().text) != ends.end();
      if (ends_here) {
        const std::string name = next().text;
        if (ended_by != nullptr) *ended_by = name;
        break;
      }
      LOWBIT_TRY_ASSIGN(StmtPtr stmt, statement());
      block.push_back(std::move(stmt));
    }
  }
  leave();
  return block;
}

Status Parser::body(Stmt& stmt, std::string_view end) {
  LOWBIT_TRY(expect_block_end());
  LOWBIT_TRY_ASSIGN(Block block, statements({end}));
  stmt.blocks.push_back(std::move(block));
  return expect_block_end();
}

Result<Parser::StmtPtr> Parser::statement() {
  const int line = peek().line;
  if (peek().kind != Token::Kind::kName) return unexpected("a statement");
  const std::string name = next().text;
  if (name == "if") return if_statement(line);
  if (name == "for") return for_statement(line);
  if (name == "set") return set_statement(line);
  if (name == "macro") return macro_statement(line);
  if (name == "call") return call_statement(line);
  if (name == "filter") return filter_statement(line);
  if (name == "with") return with_statement(line);
  if (name == "generation") {
    auto stmt = make_stmt(StmtKind::kScope, line);
    LOWBIT_TRY(body(*stmt, "endgeneration"));
    return stmt;
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return fail(ErrorCode::kInvalidArgument, place(line), name + " outside a loop");
    LOWBIT_TRY(expect_block_end());
    return make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
  }
  constexpr std::string_view kKnown[] = {"include", "import", "from",  "extends",   "block",
                                         "do",      "trans",  "debug", "autoescape"};
  if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown))
    return fail(ErrorCode::kUnsupported, place(line), fmt::format("the tag '{}'", name),
                "if, for, set, macro, call, filter, with, raw, generation, break, continue");
  return fail(ErrorCode::kInvalidArgument, place(line), fmt::format("the tag '{:.40}'", name),
              "a statement, or the end of an open block");
}

Result<Parser::StmtPtr> Parser::if_statement(int line) {
  auto stmt = make_stmt(StmtKind::kIf, line);
  std::string ended_by = "elif";
  while (ended_by == "elif") {
    LOWBIT_TRY_ASSIGN(ExprPtr condition, tuple_or_expression(false));
    stmt->exprs.push_back(std::move(condition));
    LOWBIT_TRY(expect_block_end());
    LOWBIT_TRY_ASSIGN(Block block, statements({"elif", "else", "endif"}, &ended_by));
    stmt->blocks.push_back(std::move(block));
  }
  if (ended_by == "else")
    LOWBIT_TRY(body(*stmt, "endif"));
  else
    LOWBIT_TRY(expect_block_end());
  return stmt;
}

Result<Parser::StmtPtr> Parser::for_statement(int line) {
  auto stmt = make_stmt(StmtKind::kFor, line);
  LOWBIT_TRY_ASSIGN(stmt->targets, targets());
  if (!take_name("in")) return unexpected("'in'");
  LOWBIT_TRY_ASSIGN(ExprPtr items, tuple_or_expression(false));
  stmt->exprs.push_back(std::move(items));
  ExprPtr condition;
  if (take_name("if")) {
    LOWBIT_TRY_ASSIGN(condition, expression());
  }
  stmt->exprs.push_back(std::move(condition));
  if (is_name("recursive")) return fail(ErrorCode::kUnsupported, place(line), "a recursive loop", "a plain loop");
  LOWBIT_TRY(expect_block_end());
  std::string ended_by;
  ++loops_;
  LOWBIT_TRY_ASSIGN(Block block, statements({"else", "endfor"}, &ended_by));
  --loops_;
  stmt->blocks.push_back(std::move(block));
  if (ended_by == "else") {
    LOWBIT_TRY(body(*stmt, "endfor"));
  } else {
    LOWBIT_TRY(expect_block_end());
  }
  return stmt;
}

Result<Parser::StmtPtr> Parser::set_statement(int line) {
  auto stmt = make_stmt(StmtKind::kSet, line);
  LOWBIT_TRY_ASSIGN(stmt->targets, targets());
  if (take_op("=")) {
    LOWBIT_TRY_ASSIGN(ExprPtr value, tuple_or_expression(true));
    stmt->exprs.push_back(std::move(value));
    LOWBIT_TRY(expect_block_end());
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  ExprPtr filters;
  while (take_op("|")) {
    LOWBIT_TRY_ASSIGN(filters, filter(std::move(filters)));
  }
  stmt->exprs.push_back(std::move(filters));
  LOWBIT_TRY(body(*stmt, "endset"));
  return stmt;
}

// A name, a namespace attribute, or names in parentheses.
Result<ExprPtr> Parser::target(bool namespace_allowed) {
  const int line = peek().line;
  if (take_op("(")) {
    LOWBIT_TRY(enter());
    std::vector<ExprPtr> items;
    while (!take_op(")")) {
      if (!items.empty()) LOWBIT_TRY(expect_op(","));
      if (take_op(")")) break;
      LOWBIT_TRY_ASSIGN(ExprPtr item, target(namespace_allowed));
      items.push_back(std::move(item));
    }
    leave();
    return make(Expr::Kind::kTuple, line, std::move(items));
  }
  LOWBIT_TRY_ASSIGN(std::string name, expect_name());
  LOWBIT_TRY_ASSIGN(ExprPtr node, make(Expr::Kind::kName, line, {}, std::move(name)));
  if (!namespace_allowed || !take_op(".")) return node;
  LOWBIT_TRY_ASSIGN(std::string attribute, expect_name());
  std::vector<ExprPtr> args;
  args.push_back(std::move(node));
  return make(Expr::Kind::kAttr, line, std::move(args), std::move(attribute));
}

Result<std::vector<ExprPtr>> Parser::targets() {
  std::vector<ExprPtr> out;
  do {
    LOWBIT_TRY_ASSIGN(ExprPtr item, target(true));
    out.push_back(std::move(item));
  } while (take_op(",") && !is_name("in") && !is_op("="));
  return out;
}

Status Parser::signature(Stmt& stmt) {
  LOWBIT_TRY(expect_op("("));
  while (!take_op(")")) {
    if (!stmt.params.empty()) LOWBIT_TRY(expect_op(","));
    if (take_op(")")) break;
    LOWBIT_TRY_ASSIGN(std::string name, expect_name());
    stmt.params.push_back(std::move(name));
    stmt.defaults.emplace_back();
    if (take_op("=")) {
      LOWBIT_TRY_ASSIGN(stmt.defaults.back(), expression());
    }
  }
  return {};
}

Result<Parser::StmtPtr> Parser::macro_statement(int line) {
  auto stmt = make_stmt(StmtKind::kMacro, line);
  LOWBIT_TRY_ASSIGN(stmt->text, expect_name());
  LOWBIT_TRY(signature(*stmt));
  const int loops = std::exchange(loops_, 0);
  LOWBIT_TRY(body(*stmt, "endmacro"));
  loops_ = loops;
  return stmt;
}

Result<Parser::StmtPtr> Parser::call_statement(int line) {
  auto stmt = make_stmt(StmtKind::kCallBlock, line);
  if (is_op("(")) LOWBIT_TRY(signature(*stmt));
  LOWBIT_TRY_ASSIGN(ExprPtr call, expression());
  if (call->kind != Expr::Kind::kCall) return unexpected("a call of a macro");
  stmt->exprs.push_back(std::move(call));
  const int loops = std::exchange(loops_, 0);
  LOWBIT_TRY(body(*stmt, "endcall"));
  loops_ = loops;
  return stmt;
}

Result<Parser::StmtPtr> Parser::filter_statement(int line) {
  auto stmt = make_stmt(StmtKind::kFilterBlock, line);
  ExprPtr filters;
  do {
    LOWBIT_TRY_ASSIGN(filters, filter(std::move(filters)));
  } while (take_op("|"));
  stmt->exprs.push_back(std::move(filters));
  const int loops = std::exchange(loops_, 0);
  LOWBIT_TRY(body(*stmt, "endfilter"));
  loops_ = loops;
  return stmt;
}

Result<Parser::StmtPtr> Parser::with_statement(int line) {
  auto stmt = make_stmt(StmtKind::kWith, line);
  while (peek().kind != Token::Kind::kBlockEnd) {
    if (!stmt->targets.empty()) LOWBIT_TRY(expect_op(","));
    LOWBIT_TRY_ASSIGN(ExprPtr name, target(false));
    LOWBIT_TRY(expect_op("="));
    LOWBIT_TRY_ASSIGN(ExprPtr value, expression());
    stmt->targets.push_back(std::move(name));
    stmt->exprs.push_back(std::move(value));
  }
  LOWBIT_TRY(body(*stmt, "endwith"));
  return stmt;
}

}  // namespace lowbit::jinja
