#pragma once
// The pre-tokenizer steps of a TokenizerSpec, compiled: they cut a text into words, which BPE never merges across.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/tokenizer.h"
#include "text/regex.h"

namespace lowbit::text {

/// GPT-2's word pattern: what ByteLevel(use_regex) means.
extern const char* const kGpt2Pattern;

using UseWord = std::function<Status(std::string_view)>;

/// Working memory of one call at a time.
struct PreTokenizerScratch {
  RegexScratch regex;
  std::vector<bool> reached;            // by step: whether a word has come so far
  std::vector<std::string_view> ready;  // words of the last step
};

class PreTokenizer {
 public:
  /// Errors: kUnsupported (a bad pattern; ByteLevel not in last place, since later steps would see its alphabet).
  static Result<PreTokenizer> build(const std::vector<PreTokenizerStep>& steps, Budget& budget);

  /// Calls `use` with the words of text (valid UTF-8) from left to right; its first error ends it. with_prefix: as in
  /// Normalizer::apply. at_start: the text opens the whole input. A word goes through all steps before the next one is
  /// cut, so that no list of words takes memory. Every step charges the budget with what it reads and makes.
  Status for_each_word(std::string_view text, bool with_prefix, bool at_start, PreTokenizerScratch& scratch,
                       Budget& budget, const UseWord& use) const;

  /// Whether words are sequences of bytes rather than of characters.
  bool byte_level() const { return byte_level_; }

 private:
  struct Compiled {
    PreTokenizerStep step;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    std::optional<Regex> regex;
  };
  class Cutter;

  std::vector<Compiled> steps_;
  bool byte_level_ = false;
};

}  // namespace lowbit::text
