#pragma once
// Template source -> tokens, with Jinja's rules for white space (trim_blocks and lstrip_blocks on).

#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"

namespace lowbit::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  // strings: with escapes resolved
  int line;
};

/// Errors: kInvalidArgument with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

/// "chat template line 3", the `where` of every message about a template.
std::string place(int line);

}  // namespace lowbit::jinja
