#pragma once
// The syntax tree of a template, and the callables and loops that the evaluator makes of it.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace lowbit::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kConst,    // constant
    kName,     // name
    kList,     // args
    kTuple,    // args
    kDict,     // args: key, value, key, value, ...
    kAttr,     // args[0].name
    kItem,     // args[0][args[1]]
    kSlice,    // only as args[1] of kItem; args: start, stop, step, each possibly null
    kCall,     // args[0](args[1..], kwargs)
    kFilter,   // args[0] | name(args[1..], kwargs); args[0] is null in a filter block
    kTest,     // args[0] is name(args[1..])
    kNot,      // args[0]
    kNegate,   // args[0]
    kPlus,     // args[0]
    kBinary,   // args[0] name args[1]: + - * / // % **
    kCompare,  // args[0] ops[0] args[1] ops[1] args[2] ...
    kAnd,
    kOr,
    kConcat,  // args joined as text
    kCond,    // args[1] if args[0] else args[2] (may be null)
  };
  Kind kind;
  int line;
  int depth = 1;  // of the tree below, bounded by the parser
  Value constant;
  std::string name;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> kwargs;
  std::vector<std::string> ops;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind {
    kText,         // text
    kOutput,       // exprs[0]
    kIf,           // exprs[i] -> blocks[i]; one block more for else
    kFor,          // targets in exprs[0] if exprs[1]; blocks: body, else
    kSet,          // targets = exprs[0]
    kSetBlock,     // targets[0] = blocks[0], through exprs[0] (a chain of filters, may be null)
    kMacro,        // name(params = exprs) blocks[0]
    kCallBlock,    // call(params) exprs[0] is the call; blocks[0] the caller's body; defaults in `defaults`
    kFilterBlock,  // exprs[0], a chain of filters, over blocks[0]
    kWith,         // targets[i] = exprs[i]; blocks[0]
    kScope,        // blocks[0] in a scope of its own (generation)
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text;              // kText; kMacro: the name
  std::vector<ExprPtr> exprs;    // may hold null
  std::vector<ExprPtr> targets;  // kName, kAttr (namespace attribute) or kTuple
  std::vector<Block> blocks;
  std::vector<std::string> params;  // kMacro, kCallBlock
  std::vector<ExprPtr> defaults;    // one per parameter, may be null
};

/// Variables of one block; the parent is where the block stands in the source.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;
};

struct Callable {
  enum class Kind { kMacro, kGlobal, kMethod };
  Kind kind;
  const Stmt* macro = nullptr;  // kMacro: kMacro or kCallBlock statement
  Scope* scope = nullptr;       // kMacro: where it was defined
  std::string name;             // kGlobal, kMethod
  Value self;                   // kMethod
};

struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  int depth = 1;
  mutable Value changed;  // loop.changed()
  mutable bool has_changed = false;
};

}  // namespace lowbit::jinja
