#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/try.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace lowbit::text {
namespace {

using PreTokenizerKind = PreTokenizerStep::Kind;
using Prepend = PreTokenizerStep::Prepend;

constexpr std::size_t kRangeBytes = 64;  // of lists that grow: matches, pieces, words
constexpr std::size_t kRangeSteps = 16;

constexpr const char* kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";

struct Piece {
  Range range;
  bool is_match = false;
};

// Matches and what lies between them, without gaps; pieces may be empty only by being left out.
std::vector<Piece> cut_at(Range whole, const std::vector<Range>& matches, bool invert) {
  std::vector<Piece> pieces;
  std::size_t at = whole.begin;
  for (const Range& m : matches) {
    if (m.begin > at) pieces.push_back({{at, m.begin}, invert});
    pieces.push_back({m, !invert});
    at = m.end;
  }
  if (whole.end > at) pieces.push_back({{at, whole.end}, invert});
  return pieces;
}

void merge_pieces(const std::vector<Piece>& pieces, SplitBehavior behavior, std::vector<Range>& out) {
  const std::size_t first = out.size();
  bool previous_match = false, open = false;  // open: a match that waits for its successor
  for (const auto& [range, is_match] : pieces) {
    const bool has_previous = out.size() > first;
    switch (behavior) {
      case SplitBehavior::kIsolated:
        out.push_back(range);
        break;
      case SplitBehavior::kRemoved:
        if (!is_match) out.push_back(range);
        break;
      case SplitBehavior::kContiguous:
        if (has_previous && is_match == previous_match) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (is_match && !previous_match && has_previous) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        break;
      case SplitBehavior::kMergedWithNext:
        if (open && !is_match) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        open = is_match;
        break;
    }
    previous_match = is_match;
  }
}

// The output of a step: texts with `more` bytes for each word, and their ranges.
bool spend_words(const Words& words, std::size_t more, Budget& budget) {
  const std::size_t n = words.ranges.size();
  return budget.spend_bytes(words.text.size()) && budget.spend_bytes(n, kRangeBytes) && budget.spend_bytes(n, more) &&
         budget.spend_steps(words.text.size()) && budget.spend_steps(n, kRangeSteps + more);
}

// Puts `prefix` before each range for which wanted(range text, is first) holds.
template <class Wanted>
void insert_prefixes(Words& words, std::string_view prefix, Budget& budget, Wanted wanted) {
  if (!spend_words(words, prefix.size(), budget)) return;
  Words out;
  out.text.reserve(words.text.size() + prefix.size());
  for (std::size_t i = 0; i < words.ranges.size(); ++i) {
    const auto text = std::string_view(words.text).substr(words.ranges[i].begin, words.ranges[i].size());
    const std::size_t begin = out.text.size();
    if (wanted(text, i == 0)) out.text += prefix;
    out.text += text;
    out.ranges.push_back({begin, out.text.size()});
  }
  words = std::move(out);
}

void replace_spaces(Words& words, std::string_view replacement, Budget& budget) {
  if (!spend_words(words, 0, budget)) return;
  Words out;
  for (const Range& r : words.ranges) {
    const std::size_t begin = out.text.size();
    out.text += replace_all(std::string_view(words.text).substr(r.begin, r.size()), " ", replacement, budget);
    out.ranges.push_back({begin, out.text.size()});
  }
  words = std::move(out);
}

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

Status PreTokenizer::split(const Compiled& compiled, Words& words, RegexScratch& scratch, Budget& budget) const {
  std::vector<Range> out, matches;
  out.reserve(words.ranges.size());
  for (const Range& r : words.ranges) {
    const auto text = std::string_view(words.text).substr(r.begin, r.size());
    matches.clear();
    if (compiled.regex) {
      LOWBIT_TRY(compiled.regex->find_all(text, scratch, budget, matches));
    } else {
      find_literal(text, compiled.step.pattern, budget, matches);
    }
    if (!budget.spend_bytes(2 * matches.size() + 1, kRangeBytes) || !budget.spend_steps(text.size() + kRangeSteps))
      return budget.status("tokenizer pre_tokenizer");
    for (Range& m : matches) m = {m.begin + r.begin, m.end + r.begin};
    merge_pieces(cut_at(r, matches, compiled.step.invert), compiled.behavior, out);
  }
  words.ranges = std::move(out);
  return {};
}

Result<Words> PreTokenizer::cut(std::string text, bool with_prefix, bool at_start, RegexScratch& scratch,
                                Budget& budget) const {
  Words words{std::move(text), {}};
  if (!words.text.empty()) words.ranges.push_back({0, words.text.size()});
  for (const Compiled& compiled : steps_) {
    const PreTokenizerStep& step = compiled.step;
    if (step.kind == PreTokenizerKind::kByteLevel) {
      if (step.add_prefix_space && with_prefix)
        insert_prefixes(words, " ", budget, [](std::string_view t, bool) { return !t.starts_with(' '); });
      if (!step.use_regex) continue;
    }
    if (step.kind == PreTokenizerKind::kMetaspace) {
      replace_spaces(words, step.replacement, budget);
      if (step.prepend != Prepend::kNever && with_prefix)
        insert_prefixes(words, step.replacement, budget, [&](std::string_view t, bool first) {
          return !t.starts_with(step.replacement) && (step.prepend == Prepend::kAlways || (first && at_start));
        });
      if (!step.split) continue;
    }
    LOWBIT_TRY(split(compiled, words, scratch, budget));
  }
  LOWBIT_TRY(budget.status("tokenizer pre_tokenizer"));
  return words;
}

}  // namespace lowbit::text
