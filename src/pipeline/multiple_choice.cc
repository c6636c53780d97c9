#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/threads.h"
#include "base/try.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "lowbit/evaluate.h"

namespace lowbit {
namespace {

using nlohmann::json;
constexpr int64_t kLongestFile = int64_t{1} << 30;

std::optional<std::vector<std::string>> strings_of(const json& question, const char* key) {
  const auto it = question.find(key);
  if (it == question.end() || !it->is_array()) return std::nullopt;
  std::vector<std::string> out;
  for (const json& text : *it) {
    if (!text.is_string()) return std::nullopt;
    out.push_back(text.get<std::string>());
  }
  return out;
}

Result<ChoiceQuestion> parse_question(std::string_view line, const std::string& where) {
  LOWBIT_TRY_ASSIGN(const json object, parse_json_object(line, where));
  const auto query = json_string(object, "query"), continuation = json_string(object, "continuation"),
             context = json_string(object, "context"), good = json_string(object, "sentence_good"),
             bad = json_string(object, "sentence_bad");
  const auto choices = strings_of(object, "choices"), contexts = strings_of(object, "context_options");
  ChoiceQuestion question;
  if (query && query->empty() && choices) {
    for (const std::string& choice : *choices) question.choices.push_back({"", choice});
  } else if (query && choices) {
    for (const std::string& choice : *choices) question.choices.push_back({*query + "\nAnswer:", " " + choice});
  } else if (continuation && contexts) {
    for (const std::string& option : *contexts) question.choices.push_back({option, " " + *continuation});
  } else if (continuation && context) {
    if (continuation->empty()) return fail(ErrorCode::kCorrupt, where, "an empty continuation", "some text");
    question.choices = {{*context, *continuation}};
    return question;
  } else if (good && bad) {
    question.choices = {{"", *good}, {"", *bad}};
    return question;
  } else {
    return fail(ErrorCode::kCorrupt, where, "other keys",
                "\"query\" and \"choices\", \"context_options\" and \"continuation\", \"context\" and "
                "\"continuation\", or \"sentence_good\" and \"sentence_bad\"");
  }
  question.gold = json_int(object, "gold").value_or(-1);
  const auto count = static_cast<int64_t>(question.choices.size());
  if (count < 2 || question.gold < 0 || question.gold >= count)
    return fail(ErrorCode::kCorrupt, where, fmt::format("gold {} of {} choices", question.gold, count),
                "at least two choices, and the index of one of them");
  return question;
}

struct TokenScore {
  double log_probability = 0;
  bool likeliest = false;  // of equal ones the first
};

TokenScore score_of(std::span<const float> logits, TokenId token) {
  const auto best = std::max_element(logits.begin(), logits.end());
  const float largest = *best;
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - largest);
  return {static_cast<double>(logits[static_cast<size_t>(token)] - largest) - std::log(sum),
          best - logits.begin() == token};
}

/// A choice in tokens: `context` of them are given, the others are scored.
struct ChoiceTokens {
  std::vector<TokenId> all;
  int64_t context = 0;
};

/// The whole text is tokenized at once; where the context alone would have given other tokens at its end, those count as scored.
Result<ChoiceTokens> tokenize(const Tokenizer& tokenizer, const Choice& choice) {
  const EncodeOptions options{.add_special = true, .parse_special = false};
  ChoiceTokens tokens;
  LOWBIT_TRY_ASSIGN(tokens.all, tokenizer.encode(choice.context + choice.continuation, options));
  LOWBIT_TRY_ASSIGN(auto context, tokenizer.encode(choice.context, options));
  const TokenizerSpec& spec = tokenizer.spec();
  if (const auto start = spec.bos_id ? spec.bos_id : spec.eos_id; context.empty() && start) {
    context = {*start};  // something must stand before the first token that is scored
    tokens.all.insert(tokens.all.begin(), *start);
  }
  const auto [a, b] = std::mismatch(tokens.all.begin(), tokens.all.end(), context.begin(), context.end());
  tokens.context = std::min<int64_t>(a - tokens.all.begin(), static_cast<int64_t>(tokens.all.size()) - 1);
  if (tokens.context < 1)
    return fail(ErrorCode::kInvalidArgument, "multiple choice", "an empty context",
                "at least one token before the choice");
  return tokens;
}

/// Scores the choices of one question after another; a context that stays is run once.
class Scorer {
 public:
  Scorer(Model& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  /// Of all tokens of the continuation.
  Result<TokenScore> score(const Choice& choice) {
    LOWBIT_TRY_ASSIGN(const ChoiceTokens tokens, tokenize(model_.tokenizer(), choice));
    const std::span<const TokenId> all(tokens.all), context = all.first(static_cast<size_t>(tokens.context));
    if (!std::ranges::equal(context, context_)) {
      model_.clear();
      context_.clear();
      LOWBIT_TRY_ASSIGN(const auto logits, model_.prefill(context));
      last_.assign(logits.begin(), logits.end());
      context_.assign(context.begin(), context.end());
    }
    LOWBIT_TRY(model_.truncate(tokens.context));
    const std::span<const TokenId> scored = all.subspan(static_cast<size_t>(tokens.context));
    const auto count = static_cast<int64_t>(scored.size());
    std::vector<TokenScore> parts(scored.size());
    parts[0] = score_of(last_, scored[0]);
    if (count > 1) {
      LOWBIT_TRY(model_.logits_of_all(scored.first(scored.size() - 1), 0, rows_));
      const auto vocab = static_cast<size_t>(model_.info().vocab_size);
      pool_.parallel_for(count - 1, 1, [&](int64_t begin, int64_t end, int) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
          parts[i + 1] = score_of(std::span(rows_).subspan(i * vocab, vocab), scored[i + 1]);
      });
    }
    TokenScore all_of_them{0, true};
    for (const TokenScore& part : parts) {
      all_of_them.log_probability += part.log_probability;
      all_of_them.likeliest &= part.likeliest;
    }
    return all_of_them;
  }

 private:
  Model& model_;
  ThreadPool& pool_;
  std::vector<TokenId> context_;
  std::vector<float> last_, rows_;
};

/// Without the space that parts it from its context.
double bytes_of(const std::string& continuation) {
  const size_t space = continuation.starts_with(' ') ? 1 : 0;
  return static_cast<double>(std::max<size_t>(1, continuation.size() - space));
}

double standard_error(double share, int64_t n) {
  return n > 1 ? std::sqrt(share * (1 - share) / static_cast<double>(n - 1)) : 0;
}

}  // namespace

Result<std::vector<ChoiceQuestion>> read_choice_questions(const std::string& path) {
  LOWBIT_TRY_ASSIGN(const std::string text, read_text_file(path, kLongestFile));
  std::vector<ChoiceQuestion> questions;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    LOWBIT_TRY_ASSIGN(ChoiceQuestion question, parse_question(line, fmt::format("{}:{}", path, number)));
    questions.push_back(std::move(question));
  }
  return questions;
}

Result<ChoiceReport> multiple_choice(Model& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto have = static_cast<int64_t>(questions.size());
  ChoiceReport report;
  report.questions = options.questions > 0 ? std::min(options.questions, have) : have;
  if (report.questions == 0)
    return fail(ErrorCode::kInvalidArgument, "multiple choice", "no questions", "at least one");
  ThreadPool pool(model.info().threads);
  Scorer scorer(model, pool);
  for (int64_t q = 0; q < report.questions; ++q) {
    if (options.progress && !options.progress("questions", q, report.questions))
      return fail(ErrorCode::kCancelled, "multiple choice", "a request to stop");
    const ChoiceQuestion& question = questions[static_cast<size_t>(q)];
    std::vector<double> plain, normalized;
    bool exact = false;
    for (const Choice& choice : question.choices) {
      LOWBIT_TRY_ASSIGN(const TokenScore score, scorer.score(choice));
      plain.push_back(score.log_probability);
      normalized.push_back(score.log_probability / bytes_of(choice.continuation));
      exact = score.likeliest;
    }
    if (question.choices.size() == 1) {
      report.right.push_back(exact);
      report.right_normalized.push_back(exact);
      continue;
    }
    const auto best = [](const std::vector<double>& v) { return std::ranges::max_element(v) - v.begin(); };
    report.right.push_back(best(plain) == question.gold);
    report.right_normalized.push_back(best(normalized) == question.gold);
  }
  const auto share = [&](const std::vector<bool>& right) {
    return static_cast<double>(std::ranges::count(right, true)) / static_cast<double>(report.questions);
  };
  report.accuracy = share(report.right);
  report.accuracy_error = standard_error(report.accuracy, report.questions);
  report.normalized_accuracy = share(report.right_normalized);
  report.normalized_accuracy_error = standard_error(report.normalized_accuracy, report.questions);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Result<PairedDifference> paired_difference(const std::vector<bool>& model, const std::vector<bool>& base) {
  if (model.empty() || model.size() != base.size())
    return fail(ErrorCode::kInvalidArgument, "paired difference",
                fmt::format("{} and {} answers", model.size(), base.size()), "answers of both to the same questions");
  PairedDifference difference;
  for (size_t i = 0; i < model.size(); ++i) {
    difference.only_model += model[i] && !base[i];
    difference.only_base += base[i] && !model[i];
  }
  const auto n = static_cast<double>(model.size());
  difference.mean = static_cast<double>(difference.only_model - difference.only_base) / n;
  const double squares = static_cast<double>(difference.only_model + difference.only_base) / n;
  if (model.size() > 1) difference.error = std::sqrt((squares - difference.mean * difference.mean) / (n - 1));
  return difference;
}

}  // namespace lowbit
