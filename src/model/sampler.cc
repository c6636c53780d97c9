#include "model/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/try.h"

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
    recent_.reserve(window);  // once; sampling allocates nothing later
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

std::span<const float> Sampler::penalize(std::span<const float> logits) {
  const float penalty = options_.repeat_penalty;
  if (penalty == 1.0f || recent_.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (size_t i = 0; i < recent_.size(); ++i) {
    const int32_t id = recent_[i];
    if (id < 0 || size_t(id) >= adjusted_.size()) continue;
    // Once per token, however often it occurs.
    if (std::find(recent_.begin(), recent_.begin() + int64_t(i), id) != recent_.begin() + int64_t(i)) continue;
    float& logit = adjusted_[size_t(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return adjusted_;
}

/// The k largest, in order: a heap whose front is the least of them, and a threshold that few of the others pass. Blocks are
/// compared with it whole, so that most logits are read once and copied never.
Status Sampler::keep_largest(std::span<const float> logits, size_t k) {
  const auto larger = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  constexpr size_t kBlock = 64;
  candidates_.clear();
  candidates_.reserve(k);
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const float* block = logits.data() + begin;
    const size_t count = std::min(kBlock, logits.size() - begin);
    if (candidates_.size() == k && count == kBlock) {
      const float least = candidates_[0].logit;
      int passes = 0;
      for (size_t i = 0; i < kBlock; ++i) passes |= int(!(block[i] <= least));  // NaN passes, too
      if (passes == 0) continue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (std::isnan(block[i]))
        return fail(ErrorCode::kInvalidArgument, "sampler", fmt::format("NaN for token {}", begin + i), "numbers",
                    "the model overflowed; --act f32 may help");
      const Candidate c{int32_t(begin + i), block[i], 0.0};
      if (candidates_.size() < k) {
        candidates_.push_back(c);
        std::push_heap(candidates_.begin(), candidates_.end(), larger);
      } else if (c.logit > candidates_[0].logit) {  // an equal one has a larger id
        std::pop_heap(candidates_.begin(), candidates_.end(), larger);
        candidates_.back() = c;
        std::push_heap(candidates_.begin(), candidates_.end(), larger);
      }
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), larger);
  for (Candidate& c : candidates_)
    c.weight = c.logit == candidates_[0].logit ? 1.0 : std::exp(double(c.logit) - double(candidates_[0].logit));
  return {};
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
  const size_t wanted = options_.temperature == 0 ? 1 : options_.top_k == 0 ? logits.size() : size_t(options_.top_k);
  LOWBIT_TRY(keep_largest(penalize(logits), std::min(wanted, logits.size())));
  if (options_.temperature == 0) return candidates_[0].id;
  keep_top_p();
  keep_min_p();
  return draw();
}

}  // namespace lowbit
