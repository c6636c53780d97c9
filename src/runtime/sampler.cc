#include "runtime/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/cpu.h"
#include "base/try.h"
#include "kernels/registry.h"
#include "kernels/token_weight.h"

namespace lowbit {
namespace {

tl::unexpected<Error> out_of_range(const char* option, double got, const char* wanted) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("sampler {}", option), fmt::format("{:g}", got), wanted);
}

constexpr int64_t kMaxWindow = 1 << 20;
constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kMostLogits = size_t{1} << 23;  // their weights, at most 2^40 each, sum to less than 2^64

/// Fractions as parts of 2^32.
uint64_t part_of_all(float top_p) { return uint64_t(double(top_p) * 0x1p32); }
uint64_t least_weight(float min_p) { return uint64_t(min_p * kTokenWeightOne); }

/// The largest logit and the first token that has it. NaN is an error.
struct Largest {
  int32_t id = 0;
  float logit = 0;
};
Result<Largest> find_largest(std::span<const float> logits) {
  Largest largest{0, logits[0]};
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    int passes = 0;
    for (const float l : block) passes |= int(!(l <= largest.logit));  // NaN passes, too
    if (passes == 0) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (std::isnan(block[i])) return Sampler::not_a_number(int64_t(begin + i));
      if (block[i] > largest.logit) largest = {int32_t(begin + i), block[i]};
    }
  }
  return largest;
}

}  // namespace

Result<Sampler> Sampler::make(const SamplerOptions& o) {
  // Written so that NaN fails every test.
  if (!(o.temperature >= 0 && o.temperature <= 1e6f)) return out_of_range("temperature", o.temperature, "0 or more");
  if (o.top_k < 0) return out_of_range("top_k", double(o.top_k), "0 (all) or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return out_of_range("top_p", o.top_p, "more than 0, at most 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return out_of_range("min_p", o.min_p, "0..1");
  if (!(o.repeat_penalty > 0 && o.repeat_penalty <= 1e6f))
    return out_of_range("repeat_penalty", o.repeat_penalty, "more than 0");
  for (const auto& [name, penalty] :
       {std::pair{"frequency_penalty", o.frequency_penalty}, std::pair{"presence_penalty", o.presence_penalty}})
    if (!(std::abs(penalty) <= 1e6f)) return out_of_range(name, penalty, "a number");
  for (const auto& [token, bias] : o.logit_bias)
    if (!(bias < std::numeric_limits<float>::infinity()))
      return out_of_range("logit_bias", bias, "a number, or minus infinity");
  if (o.repeat_window < 0 || o.repeat_window > kMaxWindow)
    return out_of_range("repeat_window", double(o.repeat_window), "0..1048576");
  return Sampler(o);
}

tl::unexpected<Error> Sampler::not_a_number(int64_t token) {
  return fail(ErrorCode::kInvalidArgument, "sampler", fmt::format("NaN for token {}", token), "numbers",
              "the model overflowed; --act f32 may help");
}

tl::unexpected<Error> Sampler::all_forbidden() {
  return fail(ErrorCode::kInvalidArgument, "sampler", "no token that may be chosen",
              "one that token_mask and logit_bias allow and the model's logits do not rule out");
}

TokenRule Sampler::next_rule() {
  TokenRule rule;
  rule.temperature = options_.temperature;
  if (options_.temperature == 0) return rule;
  if (size_t(options_.top_k) < kMostLogits) rule.top_k = int32_t(options_.top_k);
  if (options_.top_p < 1) rule.top_p = part_of_all(options_.top_p);
  if (options_.min_p > 0) rule.min_p = least_weight(options_.min_p);
  rule.random = rng_.next();
  return rule;
}

bool Sampler::penalizes() const {
  return options_.repeat_penalty != 1.0f || options_.frequency_penalty != 0 || options_.presence_penalty != 0;
}

int64_t Sampler::first_beyond(int64_t tokens) const {
  const std::vector<uint32_t>& mask = options_.token_mask;
  for (auto i = size_t((tokens + 31) / 32); i < mask.size(); ++i)
    if (mask[i] != 0) return int64_t(i) * 32 + std::countr_zero(mask[i]);
  return -1;
}

void Sampler::accept(int32_t token) {
  const size_t window = size_t(options_.repeat_window);
  if (!penalizes() || window == 0) return;
  if (recent_.size() < window) {
    recent_.reserve(window);  // once; sampling allocates nothing later
    sorted_.reserve(window);
    recent_.push_back(token);
    return;
  }
  recent_[recent_next_] = token;
  recent_next_ = (recent_next_ + 1) % window;
}

void Sampler::recent(std::vector<int32_t>& to) const {
  to.assign(recent_.begin() + int64_t(recent_next_), recent_.end());
  to.insert(to.end(), recent_.begin(), recent_.begin() + int64_t(recent_next_));
}

void Sampler::reset() {
  recent_.clear();
  recent_next_ = 0;
  rng_ = Rng(options_.seed);
}

/// Logits after what does not depend on the other logits.
Result<std::span<const float>> Sampler::adjust(std::span<const float> logits) {
  if (recent_.empty() && !forbids()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : options_.logit_bias) {
    if (token < 0 || size_t(token) >= adjusted_.size())
      return fail(ErrorCode::kInvalidArgument, "sampler logit_bias", fmt::format("token {}", token),
                  fmt::format("0 to {}", adjusted_.size() - 1));
    float& logit = adjusted_[size_t(token)];
    logit = bias == kNever ? kNever : logit + bias;  // also where the logit is infinite
  }
  if (const int64_t token = first_beyond(int64_t(adjusted_.size())); token >= 0)
    return fail(ErrorCode::kInvalidArgument, "sampler token_mask", fmt::format("token {}", token),
                fmt::format("0 to {}", adjusted_.size() - 1));
  penalize();
  mask();
  return adjusted_;
}

/// Once for each recent token, with how often it is there.
void Sampler::penalize() {
  sorted_.assign(recent_.begin(), recent_.end());
  std::sort(sorted_.begin(), sorted_.end());
  for (auto begin = sorted_.begin(); begin != sorted_.end();) {
    const int32_t id = *begin;
    const auto end = std::upper_bound(begin, sorted_.end(), id);
    const auto count = float(end - begin);
    begin = end;
    if (id < 0 || size_t(id) >= adjusted_.size()) continue;
    float& logit = adjusted_[size_t(id)];
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    logit -= count * options_.frequency_penalty + options_.presence_penalty;
  }
}

void Sampler::mask() {
  const std::vector<uint32_t>& mask = options_.token_mask;
  if (mask.empty()) return;
  for (size_t i = 0; i < adjusted_.size(); ++i) {
    const bool allowed = i / 32 < mask.size() && ((mask[i / 32] >> (i % 32)) & 1) != 0;
    if (!allowed) adjusted_[i] = -std::numeric_limits<float>::infinity();
  }
}

/// The k largest, in order: a heap whose front is the least of them, and a threshold that few of the others pass.
/// Blocks are compared with it whole, so that most logits are read once and copied never.
void Sampler::keep_largest(std::span<const float> logits, size_t k) {
  const auto larger = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  constexpr size_t kBlock = 64;
  candidates_.clear();
  candidates_.reserve(k);
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (candidates_.size() == k) {
      const float least = candidates_[0].logit;
      int passes = 0;
      for (const float l : block) passes |= int(l > least);  // an equal one has a larger id
      if (passes == 0) continue;
    }
    for (size_t i = 0; i < block.size(); ++i) {
      const Candidate c{int32_t(begin + i), block[i], 0};
      if (candidates_.size() < k) {
        candidates_.push_back(c);
        std::push_heap(candidates_.begin(), candidates_.end(), larger);
      } else if (c.logit > candidates_[0].logit) {
        std::pop_heap(candidates_.begin(), candidates_.end(), larger);
        candidates_.back() = c;
        std::push_heap(candidates_.begin(), candidates_.end(), larger);
      }
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), larger);
  for (Candidate& c : candidates_) c.weight = token_weight(c.logit, candidates_[0].logit, 1);
}

/// All of them, in the order of their ids; where a part of the sum is asked for, those that add to it, the largest
/// first.
void Sampler::keep_all(std::span<const float> logits, float largest) {
  candidates_.clear();
  candidates_.reserve(logits.size());
  const bool sums = options_.top_p < 1;
  // keep_min_p() drops what is less likely; most tokens are, and need no exponential. The margin is far more than its
  // rounding. Below 2^-40 it drops nothing.
  const float least = !sums && least_weight(options_.min_p) > 0 ? std::log(options_.min_p) - 0.01f : kNever;
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    int passes = 0;
    for (const float l : block) passes |= int(!(l - largest < least));
    if (passes == 0) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] - largest < least) continue;
      const uint64_t weight = token_weight(block[i], largest, 1);
      if (!sums || weight > 0) candidates_.push_back({int32_t(begin + i), block[i], weight});
    }
  }
  if (sums)
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    });
}

void Sampler::keep_top_p() {
  if (options_.top_p >= 1) return;
  uint64_t total = 0, sum = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const uint64_t wanted = part_of_weight(total, part_of_all(options_.top_p));
  size_t n = 0;
  while (n < candidates_.size() && sum < wanted) sum += candidates_[n++].weight;
  candidates_.resize(std::max<size_t>(n, 1));
}

void Sampler::keep_min_p() {
  if (options_.min_p <= 0) return;
  const uint64_t least = least_weight(options_.min_p);
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < least; });
}

int32_t Sampler::draw(float largest) {
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id))
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  uint64_t total = 0;
  for (Candidate& c : candidates_) total += c.weight = token_weight(c.logit, largest, options_.temperature);
  uint64_t left = rng_.below(total);
  for (const Candidate& c : candidates_) {
    if (left < c.weight) return c.id;
    left -= c.weight;
  }
  return candidates_.back().id;  // not reached: left < total
}

bool Sampler::drops_none(size_t tokens) const {
  return (options_.top_k == 0 || size_t(options_.top_k) >= tokens) && options_.top_p >= 1 && options_.min_p <= 0;
}

/// draw() of all tokens: their weights are summed in blocks, and one by one only in the block that is drawn.
int32_t Sampler::draw_of_all(std::span<const float> logits, float largest) {
  // A sampler belongs to no model, so it asks the environment; no choice changes a sum.
  static const VectorOps& ops = vector_ops(choose_isa("").value_or(Isa::kScalar));
  constexpr size_t kBlock = kMostTokenWeights;
  sums_.clear();
  uint64_t total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    sums_.push_back(ops.sum_token_weights(block.data(), int64_t(block.size()), largest, options_.temperature));
    total += sums_.back();
  }
  uint64_t left = rng_.below(total);
  size_t token = 0;
  for (; left >= sums_[token / kBlock]; token += kBlock) left -= sums_[token / kBlock];
  for (; token + 1 < logits.size(); ++token) {
    const uint64_t weight = token_weight(logits[token], largest, options_.temperature);
    if (left < weight) break;
    left -= weight;
  }
  return int32_t(token);
}

Result<int32_t> Sampler::sample(std::span<const float> logits) {
  if (logits.empty() || logits.size() > kMostLogits)
    return fail(ErrorCode::kInvalidArgument, "sampler", fmt::format("{} logits", logits.size()),
                fmt::format("one per token, at most {}", kMostLogits));
  LOWBIT_TRY_ASSIGN(logits, adjust(logits));
  LOWBIT_TRY_ASSIGN(const Largest largest, find_largest(logits));
  if (forbids() && largest.logit == -std::numeric_limits<float>::infinity()) return all_forbidden();
  if (options_.temperature == 0) return largest.id;
  if (drops_none(logits.size()) && std::isfinite(largest.logit)) return draw_of_all(logits, largest.logit);
  if (options_.top_k > 0 && size_t(options_.top_k) < logits.size()) {
    keep_largest(logits, size_t(options_.top_k));
  } else {
    keep_all(logits, largest.logit);
  }
  keep_top_p();
  keep_min_p();
  return draw(largest.logit);
}

}  // namespace lowbit
