#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/threads.h"
#include "base/try.h"
#include "lowbit/evaluate.h"
#include "ops/log_probabilities.h"

namespace lowbit {
namespace {

constexpr int64_t kSlice = 64;         // positions whose logits are in memory at once
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
  Comparison(Model& model, Model& base, const CompareOptions& options)
      : model_(model), base_(base), options_(options), pool_(model.info().threads) {}

  Result<CompareReport> run(const std::string& text) {
    LOWBIT_TRY(cut(text));
    for (int64_t at = 0; at < static_cast<int64_t>(tokens_.size()); at += slice_at(at)) {
      if (options_.progress && !options_.progress("comparing", at, static_cast<int64_t>(tokens_.size())))
        return fail(ErrorCode::kCancelled, "comparing", "a request to stop");
      LOWBIT_TRY(slice(at, slice_at(at)));
    }
    return summarize();
  }

 private:
  int64_t slice_at(int64_t at) const { return std::min(kSlice, options_.context - at % options_.context); }

  Status cut(const std::string& text) {
    const int64_t longest = std::min(model_.info().context, base_.info().context);
    if (options_.context < 2 || options_.context > longest)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("a context of {}", options_.context),
                  fmt::format("2 to {}", longest), "-c sets the context");
    if (model_.info().vocab_size != base_.info().vocab_size)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("{} tokens", model_.info().vocab_size),
                  fmt::format("{}, the other's vocabulary", base_.info().vocab_size),
                  "compare a model with its own source");
    const auto& spec = model_.tokenizer().spec();
    LOWBIT_TRY_ASSIGN(tokens_, model_.tokenizer().encode(text, {.add_special = spec.add_bos, .parse_special = false}));
    const int64_t windows = std::min(options_.windows, static_cast<int64_t>(tokens_.size()) / options_.context);
    if (windows < 1)
      return fail(ErrorCode::kInvalidArgument, "comparing models", fmt::format("a text of {} tokens", tokens_.size()),
                  fmt::format("at least {}", options_.context), "a longer text or a shorter context");
    tokens_.resize(static_cast<size_t>(windows * options_.context));
    if (spec.add_bos && spec.bos_id)
      for (int64_t w = 0; w < windows; ++w) tokens_[static_cast<size_t>(w * options_.context)] = *spec.bos_id;
    positions_.resize(tokens_.size());
    return {};
  }

  Status slice(int64_t at, int64_t count) {
    const auto tokens = std::span<const TokenId>(tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    if (at % options_.context == 0) {
      model_.clear();
      base_.clear();
    }
    const auto start = std::chrono::steady_clock::now();
    LOWBIT_TRY(model_.logits_of_all(tokens, 0, logits_));
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    LOWBIT_TRY(base_.logits_of_all(tokens, 0, base_logits_));
    const auto vocab = static_cast<size_t>(model_.info().vocab_size);
    pool_.parallel_for(count, 2, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        compare(at + i, std::span(logits_).subspan(static_cast<size_t>(i) * vocab, vocab),
                std::span(base_logits_).subspan(static_cast<size_t>(i) * vocab, vocab));
    });
    for (int64_t i = 0; i < count; ++i) offer_example(at + i, static_cast<size_t>(i) * vocab, vocab);
    return {};
  }

  void compare(int64_t at, std::span<float> model, std::span<float> base) {
    to_log_probabilities(model);
    to_log_probabilities(base);
    Position& p = positions_[static_cast<size_t>(at)];
    for (size_t t = 0; t < model.size(); ++t)
      p.kld += std::exp(static_cast<double>(base[t])) * (static_cast<double>(base[t]) - model[t]);
    p.same_top = std::max_element(model.begin(), model.end()) - model.begin() ==
                 std::max_element(base.begin(), base.end()) - base.begin();
    if ((at + 1) % options_.context == 0) return;  // nothing follows in this window
    const auto truth = static_cast<size_t>(tokens_[static_cast<size_t>(at + 1)]);
    p.nll = -static_cast<double>(model[truth]);
    p.base_nll = -static_cast<double>(base[truth]);
  }

  void offer_example(int64_t at, size_t offset, size_t vocab) {
    const double kld = positions_[static_cast<size_t>(at)].kld;
    const int64_t position = at % options_.context;
    if (options_.examples < 1 || position + 1 == options_.context) return;
    if (static_cast<int64_t>(examples_.size()) == options_.examples && kld <= examples_.back().kld) return;
    const std::span<const TokenId> all(tokens_);
    const int64_t first = std::max(at - position, at + 1 - kTokensBefore);
    DivergentPosition example;
    example.position = position;
    example.kld = kld;
    example.before = model_.tokenizer()
                         .decode(all.subspan(static_cast<size_t>(first), static_cast<size_t>(at + 1 - first)))
                         .value_or("");
    example.truth = model_.tokenizer().decode(all.subspan(static_cast<size_t>(at + 1), 1)).value_or("");
    example.base = likeliest(std::span(base_logits_).subspan(offset, vocab), model_.tokenizer());
    example.model = likeliest(std::span(logits_).subspan(offset, vocab), model_.tokenizer());
    const auto place = std::ranges::find_if(examples_, [&](const DivergentPosition& other) { return other.kld < kld; });
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
    r.windows = r.tokens / r.context;
    r.kld_mean = all.kld;
    r.kld_error = all.kld_error;
    r.top1 = all.top1;
    r.ppl = all.ppl;
    r.base_ppl = all.base_ppl;
    fit_slope(r);
    const int64_t buckets = std::clamp<int64_t>(options_.buckets, 1, r.context);
    for (int64_t b = 0; b < buckets; ++b)
      r.buckets.push_back(bucket(b * r.context / buckets, (b + 1) * r.context / buckets));
    r.histogram.assign(static_cast<size_t>(kHistogramBins), 0);
    for (const Position& p : positions_) {
      const double bin = p.kld > 0 ? std::floor(std::log10(p.kld / kHistogramFirst) * kHistogramPerDecade) : 0;
      ++r.histogram[static_cast<size_t>(std::clamp(bin, 0.0, static_cast<double>(kHistogramBins - 1)))];
    }
    r.examples = examples_;
    r.seconds = seconds_;
    return r;
  }

  Model& model_;
  Model& base_;
  const CompareOptions& options_;
  ThreadPool pool_;
  std::vector<TokenId> tokens_;  // [windows, context]
  std::vector<Position> positions_;
  std::vector<float> logits_, base_logits_;  // of a slice; log probabilities after compare()
  std::vector<DivergentPosition> examples_;
  double seconds_ = 0;
};

}  // namespace

Result<CompareReport> compare_models(Model& model, Model& base, const std::string& text,
                                     const CompareOptions& options) {
  return Comparison(model, base, options).run(text);
}

}  // namespace lowbit
