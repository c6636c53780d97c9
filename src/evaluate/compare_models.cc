#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>

#include "base/try.h"
#include "evaluate/evaluate.h"
#include "ops/log_softmax.h"

namespace lowbit {
namespace {

constexpr int64_t kSlice =
    64;  // positions whose logits are in memory at once: of one sequence or of several short ones
constexpr int64_t kTokensBefore = 24;  // of an example
constexpr size_t kShown = 3;

struct Position {
  double kld = 0, nll = 0, base_nll = 0;
  bool same_top = false;
};

std::vector<TokenShare> likeliest(std::span<const float> log_p, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids(log_p.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto larger = [&](TokenId a, TokenId b) {
    const float x = log_p[static_cast<size_t>(a)], y = log_p[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const size_t shown = std::min(kShown, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(shown), ids.end(), larger);
  std::vector<TokenShare> shares;
  for (size_t i = 0; i < shown; ++i)
    shares.push_back({tokenizer.decode(std::span<const TokenId>(ids).subspan(i, 1)).value_or(""),
                      std::exp(static_cast<double>(log_p[static_cast<size_t>(ids[i])]))});
  return shares;
}

class Comparison {
 public:
  Comparison(SharedModel& model, SharedModel& base, const CompareOptions& options)
      : model_(model), base_(base), options_(options) {}

  Result<CompareReport> run(const std::string& text) {
    LOWBIT_TRY(cut(text));
    const auto all = static_cast<int64_t>(tokens_.size());
    const int64_t sequences = all / options_.context;
    const int64_t together = std::min(sequences_together(model_, options_.context, kSlice),
                                      sequences_together(base_, options_.context, kSlice));
    for (int64_t sequence = 0; sequence < sequences; sequence += together) {
      const int64_t count = std::min(together, sequences - sequence);
      start_sequences(count);
      for (int64_t first = 0; first < options_.context; first += kSlice) {
        if (options_.progress && !options_.progress("comparing", sequence * options_.context + first, all))
          return fail(ErrorCode::kCancelled, "comparing", "a request to stop");
        LOWBIT_TRY(slice(sequence, count, first, std::min(kSlice, options_.context - first)));
      }
    }
    return summarize();
  }

 private:
  void start_sequences(int64_t count) {
    caches_.clear();
    base_caches_.clear();
    for (int64_t w = 0; w < count; ++w) {
      caches_.emplace_back(model_.pages, options_.context);
      base_caches_.emplace_back(base_.pages, options_.context);
    }
  }

  Status cut(const std::string& text) {
    const int64_t longest = std::min(model_.info.context, base_.info.context);
    if (options_.context < 2 || options_.context > longest)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("a context of {}", options_.context),
                  fmt::format("2 to {}", longest), "-c sets the context");
    if (model_.info.vocab_size != base_.info.vocab_size)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("{} tokens", model_.info.vocab_size),
                  fmt::format("{}, the other's vocabulary", base_.info.vocab_size),
                  "compare a model with its own source");
    const TokenizerSpec& spec = model_.tokenizer.spec();
    LOWBIT_TRY_ASSIGN(tokens_, model_.tokenizer.encode(text, {.add_special = spec.add_bos, .parse_special = false}));
    const int64_t sequences = std::min(options_.sequences, static_cast<int64_t>(tokens_.size()) / options_.context);
    if (sequences < 1)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("a text of {} tokens", tokens_.size()),
                  fmt::format("at least {}", options_.context), "a longer text or a shorter context");
    tokens_.resize(static_cast<size_t>(sequences * options_.context));
    if (spec.add_bos && spec.bos_id)
      for (int64_t w = 0; w < sequences; ++w) tokens_[static_cast<size_t>(w * options_.context)] = *spec.bos_id;
    positions_.resize(tokens_.size());
    return {};
  }

  /// Positions [first, first + n) of sequences [sequence, sequence + count).
  Status slice(int64_t sequence, int64_t count, int64_t first, int64_t n) {
    const auto vocab = static_cast<size_t>(model_.info.vocab_size);
    logits_.resize(static_cast<size_t>(count * n) * vocab);
    const auto logits_of = [&](int64_t w, int64_t rows) {
      return std::span(logits_).subspan(static_cast<size_t>(w * n) * vocab, static_cast<size_t>(rows) * vocab);
    };
    std::vector<SequenceRequest> own, other;
    std::vector<LogitsSink> sinks;
    sinks.reserve(static_cast<size_t>(count));
    for (int64_t w = 0; w < count; ++w) {
      const int64_t at = (sequence + w) * options_.context + first;
      sinks.emplace_back([this, at, rows = logits_of(w, n), vocab](int64_t row, std::span<float> base) {
        compare(at + row, rows.subspan(static_cast<size_t>(row) * vocab, vocab), base);
      });
      const auto tokens = std::span<const TokenId>(tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(n));
      const auto cache = static_cast<size_t>(w);
      own.push_back({tokens, &caches_[cache], LogitsWanted::range(0, n), logits_of(w, n), nullptr});
      other.push_back({tokens, &base_caches_[cache], LogitsWanted::range(0, n, &sinks.back()), {}, nullptr});
    }
    const auto start = std::chrono::steady_clock::now();
    LOWBIT_TRY(model_.executor.forward(own));
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return base_.executor.forward(other);
  }

  /// On any thread, for other positions at the same time.
  void compare(int64_t at, std::span<float> model, std::span<float> base) {
    log_softmax(model).apply(model);
    log_softmax(base).apply(base);
    Position& p = positions_[static_cast<size_t>(at)];
    p.kld = kl_divergence(base, model);
    p.same_top = std::ranges::max_element(model) - model.begin() == std::ranges::max_element(base) - base.begin();
    if ((at + 1) % options_.context == 0) return;  // nothing follows in this sequence
    const auto truth = static_cast<size_t>(tokens_[static_cast<size_t>(at + 1)]);
    p.nll = -static_cast<double>(model[truth]);
    p.base_nll = -static_cast<double>(base[truth]);
    offer_example(at, p.kld, model, base);
  }

  /// The largest divergences, of equal ones the first in the text, in whatever order they come.
  void offer_example(int64_t at, double kld, std::span<const float> model, std::span<const float> base) {
    const std::lock_guard lock(mutex_);
    const auto place = std::ranges::find_if(
        examples_, [&](const Example& e) { return e.shown.kld < kld || (e.shown.kld == kld && e.at > at); });
    if (place == examples_.end() && static_cast<int64_t>(examples_.size()) >= options_.examples) return;
    const std::span<const TokenId> all(tokens_);
    const int64_t position = at % options_.context, first = std::max(at - position, at + 1 - kTokensBefore);
    Example example{at, {}};
    DivergentPosition& shown = example.shown;
    shown.position = position;
    shown.kld = kld;
    shown.before = model_.tokenizer.decode(all.subspan(static_cast<size_t>(first), static_cast<size_t>(at + 1 - first)))
                       .value_or("");
    shown.truth = model_.tokenizer.decode(all.subspan(static_cast<size_t>(at + 1), 1)).value_or("");
    shown.base = likeliest(base, model_.tokenizer);
    shown.model = likeliest(model, model_.tokenizer);
    examples_.insert(place, std::move(example));
    if (static_cast<int64_t>(examples_.size()) > options_.examples) examples_.pop_back();
  }

  PositionBucket bucket(int64_t first, int64_t last) const {
    PositionBucket b;
    b.first = first;
    b.last = last;
    double n = 0, scored = 0, squares = 0;
    for (size_t at = 0; at < positions_.size(); ++at) {
      const int64_t position = static_cast<int64_t>(at) % options_.context;
      if (position < first || position >= last) continue;
      const Position& p = positions_[at];
      n += 1;
      b.kld += p.kld;
      squares += p.kld * p.kld;
      b.top1 += p.same_top;
      if (position + 1 == options_.context) continue;
      scored += 1;
      b.ppl += p.nll;
      b.base_ppl += p.base_nll;
    }
    b.kld /= n;
    b.top1 /= n;
    b.kld_error = n > 1 ? std::sqrt(std::max(0.0, squares / n - b.kld * b.kld) / (n - 1)) : 0;
    b.ppl = std::exp(b.ppl / std::max(1.0, scored));
    b.base_ppl = std::exp(b.base_ppl / std::max(1.0, scored));
    return b;
  }

  void fit_slope(CompareReport& r) const {
    const auto n = static_cast<double>(positions_.size());
    const auto x_of = [&](size_t at) {
      return static_cast<double>(static_cast<int64_t>(at) % options_.context) / 1000;
    };
    const double middle = static_cast<double>(options_.context - 1) / 2000;
    double xx = 0, xy = 0, rest = 0;
    for (size_t at = 0; at < positions_.size(); ++at) {
      xx += std::pow(x_of(at) - middle, 2);
      xy += (x_of(at) - middle) * positions_[at].kld;
    }
    r.slope = xx > 0 ? xy / xx : 0;
    for (size_t at = 0; at < positions_.size(); ++at)
      rest += std::pow(positions_[at].kld - r.kld_mean - r.slope * (x_of(at) - middle), 2);
    r.slope_error = n > 2 && xx > 0 ? std::sqrt(rest / (n - 2) / xx) : 0;
  }

  CompareReport summarize() const {
    CompareReport r;
    const PositionBucket all = bucket(0, options_.context);
    r.context = options_.context;
    r.tokens = static_cast<int64_t>(tokens_.size());
    r.sequences = r.tokens / r.context;
    r.kld_mean = all.kld;
    r.kld_error = all.kld_error;
    r.top1 = all.top1;
    r.ppl = all.ppl;
    r.base_ppl = all.base_ppl;
    std::vector<double> sorted;
    for (const Position& p : positions_) sorted.push_back(p.kld);
    std::ranges::sort(sorted);
    const auto quantile = [&sorted](double share) {
      return sorted[static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size()))) - 1];
    };
    r.kld_p50 = quantile(0.5);
    r.kld_p99 = quantile(0.99);
    fit_slope(r);
    const int64_t buckets = std::clamp<int64_t>(options_.buckets, 1, r.context);
    for (int64_t b = 0; b < buckets; ++b)
      r.buckets.push_back(bucket(b * r.context / buckets, (b + 1) * r.context / buckets));
    r.histogram.assign(static_cast<size_t>(kHistogramBins), 0);
    for (const Position& p : positions_) {
      const double bin = p.kld > 0 ? std::floor(std::log10(p.kld / kHistogramFirst) * kHistogramPerDecade) : 0;
      ++r.histogram[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(kHistogramBins - 1)))];
    }
    for (const Example& e : examples_) r.examples.push_back(e.shown);
    r.seconds = seconds_;
    return r;
  }

  struct Example {
    int64_t at = 0;
    DivergentPosition shown;
  };

  SharedModel& model_;
  SharedModel& base_;
  const CompareOptions& options_;
  std::vector<TokenId> tokens_;  // [sequences, context]
  std::vector<Position> positions_;
  std::vector<KvCache> caches_, base_caches_;  // of the sequences that run together
  std::vector<float> logits_;                  // of a slice; log-probabilities after compare()
  std::mutex mutex_;                           // guards the examples
  std::vector<Example> examples_;
  double seconds_ = 0;
};

}  // namespace

Result<CompareReport> compare_models(SharedModel& model, SharedModel& base, const std::string& text,
                                     const CompareOptions& options) {
  return Comparison(model, base, options).run(text);
}

}  // namespace lowbit
