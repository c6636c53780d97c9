#include "model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lowbit {
namespace {

tl::unexpected<Error> out_of_range(const char* option, double got, const char* wanted) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("sampler {}", option), fmt::format("{:g}", got), wanted);
}

constexpr int64_t kMaxWindow = 1 << 20;

}  // namespace

Result<Sampler> Sampler::make(const SamplerOptions& o) {
  // Written so that NaN fails every test.
  if (!(o.temperature >= 0 && o.temperature <= 1e6f)) return out_of_range("temperature", o.temperature, "0 or more");
  if (o.top_k < 0) return out_of_range("top_k", double(o.top_k), "0 (all) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return out_of_range("top_p", o.top_p, "more than 0, at most 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return out_of_range("min_p", o.min_p, "0..1");
  if (!(o.repeat_penalty > 0 && o.repeat_penalty <= 1e6f))
    return out_of_range("repeat_penalty", o.repeat_penalty, "more than 0");
  if (o.repeat_window < 0 || o.repeat_window > kMaxWindow)
    return out_of_range("repeat_window", double(o.repeat_window), "0..1048576");
  return Sampler(o);
}

void Sampler::accept(int32_t token) {
  const size_t window = size_t(options_.repeat_window);
  if (options_.repeat_penalty == 1.0f || window == 0) return;
  if (recent_.size() < window) {
    recent_.push_back(token);
    return;
  }
  recent_[recent_next_] = token;
  recent_next_ = (recent_next_ + 1) % window;
}

void Sampler::reset() {
  recent_.clear();
  recent_next_ = 0;
  rng_ = Rng(options_.seed);
}

void Sampler::penalize() {
  const float penalty = options_.repeat_penalty;
  for (size_t i = 0; i < recent_.size(); ++i) {
    const int32_t id = recent_[i];
    if (id < 0 || size_t(id) >= candidates_.size()) continue;
    // Once per token, however often it occurs.
    if (std::find(recent_.begin(), recent_.begin() + int64_t(i), id) != recent_.begin() + int64_t(i)) continue;
    float& logit = candidates_[size_t(id)].logit;
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void Sampler::keep_top_k() {
  const size_t k = options_.top_k == 0 ? candidates_.size() : std::min(size_t(options_.top_k), candidates_.size());
  const auto larger = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  std::partial_sort(candidates_.begin(), candidates_.begin() + int64_t(k), candidates_.end(), larger);
  candidates_.resize(k);
  for (Candidate& c : candidates_)
    c.weight = c.logit == candidates_[0].logit ? 1.0 : std::exp(double(c.logit) - double(candidates_[0].logit));
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  double total = 0, sum = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  size_t n = 0;
  while (n < candidates_.size() && sum < double(options_.top_p) * total) sum += candidates_[n++].weight;
  candidates_.resize(std::max<size_t>(n, 1));
}

void Sampler::keep_min_p() {
  size_t n = 1;
  while (n < candidates_.size() && candidates_[n].weight >= double(options_.min_p)) ++n;
  candidates_.resize(n);
}

int32_t Sampler::draw() {
  double total = 0;
  for (Candidate& c : candidates_) {
    c.weight = c.logit == candidates_[0].logit
                   ? 1.0
                   : std::exp((double(c.logit) - double(candidates_[0].logit)) / double(options_.temperature));
    total += c.weight;
  }
  double left = rng_.uniform() * total;
  for (const Candidate& c : candidates_) {
    left -= c.weight;
    if (left < 0) return c.id;
  }
  return candidates_[0].id;  // rounding ate the rest
}

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) return fail(ErrorCode::kInvalidArgument, "sampler", "no logits", "one per token");
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      return fail(ErrorCode::kInvalidArgument, "sampler", fmt::format("NaN for token {}", i), "numbers",
                  "the model overflowed; --act f32 may help");
    candidates_[i] = {int32_t(i), logits[i], 0.0};
  }
  penalize();
  if (options_.temperature == 0) {
    const Candidate* best = &candidates_[0];
    for (const Candidate& c : candidates_)
      if (c.logit > best->logit) best = &c;
    return best->id;
  }
  keep_top_k();
  keep_top_p();
  keep_min_p();
  return draw();
}

}  // namespace lowbit
