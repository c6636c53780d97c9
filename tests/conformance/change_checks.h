// Checks that kernels do to logits what Sampler does before it chooses, and give its tokens. Included behind
// sample_checks.h, like it without a guard.

#include "kernels/cuda_change_api.h"

namespace lowbit {
namespace {

/// Penalties, a window of up to kMostRecent tokens, biases (some of them twice) and a mask.
void add_changes(int64_t vocab, Rng& rng, SamplerOptions& o) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kRepeats[] = {1, 1.3F, 0.7F, 1e6F}, kLess[] = {0, 0.5F, -2, 1e6F};
  constexpr int64_t kWindows[] = {64, 1, 0, 5, kMostRecent};
  o.repeat_penalty = kRepeats[rng.below(std::size(kRepeats))];
  o.frequency_penalty = kLess[rng.below(std::size(kLess))];
  o.presence_penalty = kLess[rng.below(std::size(kLess))];
  o.repeat_window = kWindows[rng.below(std::size(kWindows))];
  const auto biases = rng.below(3) == 0 ? 1 + rng.below(400) : 0;
  for (size_t i = 0; i < biases; ++i)
    o.logit_bias.emplace_back(int32_t(rng.below(uint64_t(vocab))), rng.below(5) == 0 ? -kInf : float(4 * rng.normal()));
  const auto kind = rng.below(6);  // 0 to 2: none
  if (kind < 3) return;
  o.token_mask.resize(size_t(vocab / 32 + 1) / (kind == 3 ? 2 : 1) + 1);  // 3: short
  const uint64_t one_in = kind == 4 ? 400 : 3;
  for (uint32_t& word : o.token_mask)
    for (int bit = 0; bit < 32; ++bit) word |= uint32_t(rng.below(one_in) == 0) << bit;
  // words of no token: there, but empty, as a token that does not exist is an error
  for (size_t i = size_t((vocab + 31) / 32); i < o.token_mask.size(); ++i) o.token_mask[i] = 0;
  if (rng.below(6) == 0) std::ranges::fill(o.token_mask, 0U);
}

/// One row of a call: a sampler behind a text, of which passes of the same call have chosen the end.
struct ChangedRow {
  std::vector<float> logits;
  SamplerOptions options;
  std::vector<int32_t> recent, later;
  Sampler sampler;

  ChangedRow(int64_t vocab, size_t laters, Rng& rng)
      : logits(logits_of(static_cast<LogitsKind>(rng.below(static_cast<uint64_t>(LogitsKind::kCount))), vocab, rng)),
        options(options_of(rng.below(6), rng)),
        sampler(*Sampler::make(options)) {
    if (rng.below(5) != 0) add_changes(vocab, rng, options);
    sampler = *Sampler::make(options);
    const uint64_t tokens = std::min<uint64_t>(uint64_t(vocab) + 2, 1 + rng.below(300));
    for (uint64_t left = rng.below(1500); left > 0; --left) sampler.accept(int32_t(rng.below(tokens)) - 1);
    sampler.recent(recent);
    for (size_t i = 0; i < laters; ++i) later.push_back(int32_t(rng.below(tokens)) - 1);
    for (const int32_t token : later) sampler.accept(token);
    const auto in_window = std::min<int64_t>(int64_t(laters), options.repeat_window);
    recent.erase(recent.begin(), recent.end() - std::min(std::ssize(recent), options.repeat_window - in_window));
  }
};

}  // namespace
}  // namespace lowbit
