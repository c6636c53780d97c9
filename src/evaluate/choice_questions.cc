// Files of questions, and two models' answers to them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

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
             bad = json_string(object, "sentence_bad"), passage = json_string(object, "text");
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
  } else if (passage) {
    const size_t space = passage->rfind(' ');
    if (space == 0 || space >= passage->size() - 1)
      return fail(ErrorCode::kCorrupt, where, "a \"text\" without a last word", "words, and a space before the last");
    question.choices = {{passage->substr(0, space), passage->substr(space)}};
    return question;
  } else {
    return fail(ErrorCode::kCorrupt, where, "other keys",
                "\"query\" and \"choices\", \"context_options\" and \"continuation\", \"context\" and "
                "\"continuation\", \"text\", or \"sentence_good\" and \"sentence_bad\"");
  }
  question.gold = json_int(object, "gold").value_or(-1);
  const auto count = static_cast<int64_t>(question.choices.size());
  if (count < 2 || question.gold < 0 || question.gold >= count)
    return fail(ErrorCode::kCorrupt, where, fmt::format("gold {} of {} choices", question.gold, count),
                "at least two choices, and the index of one of them");
  return question;
}

constexpr int kPassageWords = 24;

/// The first words of a line, the last of them to be guessed; nothing for a line that is shorter or whose word is not
/// one of letters.
std::optional<ChoiceQuestion> last_word_of(std::string_view line) {
  size_t begin = 0, end = 0, before = 0;
  for (int word = 0; word < kPassageWords; ++word) {
    before = end;
    begin = line.find_first_not_of(" \t\r", end);
    if (begin == std::string_view::npos) return {};
    end = std::min(line.find_first_of(" \t\r", begin), line.size());
  }
  const std::string_view word = line.substr(begin, end - begin);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (line.substr(before, begin - before) != " " || !std::ranges::all_of(word, is_letter)) return {};
  return ChoiceQuestion{{{std::string(line.substr(0, before)), " " + std::string(word)}}, 0};
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

std::vector<ChoiceQuestion> continuation_questions(const std::string& text, int64_t count) {
  std::vector<ChoiceQuestion> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (auto question = last_word_of(std::string_view(text).substr(begin, end - begin)))
      all.push_back(std::move(*question));
    begin = end + 1;
  }
  const auto have = static_cast<int64_t>(all.size()), wanted = std::min(count, have);
  std::vector<ChoiceQuestion> some;
  for (int64_t i = 0; i < wanted; ++i) some.push_back(std::move(all[static_cast<size_t>(i * have / wanted)]));
  return some;
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
