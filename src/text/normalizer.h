#pragma once
// The normalizer steps of a TokenizerSpec, compiled.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/tokenizer.h"
#include "text/regex.h"

namespace lowbit::text {

class Normalizer {
 public:
  static Result<Normalizer> build(const std::vector<NormalizerStep>& steps, Budget& budget);

  /// text is valid UTF-8. with_prefix = false leaves out Prepend steps: for text that continues after bytes that are
  /// no UTF-8, where a prefix would not be undone by decode.
  /// Every step charges the budget with what it reads and makes; the bytes of the result stay charged.
  Result<std::string> apply(std::string_view text, bool with_prefix, RegexScratch& scratch, Budget& budget) const;

  bool empty() const { return steps_.empty(); }

 private:
  struct Compiled {
    NormalizerStep step;
    std::optional<Regex> regex;
  };
  static Result<std::string> replace(const Compiled& compiled, std::string_view text, RegexScratch& scratch,
                                     Budget& budget);

  std::vector<Compiled> steps_;
};

/// Calls `use` with the places of `pattern` (not empty) in text, from left to right, not overlapping. Ends early when
/// the budget is exhausted, and where `use` returns false.
void for_each_literal(std::string_view text, std::string_view pattern, Budget& budget, const UseRange& use);

/// Replaces every occurrence of `from` (not empty); "" when the budget is exhausted.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, Budget& budget);

}  // namespace lowbit::text
