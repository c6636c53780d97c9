#pragma once
// The token behind a sequence: chosen by the device where it can, else from logits on the host.

#include <span>
#include <utility>
#include <vector>

#include "runtime/sampler.h"
#include "runtime/transformer.h"

namespace lowbit {

/// For each token, or several of one call: wanted(), the call, token(). The tokens are the sampler's either way.
class TokenChooser {
 public:
  /// `by_device`: the model chooses tokens and nobody else wants logits; a sampler without rules chooses on the host
  /// all the same.
  TokenChooser(Sampler sampler, bool by_device)
      : sampler_(std::move(sampler)), by_device_(by_device && sampler_.has_rule()) {}

  bool by_device() const { return by_device_; }
  /// The outputs that the next pass must give. A pass that failed may run again with them. Refers to this object.
  LogitsWanted wanted(size_t tokens = 1);
  /// The token that the pass has chosen, or the sampler's token for its logits, which are not looked at where the
  /// device chose. `i`: of those tokens, one on the host. Errors: those of Sampler::sample().
  Result<int32_t> token(std::span<const float> logits, size_t i = 0);
  /// Sampler::accept().
  void accept(int32_t token) { sampler_.accept(token); }

 private:
  Sampler sampler_;
  bool by_device_;
  std::vector<TokenChoice> choices_;
};

}  // namespace lowbit
