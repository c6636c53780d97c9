#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/checked.h"
#include "base/try.h"
#include "evaluate/evaluate.h"
#include "evaluate/logits_file.h"
#include "ops/log_softmax.h"

namespace lowbit {
namespace {

/// One scored position: model against truth and, when there is one, against the base.
struct Score {
  double nll = 0, base_nll = 0, kld = 0, delta_p = 0;
  bool same_top = false;
};

/// As llama.cpp: KL counts tokens the base gives more than exp(-16).
Score score_position(std::span<const float> logits, TokenId truth, const LogProbRow* base) {
  Score s;
  const LogSoftmax soft = log_softmax(logits);
  s.nll = -soft.of(logits[static_cast<size_t>(truth)]);
  if (base == nullptr) return s;
  const auto n = static_cast<int64_t>(logits.size());
  int64_t base_top = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float log_p = base->at(i);
    if (base->steps[i] > base->steps[base_top]) base_top = i;
    if (log_p > -16.0f)
      s.kld +=
          std::exp(log_p) * (log_p - static_cast<double>(logits[static_cast<size_t>(i)] - soft.largest) + soft.log_sum);
  }
  s.base_nll = -base->at(truth);
  s.delta_p = std::exp(-s.nll) - std::exp(-s.base_nll);
  s.same_top = base_top == soft.top;
  return s;
}

double mean_of(const std::vector<Score>& scores, double Score::*field) {
  double sum = 0;
  for (const Score& s : scores) sum += s.*field;
  return scores.empty() ? 0 : sum / static_cast<double>(scores.size());
}

void fill_report(const std::vector<Score>& scores, bool compared, PerplexityReport& r) {
  const auto n = static_cast<double>(scores.size());
  const double mean = mean_of(scores, &Score::nll);
  double squares = 0;
  for (const Score& s : scores) squares += s.nll * s.nll;
  r.ppl = std::exp(mean);
  r.ppl_error = n > 1 ? r.ppl * std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1)) : 0;
  r.tokens = static_cast<int64_t>(scores.size());
  r.compared = compared;
  if (!compared || scores.empty()) return;
  std::vector<double> kld;
  double delta = 0, same = 0;
  for (const Score& s : scores) {
    kld.push_back(s.kld);
    delta += s.delta_p * s.delta_p;
    same += s.same_top;
  }
  std::sort(kld.begin(), kld.end());
  const auto percentile = [&](double p) { return kld[static_cast<size_t>(p * (n - 1))]; };
  r.base_ppl = std::exp(mean_of(scores, &Score::base_nll));
  r.kld_mean = mean_of(scores, &Score::kld);
  r.kld_p50 = percentile(0.50);
  r.kld_p90 = percentile(0.90);
  r.kld_p99 = percentile(0.99);
  r.kld_max = kld.back();
  r.top1 = same / n;
  r.delta_p_rms = std::sqrt(delta / n);
}

struct Plan {
  std::vector<TokenId> tokens;  // chunks * context, BOS already in place
  int64_t context = 0, chunks = 0;
  int64_t first = 0;  // first scored position of a chunk; the last is context - 2

  int64_t scored() const { return context - 1 - first; }  // of a chunk
  std::span<const TokenId> chunk(int64_t c) const {
    return std::span(tokens).subspan(static_cast<size_t>(c * context), static_cast<size_t>(context));
  }
};

Result<Plan> plan_chunks(const SharedModel& model, const std::string& text, const PerplexityOptions& o) {
  Plan plan;
  plan.context = o.context;
  const int64_t least = o.method == PerplexityMethod::kLlamaCpp ? 3 : 2;  // one token is scored
  if (o.context < least || o.context > model.info.context)
    return fail(ErrorCode::kInvalidArgument, "perplexity", "a context of " + std::to_string(o.context),
                std::to_string(least) + " to " + std::to_string(model.info.context), "-c sets the context");
  const bool add_bos = model.tokenizer.spec().add_bos && o.method == PerplexityMethod::kLlamaCpp;
  LOWBIT_TRY_ASSIGN(plan.tokens, model.tokenizer.encode(text, {.add_special = add_bos, .parse_special = false}));
  const auto count = static_cast<int64_t>(plan.tokens.size());
  if (count < 2 * o.context)
    return fail(ErrorCode::kInvalidArgument, "perplexity", "a text of " + std::to_string(count) + " tokens",
                "at least " + std::to_string(2 * o.context), "use a longer text or a shorter context (-c)");
  plan.chunks = count / o.context;
  if (o.chunks > 0) plan.chunks = std::min(plan.chunks, o.chunks);
  plan.tokens.resize(static_cast<size_t>(plan.chunks * o.context));
  plan.first = o.method == PerplexityMethod::kLlamaCpp ? o.context / 2 : 0;
  if (const auto bos = model.tokenizer.spec().bos_id; add_bos && bos)
    for (int64_t c = 0; c < plan.chunks; ++c) plan.tokens[static_cast<size_t>(c * o.context)] = *bos;
  return plan;
}

Result<std::optional<LogitsReader>> open_base(const Plan& plan, int64_t vocab_size, const std::string& path) {
  if (path.empty()) return std::optional<LogitsReader>();
  LOWBIT_TRY_ASSIGN(LogitsReader reader, LogitsReader::open(path));
  const LogitsHeader& h = reader.header();
  const auto differs = [&](const char* what, int64_t got, int64_t wanted) {
    return fail(ErrorCode::kCorrupt, path, std::string(what) + " " + std::to_string(got), std::to_string(wanted),
                "save the base's logits from the same text with the same -c and at least as many chunks");
  };
  if (h.context != plan.context) return differs("context", h.context, plan.context);
  if (h.vocab_size != vocab_size) return differs("vocabulary", h.vocab_size, vocab_size);
  if (h.chunks < plan.chunks) return differs("chunks", h.chunks, plan.chunks);
  if (!std::equal(plan.tokens.begin(), plan.tokens.end(), h.tokens.begin()))
    return fail(ErrorCode::kCorrupt, path, "other tokens than this text's", "the same text and tokenizer");
  return std::optional<LogitsReader>(std::move(reader));
}

/// Chunks that run together, and their scores.
class ChunkScorer {
 public:
  ChunkScorer(SharedModel& model, const Plan& plan, LogitsReader* base, LogitsWriter* writer)
      : model_(model), plan_(plan), base_(base), writer_(writer), words_(logits_row_words(model.info.vocab_size)) {}

  const std::vector<Score>& scores() const { return scores_; }

  /// Scores chunks [first, first + count); the scores follow those of the chunks before.
  Status score(int64_t first, int64_t count) {
    at_ = scores_.size();
    scores_.resize(at_ + static_cast<size_t>(count * plan_.scored()));
    if (base_ != nullptr) LOWBIT_TRY(base_->read(count * plan_.scored(), base_rows_));
    if (writer_ != nullptr) rows_.resize(static_cast<size_t>(count * plan_.scored() * words_));
    std::vector<LogitsSink> sinks;
    for (int64_t c = 0; c < count; ++c)
      sinks.emplace_back([this, c, tokens = plan_.chunk(first + c)](int64_t row, std::span<float> logits) {
        take(c * plan_.scored() + row, logits, tokens[static_cast<size_t>(plan_.first + row + 1)]);
      });
    LOWBIT_TRY(run(first, sinks));
    return writer_ != nullptr ? writer_->append(rows_) : Status();
  }

 private:
  Status run(int64_t first, const std::vector<LogitsSink>& sinks) {
    std::vector<SequenceRequest> requests;
    while (caches_.size() < sinks.size()) caches_.emplace_back(model_.pages, plan_.context);
    for (size_t c = 0; c < sinks.size(); ++c) {
      caches_[c].clear();
      requests.push_back({plan_.chunk(first + static_cast<int64_t>(c)),
                          &caches_[c],
                          LogitsWanted::range(plan_.first, plan_.scored(), &sinks[c]),
                          {},
                          nullptr});
    }
    return model_.executor.forward(requests);
  }

  void take(int64_t row, std::span<const float> logits, TokenId truth) {
    std::optional<LogProbRow> base_row;
    if (base_ != nullptr) base_row.emplace(base_rows_.data() + row * words_, model_.info.vocab_size);
    scores_[at_ + static_cast<size_t>(row)] = score_position(logits, truth, base_row ? &*base_row : nullptr);
    if (writer_ != nullptr) compress_log_probs(logits, rows_.data() + row * words_);
  }

  SharedModel& model_;
  const Plan& plan_;
  LogitsReader* base_;
  LogitsWriter* writer_;
  int64_t words_;
  size_t at_ = 0;  // of the chunks that run
  std::vector<Score> scores_;
  std::vector<KvCache> caches_;
  std::vector<uint16_t> base_rows_, rows_;
};

}  // namespace

int64_t sequences_together(const SharedModel& model, int64_t context, int64_t rows) {
  const int64_t pages = ceil_div(context, kKvPage);
  const int64_t free = model.pages->max_pages() - model.pages->pages_in_use();
  return std::max<int64_t>(1, std::min(rows / context, free / pages));
}

Result<PerplexityReport> perplexity(SharedModel& model, const std::string& text, const PerplexityOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  LOWBIT_TRY_ASSIGN(const Plan plan, plan_chunks(model, text, options));
  const int64_t vocab = model.info.vocab_size;
  LOWBIT_TRY_ASSIGN(auto base, open_base(plan, vocab, options.against));
  std::optional<LogitsWriter> writer;
  if (!options.save_logits.empty()) {
    LogitsHeader header{static_cast<int32_t>(plan.context), static_cast<int32_t>(vocab),
                        static_cast<int32_t>(plan.chunks), plan.tokens};
    LOWBIT_TRY_ASSIGN(writer, LogitsWriter::create(options.save_logits, header));
  }

  ChunkScorer scorer(model, plan, base ? &*base : nullptr, writer ? &*writer : nullptr);
  const int64_t together = sequences_together(model, plan.context, model.transformer->batch());
  double nll_sum = 0;
  int64_t scored = 0;
  for (int64_t chunk = 0; chunk < plan.chunks; chunk += together) {
    if (options.progress && !options.progress("perplexity", chunk, plan.chunks))
      return fail(ErrorCode::kCancelled, "perplexity", "a request to stop");
    const int64_t count = std::min(together, plan.chunks - chunk);
    LOWBIT_TRY(scorer.score(chunk, count));
    for (int64_t c = 0; c < count; ++c) {
      for (const int64_t end = scored + plan.scored(); scored < end; ++scored)
        nll_sum += scorer.scores()[static_cast<size_t>(scored)].nll;
      if (options.on_chunk) options.on_chunk(chunk + c + 1, std::exp(nll_sum / static_cast<double>(scored)));
    }
  }
  if (writer) LOWBIT_TRY(writer->finish());

  PerplexityReport report;
  fill_report(scorer.scores(), base.has_value(), report);
  report.chunks = plan.chunks;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.tok_s = static_cast<double>(plan.tokens.size()) / report.seconds;
  return report;
}

}  // namespace lowbit
