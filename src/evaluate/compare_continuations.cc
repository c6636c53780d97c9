#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/clock.h"
#include "base/try.h"
#include "evaluate/evaluate.h"

namespace lowbit {
namespace {

constexpr int64_t kTogether = 32;     // sequences of a pass
constexpr int64_t kShownBefore = 24;  // tokens

using TokenLists = std::vector<std::vector<TokenId>>;

Status check(const SharedModel& model, const SharedModel& base, int64_t have, const AgreementOptions& o) {
  const int64_t longest = std::min(model.info.context, base.info.context), needed = o.prompt_tokens + o.tokens;
  if (model.info.vocab_size != base.info.vocab_size)
    return fail(ErrorCode::kInvalidArgument, "comparing continuations", fmt::format("{} tokens", model.info.vocab_size),
                fmt::format("{}, the other's vocabulary", base.info.vocab_size), "compare a model with its own source");
  if (o.prompts < 1 || o.prompt_tokens < 1 || o.tokens < 1 || needed > longest)
    return fail(ErrorCode::kInvalidArgument, "comparing continuations",
                fmt::format("{} prompts of {} tokens and {} behind each", o.prompts, o.prompt_tokens, o.tokens),
                fmt::format("1 or more of each, at most {} together", longest), "-c sets the context");
  if (have < o.prompt_tokens)
    return fail(ErrorCode::kInvalidArgument, "comparing continuations", fmt::format("a text of {} tokens", have),
                fmt::format("at least {}", o.prompt_tokens), "a longer text");
  return {};
}

/// Prompts that do not overlap, evenly spread over the text.
TokenLists cut_prompts(std::span<const TokenId> tokens, const TokenizerSpec& spec, const AgreementOptions& o) {
  const int64_t available = static_cast<int64_t>(tokens.size()) / o.prompt_tokens,
                count = std::min(o.prompts, available);
  TokenLists prompts;
  for (int64_t i = 0; i < count; ++i) {
    const auto part = tokens.subspan(static_cast<size_t>(i * available / count * o.prompt_tokens),
                                     static_cast<size_t>(o.prompt_tokens));
    prompts.emplace_back(part.begin(), part.end());
    if (spec.add_bos && spec.bos_id) prompts.back().front() = *spec.bos_id;
  }
  return prompts;
}

/// Appends to each sequence the tokens that are likeliest one after the other.
Status go_on(SharedModel& model, std::span<std::vector<TokenId>> sequences, int64_t tokens,
             const std::function<Status(int64_t done)>& report) {
  const auto vocab = static_cast<size_t>(model.info.vocab_size);
  const auto end = static_cast<int64_t>(sequences.front().size()) + tokens;
  std::vector<KvCache> caches;
  for (size_t i = 0; i < sequences.size(); ++i) caches.emplace_back(model.pages, end);
  std::vector<float> logits(sequences.size() * vocab);
  for (int64_t done = 0; done < tokens; ++done) {
    LOWBIT_TRY(report(done));
    std::vector<SequenceRequest> requests;
    for (size_t i = 0; i < sequences.size(); ++i)
      requests.push_back({std::span<const TokenId>(sequences[i]).subspan(static_cast<size_t>(caches[i].length())),
                          &caches[i], LogitsWanted::last(), std::span(logits).subspan(i * vocab, vocab), nullptr});
    LOWBIT_TRY(model.executor.forward(requests));
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      sequences[i].push_back(static_cast<TokenId>(std::ranges::max_element(row) - row.begin()));
    }
  }
  return {};
}

/// All sequences, as many together as there is room for.
Status go_on_all(SharedModel& model, TokenLists& sequences, const AgreementOptions& o, int64_t before, int64_t all) {
  const int64_t together =
      sequences_together(model, o.prompt_tokens + o.tokens, kTogether * (o.prompt_tokens + o.tokens));
  const auto count = static_cast<int64_t>(sequences.size());
  for (int64_t first = 0; first < count; first += together) {
    const auto some = std::span(sequences).subspan(static_cast<size_t>(first),
                                                   static_cast<size_t>(std::min(together, count - first)));
    LOWBIT_TRY(go_on(model, some, o.tokens, [&](int64_t done) -> Status {
      const int64_t written = before + first * o.tokens + done * static_cast<int64_t>(some.size());
      if (o.progress && !o.progress("continuing", written, all))
        return fail(ErrorCode::kCancelled, "continuing", "a request to stop");
      return {};
    }));
  }
  return {};
}

AgreementReport summarize(const TokenLists& own, const TokenLists& other, const Tokenizer& tokenizer,
                          const AgreementOptions& o) {
  AgreementReport r;
  r.prompts = static_cast<int64_t>(own.size());
  r.prompt_tokens = o.prompt_tokens;
  r.tokens = o.tokens;
  for (size_t i = 0; i < own.size(); ++i) {
    const auto parted = std::ranges::mismatch(own[i], other[i]).in1 - own[i].begin();
    r.lengths.push_back(parted - o.prompt_tokens);
  }
  std::vector<size_t> order(own.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return r.lengths[i]; });
  const auto n = static_cast<double>(own.size());
  r.mean = static_cast<double>(std::accumulate(r.lengths.begin(), r.lengths.end(), int64_t{0})) / n;
  r.never = static_cast<double>(std::ranges::count(r.lengths, o.tokens)) / n;
  const size_t low = order[(own.size() - 1) / 2], high = order[own.size() / 2];
  r.median = static_cast<double>(r.lengths[low] + r.lengths[high]) / 2;
  const auto text = [&tokenizer](const std::vector<TokenId>& ids, int64_t first, int64_t count) {
    const auto part = std::span<const TokenId>(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    return tokenizer.decode(part, {.skip_special = false}).value_or("");
  };
  for (const size_t i : order) {
    if (static_cast<int64_t>(r.examples.size()) >= o.examples || r.lengths[i] == o.tokens) break;
    const int64_t shown = std::min(kShownBefore, o.prompt_tokens), parted = o.prompt_tokens + r.lengths[i];
    r.examples.push_back({text(own[i], o.prompt_tokens - shown, shown), text(own[i], o.prompt_tokens, r.lengths[i]),
                          text(own[i], parted, 1), text(other[i], parted, 1)});
  }
  return r;
}

}  // namespace

Result<AgreementReport> compare_continuations(SharedModel& model, SharedModel& base, const std::string& text,
                                              const AgreementOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const auto tokens, model.tokenizer.encode(text, {.add_special = false, .parse_special = false}));
  LOWBIT_TRY(check(model, base, static_cast<int64_t>(tokens.size()), options));
  TokenLists own = cut_prompts(tokens, model.tokenizer.spec(), options), other = own;
  const int64_t each = static_cast<int64_t>(own.size()) * options.tokens;
  LOWBIT_TRY(go_on_all(model, own, options, 0, 2 * each));
  LOWBIT_TRY(go_on_all(base, other, options, each, 2 * each));
  AgreementReport report = summarize(own, other, model.tokenizer, options);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lowbit
