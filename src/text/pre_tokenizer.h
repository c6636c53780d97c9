#pragma once
// The pre-tokenizer steps of a TokenizerSpec, compiled: they cut a text into words, which BPE never merges across.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/tokenizer.h"
#include "text/regex.h"

namespace lowbit::text {

/// GPT-2's word pattern: what ByteLevel(use_regex) means.
extern const char* const kGpt2Pattern;

/// A text cut into words.
struct Words {
  std::string text;
  std::vector<Range> ranges;
};

class PreTokenizer {
 public:
  /// Errors: kUnsupported (a bad pattern; ByteLevel not in last place, since later steps would see its alphabet).
  static Result<PreTokenizer> build(const std::vector<PreTokenizerStep>& steps, Budget& budget);

  /// text is valid UTF-8. with_prefix: as in Normalizer::apply. at_start: the text opens the whole input.
  /// Every step charges the budget with what it reads and makes.
  Result<Words> cut(std::string text, bool with_prefix, bool at_start, RegexScratch& scratch, Budget& budget) const;

  /// Whether words are sequences of bytes rather than of characters.
  bool byte_level() const { return byte_level_; }

 private:
  struct Compiled {
    PreTokenizerStep step;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    std::optional<Regex> regex;
  };
  Status split(const Compiled& compiled, Words& words, RegexScratch& scratch, Budget& budget) const;

  std::vector<Compiled> steps_;
  bool byte_level_ = false;
};

}  // namespace lowbit::text
