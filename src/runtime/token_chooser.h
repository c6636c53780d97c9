#pragma once
// The token behind a sequence: chosen by the device where it can, else from logits on the host.

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/sampler.h"
#include "runtime/transformer.h"

namespace lowbit {

/// For each token, or several of one call: wanted(), the call, token(). The tokens are the sampler's either way.
class TokenChooser {
 public:
  /// `device`: a model that chooses tokens (Transformer::chooses_tokens()) where nobody else wants logits; or null. THE
  /// place that leaves what a device does not do to the sampler: a bias of a token that the vocabulary lacks, limits
  /// for which the device has no memory, more than kMostRecent tokens to penalize, log-probabilities of more than
  /// kMostLikely tokens or beside what changes logits. `top_logprobs`: log-probabilities are wanted, of so many tokens.
  TokenChooser(Sampler sampler, const Transformer* device, std::optional<int64_t> top_logprobs = {});

  /// Whether the device chooses the tokens of the next call.
  bool by_device() const { return device_ != nullptr && sampler_.recent_count() <= kMostRecent; }
  /// The outputs that the next pass must give, or so many passes, up to 64. One that failed may run again with them.
  /// Refers to this object.
  LogitsWanted wanted(size_t tokens = 1);
  /// The token that the pass has chosen, or the sampler's token for its logits, which are not looked at where the
  /// device chose. `i`: of those tokens, one on the host. Errors: those of Sampler::sample().
  Result<int32_t> token(std::span<const float> logits, size_t i = 0);
  /// token_logprobs() of that token, where log-probabilities are wanted.
  float logprobs(std::span<const float> logits, int32_t token, size_t i,
                 std::vector<std::pair<int32_t, float>>& top) const;
  /// Sampler::accept().
  void accept(int32_t token) { sampler_.accept(token); }

 private:
  LogitChanges changes(int64_t pass) const;

  Sampler sampler_;
  const Transformer* device_;
  std::optional<int64_t> top_logprobs_;
  std::unique_ptr<TokenLimits> limits_;
  std::vector<int32_t> recent_;       // of the last wanted()
  std::vector<TokenLogits> found_;    // likewise, where log-probabilities are wanted
  std::vector<TokenChoice> choices_;  // likewise; none where the host chooses
};

}  // namespace lowbit
