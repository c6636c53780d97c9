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
  static Result<Normalizer> build(const std::vector<NormalizerStep>& steps);

  /// text is valid UTF-8. with_prefix = false leaves out Prepend steps: for text that continues after bytes that are
  /// no UTF-8, where a prefix would not be undone by decode.
  Result<std::string> apply(std::string_view text, bool with_prefix, RegexScratch& scratch) const;

  bool empty() const { return steps_.empty(); }

 private:
  struct Compiled {
    NormalizerStep step;
    std::optional<Regex> regex;
  };
  std::vector<Compiled> steps_;
};

/// Appends the places of `pattern` (not empty) in text, from left to right, not overlapping.
void find_literal(std::string_view text, std::string_view pattern, std::vector<Range>& matches);

/// Replaces every occurrence of `from` (not empty).
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace lowbit::text
