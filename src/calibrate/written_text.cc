#include "calibrate/written_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/checked.h"
#include "base/rng.h"
#include "base/try.h"
#include "calibrate/openings.h"
#include "calibrate/text_room.h"
#include "lowbit/chat_template.h"
#include "model/model_spec.h"
#include "model/source_tokenizer.h"
#include "runtime/executor.h"
#include "runtime/sampler.h"
#include "runtime/token_chooser.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

/// That run together at most, on a CPU and a GPU: their keys and values are the memory that it takes. From 16 on more
/// of them save a CPU little time.
constexpr int64_t kSessions = 64, kLeastSessions = 8, kSessionsOnGpu = 128;
/// Of a call to a device that chooses them: enough for it to be busy, few enough to be stopped.
constexpr size_t kTokensAtOnce = 32;
constexpr char kSaidByUser[] = "> ";
constexpr char kMark[] = "\x02";
/// Streams of random numbers, apart from each other and from the sampler's.
constexpr uint64_t kKindStream = 1, kBeginningStream = 2;

/// The lines of openings.txt; \n in a line stands for a line break.
std::vector<std::string> opening_lines() {
  std::vector<std::string> lines;
  std::string line;
  for (const char* at = kOpenings; *at != '\0'; ++at) {
    if (*at == '\\' && at[1] == 'n') {
      line += '\n';
      ++at;
    } else if (*at != '\n') {
      line += *at;
      continue;
    } else if (!line.empty()) {
      lines.push_back(std::exchange(line, {}));
    }
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

/// The template's text before the first words of a user; "" without a template, or with one that does not show it.
std::string before_a_user(const TokenizerSpec& spec) {
  if (spec.chat_template.empty()) return {};
  const auto parsed = ChatTemplate::parse(spec.chat_template);
  if (!parsed) return {};
  const auto token = [&](const std::optional<TokenId>& id) {
    const bool known = id && *id >= 0 && static_cast<size_t>(*id) < spec.tokens.size();
    return known ? spec.tokens[static_cast<size_t>(*id)] : std::string();
  };
  ChatInput input;
  input.messages = {{"user", kMark}};
  input.bos_token = token(spec.bos_id);
  input.eos_token = token(spec.eos_id);
  input.now_unix_s = 0;  // the same text on any day
  const auto rendered = parsed->render(input);
  const size_t at = rendered ? rendered->find(kMark) : std::string::npos;
  return at == std::string::npos ? std::string() : rendered->substr(0, at);
}

enum class Kind { kFirst, kChat, kOpening, kAny };

std::vector<Kind> draw_kinds(const Beginnings& from, int64_t count, uint64_t seed) {
  std::vector<std::pair<Kind, int64_t>> shares = {{Kind::kAny, 1}};
  if (!from.first.empty()) shares.emplace_back(Kind::kFirst, 1);
  if (!from.chat.empty()) shares.emplace_back(Kind::kChat, 2);
  if (!from.openings.empty()) shares.emplace_back(Kind::kOpening, 3);
  int64_t all = 0, before = 0;
  for (const auto& [kind, share] : shares) all += share;
  std::vector<Kind> kinds;
  for (const auto& [kind, share] : shares) {
    before += share;
    kinds.resize(static_cast<size_t>((before * count + all / 2) / all), kind);
  }
  Rng rng(seed, kKindStream);
  for (size_t i = kinds.size(); i > 1; --i) std::swap(kinds[i - 1], kinds[rng.below(i)]);
  return kinds;
}

/// Sequences that are written side by side.
class Writer {
 public:
  Writer(Transformer& model, Executor& executor, std::shared_ptr<KvPool> pages, const WritingOptions& options,
         int64_t context)
      : model_(model),
        executor_(executor),
        pages_(std::move(pages)),
        options_(options),
        context_(context),
        by_device_(model.chooses_tokens()) {}

  /// Fills `sequences`, which hold their beginnings; the first of them is number `first` of all `count`.
  Status write(std::span<std::vector<TokenId>> sequences, int64_t first, int64_t count) {
    LOWBIT_TRY(start(sequences, first));
    const auto vocab = static_cast<size_t>(model_.spec().vocab_size);
    for (;;) {
      LOWBIT_TRY(report(sequences, first, count));
      requests_.clear();
      running_.clear();
      for (size_t i = 0; i < sequences.size(); ++i) {
        if (left_of(sequences[i]) == 0) continue;
        const auto tokens = std::span<const TokenId>(sequences[i]).subspan(static_cast<size_t>(caches_[i].length()));
        const auto logits =
            by_device_ ? std::span<float>() : std::span(logits_).subspan(running_.size() * vocab, vocab);
        requests_.push_back({tokens, &caches_[i], choosers_[i].wanted(left_of(sequences[i])), logits});
        running_.push_back(i);
      }
      if (running_.empty()) return {};
      LOWBIT_TRY(executor_.forward(requests_));
      LOWBIT_TRY(take(sequences));
    }
  }

 private:
  Status start(std::span<std::vector<TokenId>> sequences, int64_t first) {
    caches_.clear();
    choosers_.clear();
    if (!by_device_) logits_.resize(sequences.size() * static_cast<size_t>(model_.spec().vocab_size));
    for (size_t i = 0; i < sequences.size(); ++i) {
      caches_.emplace_back(pages_, context_);
      const auto number = static_cast<uint64_t>(first) + i;
      SamplerOptions sampler;
      sampler.temperature = 1;
      sampler.top_k = 0;
      sampler.top_p = 1;
      sampler.min_p = 0;  // rare tokens too: docs/adr/0187-no-token-is-left-out.md
      sampler.seed = Rng(options_.seed, number).next();
      LOWBIT_TRY_ASSIGN(Sampler made, Sampler::make(sampler));
      choosers_.emplace_back(std::move(made), by_device_ ? &model_ : nullptr);
    }
    return {};
  }

  /// The tokens that the next call adds to a sequence: several where the device goes on by itself.
  size_t left_of(const std::vector<TokenId>& sequence) const {
    return std::min(static_cast<size_t>(context_) - sequence.size(), by_device_ ? kTokensAtOnce : 1);
  }

  Status report(std::span<const std::vector<TokenId>> sequences, int64_t first, int64_t count) const {
    int64_t done = first * context_;
    for (const auto& sequence : sequences) done += static_cast<int64_t>(sequence.size());
    if (options_.progress && !options_.progress(done, count * context_))
      return fail(ErrorCode::kCancelled, "writing text", "a request to stop");
    return {};
  }

  /// The tokens behind those that have run.
  Status take(std::span<std::vector<TokenId>> sequences) {
    const auto vocab = static_cast<size_t>(model_.spec().vocab_size);
    std::vector<Status> status(running_.size());
    model_.pool().parallel_for(static_cast<int64_t>(running_.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r) {
        std::vector<TokenId>& sequence = sequences[running_[r]];
        const auto logits = by_device_ ? std::span<float>() : std::span(logits_).subspan(r * vocab, vocab);
        for (size_t i = 0, count = left_of(sequence); i < count && status[r]; ++i) {
          const auto token = choosers_[running_[r]].token(logits, i);
          if (token)
            sequence.push_back(*token);
          else
            status[r] = tl::unexpected<Error>(token.error());
        }
      }
    });
    for (Status& s : status) LOWBIT_TRY(s);
    return {};
  }

  Transformer& model_;
  Executor& executor_;
  std::shared_ptr<KvPool> pages_;
  const WritingOptions& options_;
  int64_t context_;
  bool by_device_;
  std::vector<KvCache> caches_;
  std::vector<TokenChooser> choosers_;
  std::vector<float> logits_;  // [sequences that run, vocabulary], where the host chooses
  std::vector<SequenceRequest> requests_;
  std::vector<size_t> running_;  // those whose request it is
};

/// A tokenizer's memory is free again before the model is there.
Result<Beginnings> beginnings_in(const WeightSource& source) {
  LOWBIT_TRY_ASSIGN(const Tokenizer tokenizer, tokenizer_of(source));
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(source));
  return beginnings_of(tokenizer, spec.vocab_size);
}

}  // namespace

Result<Beginnings> beginnings_of(const Tokenizer& tokenizer, int64_t vocab_size) {
  Beginnings out;
  out.vocab_size = vocab_size;
  const TokenizerSpec& spec = tokenizer.spec();
  const auto runs = [&](TokenId id) { return id >= 0 && id < vocab_size; };
  if (spec.bos_id && runs(*spec.bos_id)) {
    out.first = {*spec.bos_id};
    if (spec.add_bos) out.prefix = out.first;
  }
  LOWBIT_TRY_ASSIGN(out.chat, tokenizer.encode(before_a_user(spec), {.add_special = false, .parse_special = true}));
  if (!std::ranges::all_of(out.chat, runs)) out.chat.clear();
  for (const std::string& line : opening_lines()) {
    const bool said = line.starts_with(kSaidByUser);
    const std::string text = said ? line.substr(sizeof kSaidByUser - 1) : line;
    LOWBIT_TRY_ASSIGN(const auto ids, tokenizer.encode(text, {.add_special = false, .parse_special = false}));
    if (ids.empty() || !std::ranges::all_of(ids, runs)) continue;
    std::vector<TokenId> opening = said && !out.chat.empty() ? out.chat : out.prefix;
    opening.insert(opening.end(), ids.begin(), ids.end());
    out.openings.push_back(std::move(opening));
  }
  return out;
}

std::vector<std::vector<TokenId>> draw_beginnings(const Beginnings& from, int64_t count, int64_t context,
                                                  uint64_t seed) {
  std::vector<std::vector<TokenId>> sequences;
  Rng rng(seed, kBeginningStream);
  for (const Kind kind : draw_kinds(from, count, seed)) {
    std::vector<TokenId> tokens = from.prefix;
    if (kind == Kind::kChat) tokens = from.chat;
    if (kind == Kind::kOpening) tokens = from.openings[rng.below(from.openings.size())];
    if (kind == Kind::kFirst && from.prefix.empty()) tokens = from.first;
    if (kind == Kind::kAny) tokens.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(from.vocab_size))));
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(context - 1)));
    sequences.push_back(std::move(tokens));
  }
  return sequences;
}

Result<std::vector<TokenId>> write_text(const WeightSource& source, const Engine& engine,
                                        const WritingOptions& options) {
  LOWBIT_TRY_ASSIGN(const Beginnings beginnings, beginnings_in(source));
  LoadOptions load;
  load.isa = engine.isa;
  load.gpus = engine.gpus;
  load.threads = engine.threads;
  LOWBIT_TRY_ASSIGN(const auto model, Transformer::load(source, load));
  const int64_t context = std::min(options.context, model->context()),
                count = options.tokens / std::max<int64_t>(context, 1);
  if (context < 2 || count < 1)
    return fail(ErrorCode::kInvalidArgument, "--calib-tokens", std::to_string(options.tokens),
                fmt::format("at least {}, one sequence", std::max<int64_t>(context, 2)));
  auto sequences = draw_beginnings(beginnings, count, context, options.seed);
  const int64_t pages = ceil_div(context, kKvPage);
  LOWBIT_TRY_ASSIGN(const auto pool, model->make_pool(std::min(kSessionsOnGpu, count) * pages, pages));
  int64_t together = kSessionsOnGpu;
  if (engine.gpu < 0)
    together =
        std::clamp(room_for_text(source, model->resident_bytes()) / pool->bytes_of(context), kLeastSessions, kSessions);
  together = std::min(together, count);
  Executor executor(*model);
  Writer writer(*model, executor, pool, options, context);
  for (int64_t first = 0; first < count; first += together) {
    const auto some = std::span(sequences).subspan(static_cast<size_t>(first),
                                                   static_cast<size_t>(std::min(together, count - first)));
    LOWBIT_TRY(writer.write(some, first, count));
  }
  std::vector<TokenId> tokens;
  for (const auto& sequence : sequences) tokens.insert(tokens.end(), sequence.begin(), sequence.end());
  return tokens;
}

}  // namespace lowbit
