#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "base/try.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

using PreTokenizerKind = PreTokenizerStep::Kind;
using Prepend = PreTokenizerStep::Prepend;

constexpr std::size_t kWordSteps = 16;
constexpr std::size_t kWordsAtATime = 8192;  // so that patterns and merges find their code and tables in the cache

constexpr const char* kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";

// Joins matches and what lies between them to words as a behavior asks, and uses each word once it is whole.
class Pieces {
 public:
  Pieces(SplitBehavior behavior, const UseRange& use) : behavior_(behavior), use_(use) {}

  /// As `use`: false ends it.
  bool add(Range piece, bool is_match) {
    if (piece.size() == 0 || (behavior_ == SplitBehavior::kRemoved && is_match)) return true;
    const bool joins = word_.size() > 0 && joins_previous(is_match);
    previous_match_ = is_match;
    if (joins) {
      word_.end = piece.end;
      open_ = false;
      return true;
    }
    if (!finish()) return false;
    word_ = piece;
    open_ = is_match;
    return true;
  }

  bool finish() {
    const Range word = std::exchange(word_, {});
    return word.size() == 0 || use_(word);
  }

 private:
  bool joins_previous(bool is_match) const {
    switch (behavior_) {
      case SplitBehavior::kContiguous:
        return is_match == previous_match_;
      case SplitBehavior::kMergedWithPrevious:
        return is_match && !previous_match_;
      case SplitBehavior::kMergedWithNext:
        return open_ && !is_match;
      default:
        return false;
    }
  }

  SplitBehavior behavior_;
  const UseRange& use_;
  Range word_;
  bool previous_match_ = false, open_ = false;  // open: the word is a match that waits for its successor
};

// The pattern that a step stands for; empty for steps without one.
std::string pattern_of(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerKind::kSplit:
      return step.is_regex ? step.pattern : std::string();
    case PreTokenizerKind::kDigits:
      return R"(\p{N})";
    case PreTokenizerKind::kPunctuation:
      return kPunctuationPattern;
    case PreTokenizerKind::kWhitespaceSplit:
      return R"(\s)";
    case PreTokenizerKind::kWhitespace:
      return R"(\w+|[^\w\s]+)";
    case PreTokenizerKind::kByteLevel:
      return step.use_regex ? kGpt2Pattern : std::string();
    case PreTokenizerKind::kMetaspace:
      return {};
  }
  return {};
}

SplitBehavior behavior_of(const PreTokenizerStep& step) {
  switch (step.kind) {
    case PreTokenizerKind::kDigits:
      return step.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    case PreTokenizerKind::kWhitespaceSplit:
      return SplitBehavior::kRemoved;
    case PreTokenizerKind::kMetaspace:
      return SplitBehavior::kMergedWithNext;
    case PreTokenizerKind::kWhitespace:
      return SplitBehavior::kRemoved;
    case PreTokenizerKind::kByteLevel:
      return SplitBehavior::kIsolated;
    default:
      return step.behavior;
  }
}

}  // namespace

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<PreTokenizer> PreTokenizer::build(const std::vector<PreTokenizerStep>& steps, Budget& budget) {
  PreTokenizer out;
  for (const PreTokenizerStep& step : steps) {
    if (out.byte_level_)
      return fail(ErrorCode::kUnsupported, "tokenizer pre_tokenizer", "a step behind ByteLevel", "ByteLevel last");
    Compiled compiled{step, behavior_of(step), std::nullopt};
    // Whitespace keeps its matches and drops the rest, which is an inverted Split.
    if (step.kind == PreTokenizerKind::kWhitespace) compiled.step.invert = true;
    if (step.kind == PreTokenizerKind::kMetaspace) {
      compiled.step.pattern = step.replacement;
      if (!is_one_character(step.replacement))
        return fail(ErrorCode::kCorrupt, "tokenizer pre_tokenizer Metaspace",
                    fmt::format("a replacement of {} bytes", step.replacement.size()), "one character");
    }
    if (step.kind == PreTokenizerKind::kSplit && step.pattern.empty())
      return fail(ErrorCode::kCorrupt, "tokenizer pre_tokenizer Split", "an empty pattern", "a pattern");
    if (const std::string pattern = pattern_of(step); !pattern.empty()) {
      const bool own = step.kind != PreTokenizerKind::kSplit;  // written here and linear
      LOWBIT_TRY_ASSIGN(compiled.regex, Regex::compile(pattern, "tokenizer pre_tokenizer", budget, own));
    }
    out.byte_level_ = step.kind == PreTokenizerKind::kByteLevel;
    out.steps_.push_back(std::move(compiled));
  }
  return out;
}

// One text on its way through the steps, a word at a time.
class PreTokenizer::Cutter {
 public:
  Cutter(const std::vector<Compiled>& steps, bool with_prefix, bool at_start, PreTokenizerScratch& scratch,
         Budget& budget, const UseWord& use)
      : steps_(steps), with_prefix_(with_prefix), at_start_(at_start), scratch_(scratch), budget_(budget), use_(use) {
    scratch_.reached.assign(steps.size(), false);
    scratch_.ready.clear();
  }

  Status run(std::size_t at, std::string_view text) {
    if (at == steps_.size()) return use_(text);
    const Compiled& compiled = steps_[at];
    const bool is_first = !scratch_.reached[at];
    scratch_.reached[at] = true;
    std::string changed;
    if (change(compiled.step, text, is_first, changed)) text = changed;
    if (!budget_.spend_bytes(changed.size()) || !budget_.spend_steps(text.size() + changed.size() + kWordSteps))
      return budget_.status("tokenizer pre_tokenizer");
    const bool whole = compiled.step.kind == PreTokenizerKind::kByteLevel   ? !compiled.step.use_regex
                       : compiled.step.kind == PreTokenizerKind::kMetaspace ? !compiled.step.split
                                                                            : false;
    LOWBIT_TRY(whole ? run(at + 1, text) : split(compiled, at, text));
    budget_.give_back(changed.size());
    return {};
  }

 private:
  // Spaces replaced and a prefix put before a text, where a step does so. False: nothing changes.
  bool change(const PreTokenizerStep& step, std::string_view text, bool is_first, std::string& changed) {
    if (step.kind == PreTokenizerKind::kByteLevel) {
      if (!step.add_prefix_space || !with_prefix_ || text.starts_with(' ')) return false;
      changed.append(" ").append(text);
      return true;
    }
    if (step.kind != PreTokenizerKind::kMetaspace) return false;
    changed = replace_all(text, " ", step.replacement, budget_);
    budget_.give_back(changed.size());  // run() charges it
    const bool prefix = with_prefix_ && (step.prepend == Prepend::kAlways ||
                                         (step.prepend == Prepend::kFirst && is_first && at_start_));
    if (prefix && !changed.starts_with(step.replacement)) changed.insert(0, step.replacement);
    return true;
  }

  Status split(const Compiled& compiled, std::size_t step, std::string_view text) {
    Status status;
    // By reference below: a function keeps so much on the heap, which a text of one-letter words would pay for each.
    const auto use_word = [&](Range word) {
      if (step + 1 < steps_.size()) {
        status = run(step + 1, text.substr(word.begin, word.size()));
      } else {
        scratch_.ready.push_back(text.substr(word.begin, word.size()));
        if (scratch_.ready.size() >= kWordsAtATime) status = use_ready();
      }
      return status.has_value();
    };
    const UseRange next = std::ref(use_word);
    Pieces pieces(compiled.behavior, next);
    const bool invert = compiled.step.invert;
    std::size_t at = 0;
    const auto use_match = [&](Range match) {
      const Range before{at, match.begin};
      at = match.end;
      return budget_.spend_steps(2 * kWordSteps) && pieces.add(before, invert) && pieces.add(match, !invert);
    };
    const UseRange use = std::ref(use_match);
    if (compiled.regex) {
      LOWBIT_TRY(compiled.regex->for_each_match(text, scratch_.regex, budget_, use));
    } else {
      for_each_literal(text, compiled.step.pattern, budget_, use);
    }
    if (status && !budget_.exhausted() && pieces.add({at, text.size()}, invert)) pieces.finish();
    LOWBIT_TRY(status);
    LOWBIT_TRY(use_ready());
    return budget_.status("tokenizer pre_tokenizer");
  }

  Status use_ready() {
    for (const std::string_view word : scratch_.ready) LOWBIT_TRY(use_(word));
    scratch_.ready.clear();
    return {};
  }

  const std::vector<Compiled>& steps_;
  bool with_prefix_, at_start_;
  PreTokenizerScratch& scratch_;
  Budget& budget_;
  const UseWord& use_;
};

Status PreTokenizer::for_each_word(std::string_view text, bool with_prefix, bool at_start, PreTokenizerScratch& scratch,
                                   Budget& budget, const UseWord& use) const {
  if (!text.empty()) LOWBIT_TRY(Cutter(steps_, with_prefix, at_start, scratch, budget, use).run(0, text));
  return budget.status("tokenizer pre_tokenizer");
}

}  // namespace lowbit::text
