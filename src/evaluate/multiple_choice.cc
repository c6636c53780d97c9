#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>

#include "base/checked.h"
#include "base/try.h"
#include "evaluate/evaluate.h"
#include "evaluate/prefix_tree.h"
#include "ops/log_softmax.h"

namespace lowbit {
namespace {

constexpr int64_t kRowsTogether = 128;   // of a group: more are hardly faster
constexpr int64_t kShareOfWeights = 20;  // pages of a group take no more memory than this part of the weights

/// A choice in tokens: `context` of them are given, the others are scored.
struct ChoiceTokens {
  std::vector<TokenId> all;
  int64_t context = 0;
  std::vector<ChoiceScore> parts;  // of the tokens that are scored

  /// The last token's successor does not count.
  std::span<const TokenId> run() const { return std::span(all).first(all.size() - 1); }
  /// The score of the whole continuation.
  ChoiceScore score() const {
    ChoiceScore sum{0, true};
    for (const ChoiceScore& part : parts) {
      sum.log_probability += part.log_probability;
      sum.likeliest &= part.likeliest;
    }
    return sum;
  }
};

/// The whole text is tokenized at once; where the context alone would have given other tokens at its end, those count
/// as scored.
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
  tokens.parts.resize(tokens.all.size() - static_cast<size_t>(tokens.context));
  return tokens;
}

/// Scores choices in groups: what those of a group have in common is run once, and all that can run at the same time
/// does. What all of a group begin with is kept for the next one.
class ChoiceScorer {
 public:
  explicit ChoiceScorer(SharedModel& model) : model_(model), kept_(empty()) {}

  /// Adds choices of one question. Where they do not fit, the group before is scored first; where there are not even
  /// pages for them, they come in parts.
  Status add(std::vector<ChoiceTokens> choices) {
    Cost cost;
    for (size_t i = 0; i < choices.size(); ++i)
      cost = cost + cost_of(choices[i], i > 0 ? choices[i - 1].run() : before());
    const bool many = cost_.rows + cost.rows > std::min(kRowsTogether, model_.transformer->batch());
    if (many || !has_pages(cost_ + cost)) LOWBIT_TRY(flush());
    for (ChoiceTokens& choice : choices) {
      if (!has_pages(cost_ + cost_of(choice, before()))) LOWBIT_TRY(flush());
      cost_ = cost_ + cost_of(choice, before());
      group_.push_back(std::move(choice));
    }
    return {};
  }

  /// Scores what was added since.
  Status flush() {
    if (group_.empty()) return {};
    std::vector<std::span<const TokenId>> sequences;
    for (const ChoiceTokens& choice : group_) sequences.push_back(choice.run());
    std::vector<size_t> members(group_.size());
    std::iota(members.begin(), members.end(), 0);
    std::vector<Branch> level;
    for (PrefixSegment& segment : next_segments(sequences, members, 0)) level.push_back({std::move(segment), empty()});
    if (level.size() == 1) take_kept(level[0]);
    kept_.clear();
    kept_tokens_.clear();
    for (bool trunk = level.size() == 1; !level.empty(); trunk = false) {
      LOWBIT_TRY(run(level));
      if (trunk) keep(level[0]);
      std::vector<Branch> next;
      for (Branch& branch : level) {
        auto segments = next_segments(sequences, branch.segment.members, branch.segment.last);
        for (PrefixSegment& s : segments) {
          const bool last = &s == &segments.back();  // which needs no copy
          next.push_back({std::move(s), last ? std::move(branch.cache) : branch.cache.fork()});
        }
      }
      level = std::move(next);
    }
    for (const ChoiceTokens& choice : group_) scores_.push_back(choice.score());
    group_.clear();
    cost_ = {};
    return {};
  }

  /// Scores of all choices in the order in which they were added, after flush().
  const std::vector<ChoiceScore>& scores() const { return scores_; }

 private:
  struct Cost {
    int64_t rows = 0, pages = 0;
    Cost operator+(const Cost& other) const { return {rows + other.rows, pages + other.pages}; }
  };
  struct Branch {
    PrefixSegment segment;
    KvCache cache;
  };
  KvCache empty() const { return {model_.pages, model_.info.context}; }

  /// The branch that the next choice may share its beginning with.
  std::span<const TokenId> before() const { return group_.empty() ? kept_tokens_ : group_.back().run(); }
  static Cost cost_of(const ChoiceTokens& choice, std::span<const TokenId> before) {
    const auto length = static_cast<int64_t>(choice.run().size());
    const int64_t common = common_prefix(choice.run(), before);
    return {length - common, ceil_div(length, kKvPage) - common / kKvPage};
  }
  bool has_pages(const Cost& cost) const {
    if (group_.empty()) return true;  // else nothing ever would
    int64_t page_bytes = 0;
    for (size_t g = 0; g < model_.pages->groups().size(); ++g)
      page_bytes += model_.pages->page_bytes(static_cast<int>(g));
    const int64_t free = model_.pages->max_pages() - model_.pages->pages_in_use();
    const int64_t affordable = model_.info.weight_bytes / kShareOfWeights / page_bytes;
    return cost.pages < std::min(free, affordable);  // one more for what is kept
  }

  /// Takes the tokens of this branch that the group before has left; rows that are scored run again.
  void take_kept(Branch& branch) {
    const ChoiceTokens& one = group_[branch.segment.members.front()];
    int64_t length = std::min(common_prefix(kept_tokens_, one.run()), branch.segment.last - 1);
    for (const size_t m : branch.segment.members) length = std::min(length, group_[m].context - 1);
    if (length < kWorthSharing || !kept_.can_truncate(length)) return;
    branch.cache = std::move(kept_);
    kept_ = empty();
    (void)branch.cache.truncate(length);  // it has at least as many
  }
  void keep(const Branch& branch) {
    kept_ = branch.cache.fork();
    const auto tokens = group_[branch.segment.members.front()].run().first(static_cast<size_t>(branch.segment.last));
    kept_tokens_.assign(tokens.begin(), tokens.end());
  }

  Status run(std::vector<Branch>& level) {
    std::vector<SequenceRequest> requests;
    std::vector<LogitsSink> sinks;
    sinks.reserve(level.size());
    for (Branch& branch : level) {
      const auto& [unused, last, members] = branch.segment;
      const int64_t first = branch.cache.length();
      int64_t wanted = last;  // the first position whose logits are
      for (const size_t m : members) wanted = std::min(wanted, std::max(group_[m].context - 1, first));
      sinks.emplace_back([this, &of = branch.segment.members, wanted](int64_t row, std::span<const float> logits) {
        take(of, wanted + row, logits);
      });
      const auto tokens =
          group_[members.front()].run().subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
      requests.push_back(
          {tokens, &branch.cache, LogitsWanted::range(wanted - first, last - wanted, &sinks.back()), {}, nullptr});
    }
    return model_.executor.forward(requests);
  }

  /// Logits at a position, of choices that have the same tokens up to there.
  void take(const std::vector<size_t>& members, int64_t position, std::span<const float> logits) {
    const LogSoftmax soft = log_softmax(logits);
    for (const size_t m : members) {
      ChoiceTokens& choice = group_[m];
      const auto part = position - (choice.context - 1);
      if (part < 0) continue;  // still its context
      const TokenId truth = choice.all[static_cast<size_t>(position + 1)];
      choice.parts[static_cast<size_t>(part)] = {soft.of(logits[static_cast<size_t>(truth)]), soft.top == truth};
    }
  }

  SharedModel& model_;
  std::vector<ChoiceTokens> group_;
  Cost cost_;  // of the group
  KvCache kept_;
  std::vector<TokenId> kept_tokens_;
  std::vector<ChoiceScore> scores_;
};

/// Without the space that parts it from its context.
double bytes_of(const std::string& continuation) {
  const size_t space = continuation.starts_with(' ') ? 1 : 0;
  return static_cast<double>(std::max<size_t>(1, continuation.size() - space));
}

double standard_error(double share, int64_t n) {
  return n > 1 ? std::sqrt(share * (1 - share) / static_cast<double>(n - 1)) : 0;
}

/// Whether a question is answered rightly, and rightly by length.
std::pair<bool, bool> is_right(const ChoiceQuestion& question, std::span<const ChoiceScore> scores) {
  if (scores.size() == 1) return {scores[0].likeliest, scores[0].likeliest};
  std::vector<double> plain, normalized;
  for (size_t i = 0; i < scores.size(); ++i) {
    plain.push_back(scores[i].log_probability);
    normalized.push_back(scores[i].log_probability / bytes_of(question.choices[i].continuation));
  }
  const auto best = [](const std::vector<double>& v) { return std::ranges::max_element(v) - v.begin(); };
  return {best(plain) == question.gold, best(normalized) == question.gold};
}

}  // namespace

Result<std::vector<ChoiceScore>> score_choices(SharedModel& model, std::span<const ChoiceQuestion> questions,
                                               const Progress& progress) {
  ChoiceScorer scorer(model);
  for (const ChoiceQuestion& question : questions) {
    if (progress && !progress("questions", &question - questions.data(), static_cast<int64_t>(questions.size())))
      return fail(ErrorCode::kCancelled, "multiple choice", "a request to stop");
    std::vector<ChoiceTokens> choices;
    for (const Choice& choice : question.choices) {
      LOWBIT_TRY_ASSIGN(ChoiceTokens tokens, tokenize(model.tokenizer, choice));
      choices.push_back(std::move(tokens));
    }
    LOWBIT_TRY(scorer.add(std::move(choices)));
  }
  LOWBIT_TRY(scorer.flush());
  return scorer.scores();
}

Result<ChoiceReport> multiple_choice(SharedModel& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto have = static_cast<int64_t>(questions.size());
  ChoiceReport report;
  report.questions = options.questions > 0 ? std::min(options.questions, have) : have;
  if (report.questions == 0)
    return fail(ErrorCode::kInvalidArgument, "multiple choice", "no questions", "at least one");
  const std::span asked(questions.data(), static_cast<size_t>(report.questions));
  LOWBIT_TRY_ASSIGN(const std::vector<ChoiceScore> all, score_choices(model, asked, options.progress));
  std::span<const ChoiceScore> scores = all;
  for (const ChoiceQuestion& question : asked) {
    const auto [plain, normalized] = is_right(question, scores.first(question.choices.size()));
    report.right.push_back(plain);
    report.right_normalized.push_back(normalized);
    scores = scores.subspan(question.choices.size());
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

}  // namespace lowbit
