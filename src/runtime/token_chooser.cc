#include "runtime/token_chooser.h"

#include <algorithm>
#include <utility>

#include "runtime/token_logprobs.h"

namespace lowbit {

TokenChooser::TokenChooser(Sampler sampler, const Transformer* device, std::optional<int64_t> top_logprobs)
    : sampler_(std::move(sampler)), device_(device), top_logprobs_(top_logprobs) {
  const bool changes = sampler_.penalizes() || sampler_.forbids();
  if (top_logprobs && (changes || *top_logprobs > kMostLikely)) device_ = nullptr;
  if (device_ == nullptr || !sampler_.forbids()) return;
  const SamplerOptions& options = sampler_.options();
  const auto exists = [&](const auto& bias) { return bias.first >= 0 && bias.first < device->spec().vocab_size; };
  if (std::ranges::all_of(options.logit_bias, exists) && sampler_.first_beyond(device->spec().vocab_size) < 0)
    limits_ = device->place_limits(options.logit_bias, options.token_mask).value_or(nullptr);
  if (limits_ == nullptr) device_ = nullptr;
}

LogitChanges TokenChooser::changes(int64_t pass) const {
  const SamplerOptions& options = sampler_.options();
  LogitChanges changes{.limits = limits_.get()};
  if (!sampler_.penalizes()) return changes;
  changes.later = std::min(pass, options.repeat_window);
  const auto known = std::min<int64_t>(int64_t(recent_.size()), options.repeat_window - changes.later);
  changes.recent = std::span(recent_).last(size_t(known));
  changes.repeat = options.repeat_penalty;
  changes.frequency = options.frequency_penalty;
  changes.presence = options.presence_penalty;
  return changes;
}

LogitsWanted TokenChooser::wanted(size_t tokens) {
  choices_.clear();
  if (!by_device()) return LogitsWanted::last();
  sampler_.recent(recent_);
  if (top_logprobs_) found_.resize(std::max(found_.size(), tokens));
  for (size_t i = 0; i < tokens; ++i) {
    choices_.push_back({.rule = sampler_.next_rule(), .changes = changes(int64_t(i))});
    if (!top_logprobs_) continue;
    found_[i].count = *top_logprobs_;
    choices_[i].logits = &found_[i];
  }
  return LogitsWanted::tokens(choices_);
}

Result<int32_t> TokenChooser::token(std::span<const float> logits, size_t i) {
  if (choices_.empty()) return sampler_.sample(logits);
  const TokenChoice& choice = choices_[i];
  if (choice.token >= 0) return choice.token;
  return choice.nan >= 0 ? Sampler::not_a_number(choice.nan) : Sampler::all_forbidden();
}

float TokenChooser::logprobs(std::span<const float> logits, int32_t token, size_t i,
                             std::vector<std::pair<int32_t, float>>& top) const {
  return choices_.empty() ? token_logprobs(logits, token, *top_logprobs_, top) : token_logprobs(found_[i], top);
}

}  // namespace lowbit
