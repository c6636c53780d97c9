#include "lowbit/long_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "base/try.h"
#include "evaluate/evaluate.h"

namespace lowbit {
namespace {

constexpr int64_t kLeastLength = 512, kTokensOfAFact = 40;  // of text for each fact at the least
constexpr int64_t kShownTokens = 24;
constexpr std::array<const char*, 32> kNames = {
    "Anna",   "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry",  "Irene",  "Jacob", "Karla",
    "Louis",  "Maria", "Oscar", "Paula", "Ralph", "Sarah", "Tomas", "Ursula", "Victor", "Wanda", "Xavier",
    "Yvonne", "Zeno",  "Alice", "Bruno", "Cecil", "Diana", "Edgar", "Fiona",  "George", "Helen"};

/// A question behind a text, and its answer: tokens [first, second) of it.
struct Question {
  std::vector<TokenId> tokens;
  std::vector<std::pair<size_t, size_t>> answers;
  bool is_chain = false;
};

/// A text with facts in it, and what is asked.
struct Haystack {
  std::vector<TokenId> tokens;
  std::vector<Question> questions;
};

class Maker {
 public:
  Maker(const Tokenizer& tokenizer, std::span<const TokenId> filler) : tokenizer_(tokenizer), filler_(filler) {}

  /// `index`: which part of the filler, and which numbers.
  Result<Haystack> make(int64_t length, int64_t index, int64_t written) {
    Rng rng(uint64_t(1 + index));
    const int64_t facts = std::min<int64_t>(int64_t(kNames.size()), length / kTokensOfAFact / 2);
    std::vector<std::string> sentences;
    Haystack made;
    LOWBIT_TRY(write_facts(rng, facts, sentences, made));
    int64_t tail = written;
    for (const Question& q : made.questions) tail = std::max(tail, int64_t(q.tokens.size()));
    std::vector<std::vector<TokenId>> inserted;
    const TokenizerSpec& spec = tokenizer_.spec();
    if (spec.add_bos && spec.bos_id) made.tokens.push_back(*spec.bos_id);
    int64_t left = length - tail - int64_t(made.tokens.size());
    for (const std::string& sentence : sentences) {
      LOWBIT_TRY_ASSIGN(auto ids, encode(sentence));
      left -= int64_t(ids.size());
      inserted.push_back(std::move(ids));
    }
    const auto from = int64_t(filler_.size()) > left ? index * left % (int64_t(filler_.size()) - left + 1) : 0;
    if (left < 1 || int64_t(filler_.size()) < left)
      return fail(ErrorCode::kInvalidArgument, "probing a long context",
                  fmt::format("a text of {} tokens", filler_.size()),
                  fmt::format("at least {}", std::max<int64_t>(left, 1)), "a longer text, or shorter lengths");
    const auto text = filler_.subspan(size_t(from), size_t(left));
    for (size_t i = 0, at = 0; i <= inserted.size(); ++i) {
      const size_t end = i == inserted.size() ? text.size() : text.size() * (i + 1) / (inserted.size() + 1);
      made.tokens.insert(made.tokens.end(), text.begin() + int64_t(at), text.begin() + int64_t(end));
      if (i < inserted.size()) made.tokens.insert(made.tokens.end(), inserted[i].begin(), inserted[i].end());
      at = end;
    }
    return made;
  }

 private:
  Result<std::vector<TokenId>> encode(const std::string& text) const {
    return tokenizer_.encode(text, {.add_special = false, .parse_special = false});
  }
  Status add(const std::string& prompt, const std::string& answer, Question& to) const {
    LOWBIT_TRY_ASSIGN(const auto before, encode(prompt));
    LOWBIT_TRY_ASSIGN(const auto ids, encode(answer));
    to.tokens.insert(to.tokens.end(), before.begin(), before.end());
    to.answers.emplace_back(to.tokens.size(), to.tokens.size() + ids.size());
    to.tokens.insert(to.tokens.end(), ids.begin(), ids.end());
    return {};
  }
  /// Two facts of each name, in an order of their own, and a question of each.
  Status write_facts(Rng& rng, int64_t names, std::vector<std::string>& sentences, Haystack& to) const {
    Question chain{{}, {}, true};
    std::string before = "\nLet us count the apples, one after the other.";
    int64_t sum = 0;
    for (int64_t i = 0; i < names; ++i) {
      const char* const name = kNames[size_t(i)];
      const int64_t number = 1000 + int64_t(rng.below(9000)), apples = 1 + int64_t(rng.below(9));
      // The number stands right behind the name: small models find it there, but not at the end of a sentence that all
      // facts have in common (docs/adr/0167-needles-that-f16-finds.md).
      sentences.push_back(fmt::format("\nSecret number: {} {}.\n", name, number));
      sentences.push_back(fmt::format("\n{} has {} apples.\n", name, apples));
      Question& needle = to.questions.emplace_back();
      LOWBIT_TRY(add(fmt::format("\nSecret number: {}", name), fmt::format(" {}", number), needle));
      sum += apples;
      LOWBIT_TRY(
          add(before + fmt::format(" {} has", name), fmt::format(" {} apples, which makes {}", apples, sum), chain));
      before = ".";
    }
    to.questions.push_back(std::move(chain));
    for (size_t i = sentences.size(); i > 1; --i) std::swap(sentences[i - 1], sentences[size_t(rng.below(i))]);
    return {};
  }

  const Tokenizer& tokenizer_;
  std::span<const TokenId> filler_;
};

TokenId likeliest(std::span<const float> logits) { return TokenId(std::ranges::max_element(logits) - logits.begin()); }

/// One model behind one text.
struct Answers {
  std::vector<bool> right;  // of all answers of all questions
  std::vector<TokenId> written;
};

Result<Answers> answer(SharedModel& model, const Haystack& haystack, int64_t written) {
  const auto vocab = size_t(model.info.vocab_size);
  KvCache text(model.pages, model.info.context);
  std::vector<float> logits(vocab);
  LOWBIT_TRY(model.executor.forward(haystack.tokens, text, LogitsWanted::last(), logits));
  Answers answers;
  for (const Question& q : haystack.questions) {
    KvCache cache = text.fork();
    const size_t first = q.answers.front().first, rows = q.tokens.size() - first;
    std::vector<TokenId> said(rows);  // the likeliest in the place of each token from `first` on
    const LogitsSink sink = [&](int64_t row, std::span<float> of_row) { said[size_t(row)] = likeliest(of_row); };
    const auto tokens = std::span(q.tokens).first(q.tokens.size() - 1);
    LOWBIT_TRY(
        model.executor.forward(tokens, cache, LogitsWanted::range(int64_t(first) - 1, int64_t(rows), &sink), {}));
    for (const auto& [begin, end] : q.answers)
      answers.right.push_back(std::equal(q.tokens.begin() + int64_t(begin), q.tokens.begin() + int64_t(end),
                                         said.begin() + int64_t(begin - first)));
  }
  for (int64_t i = 0; i < written; ++i) {
    answers.written.push_back(likeliest(logits));
    if (i + 1 < written)
      LOWBIT_TRY(model.executor.forward({&answers.written.back(), 1}, text, LogitsWanted::last(), logits));
  }
  return answers;
}

void count(const Haystack& haystack, const Answers& base, const Answers& model, LongContextLength& to) {
  size_t i = 0;
  for (const Question& q : haystack.questions)
    for (size_t answer = 0; answer < q.answers.size(); ++answer, ++i) {
      ProbeScore& score = q.is_chain ? to.chain : to.needle;
      ++score.asked;
      score.base += base.right[i];
      score.model += model.right[i];
      score.both += base.right[i] && model.right[i];
    }
}

WrittenText compare_written(const Haystack& haystack, const Answers& base, const Answers& model,
                            const Tokenizer& tokenizer) {
  const auto text = [&](std::span<const TokenId> ids) {
    StreamDecoder decoder(tokenizer, {.skip_special = false});
    std::string characters;
    for (const TokenId id : ids) characters += decoder.push(id).value_or("");
    return characters + decoder.flush();
  };
  const auto shown = std::min(size_t(kShownTokens), haystack.tokens.size());
  return {std::ranges::mismatch(base.written, model.written).in1 - base.written.begin(),
          text(std::span(haystack.tokens).last(shown)), text(base.written), text(model.written)};
}

Result<std::vector<int64_t>> choose_lengths(const SharedModel& model, const SharedModel& base,
                                            const LongContextOptions& o) {
  const int64_t longest = std::min(model.info.context, base.info.context);
  std::vector<int64_t> lengths = o.lengths;
  if (lengths.empty())
    for (const int64_t part : {4, 2, 1})
      if (longest / part >= kLeastLength) lengths.push_back(longest / part);
  if (model.info.vocab_size != base.info.vocab_size)
    return fail(ErrorCode::kInvalidArgument, "probing a long context", fmt::format("{} tokens", model.info.vocab_size),
                fmt::format("{}, the other's vocabulary", base.info.vocab_size), "the same model with an f16 cache");
  for (const int64_t length : lengths)
    if (length < kLeastLength || length > longest)
      return fail(ErrorCode::kInvalidArgument, "probing a long context", fmt::format("{} tokens", length),
                  fmt::format("{} to {}", kLeastLength, longest), "-c sets the context");
  if (lengths.empty() || o.texts < 1 || o.written < 1 || o.written > kLeastLength / 4)
    return fail(ErrorCode::kInvalidArgument, "probing a long context",
                fmt::format("{} texts, {} tokens behind each, a context of {}", o.texts, o.written, longest),
                fmt::format("1 or more, 1 to {}, at least {}", kLeastLength / 4, kLeastLength));
  return lengths;
}

}  // namespace

Result<LongContextReport> probe_long_context(SharedModel& model, SharedModel& base, const std::string& text,
                                             const LongContextOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const auto lengths, choose_lengths(model, base, options));
  LOWBIT_TRY_ASSIGN(const auto filler, model.tokenizer.encode(text, {.add_special = false, .parse_special = false}));
  int64_t all = 0, done = 0;
  for (const int64_t length : lengths) all += 2 * length * options.texts;
  const auto go_on = [&](int64_t tokens) -> Status {
    if (options.progress && !options.progress("probing", done, all))
      return fail(ErrorCode::kCancelled, "probing", "a request to stop");
    done += tokens;
    return {};
  };
  Maker maker(model.tokenizer, filler);
  LongContextReport report;
  for (const int64_t length : lengths) {
    LongContextLength& to = report.lengths.emplace_back();
    to.length = length;
    for (int64_t i = 0; i < options.texts; ++i) {
      LOWBIT_TRY_ASSIGN(const Haystack haystack, maker.make(length, i, options.written));
      LOWBIT_TRY(go_on(length));
      LOWBIT_TRY_ASSIGN(const Answers of_base, answer(base, haystack, options.written));
      LOWBIT_TRY(go_on(length));
      LOWBIT_TRY_ASSIGN(const Answers of_model, answer(model, haystack, options.written));
      count(haystack, of_base, of_model, to);
      to.written.push_back(compare_written(haystack, of_base, of_model, model.tokenizer));
    }
  }
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lowbit
