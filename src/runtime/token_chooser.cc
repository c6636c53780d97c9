#include "runtime/token_chooser.h"

namespace lowbit {

LogitsWanted TokenChooser::wanted(size_t tokens) {
  if (!by_device_) return LogitsWanted::last();
  choices_.clear();
  for (size_t i = 0; i < tokens; ++i) choices_.push_back({sampler_.next_rule()});
  return LogitsWanted::tokens(choices_);
}

Result<int32_t> TokenChooser::token(std::span<const float> logits, size_t i) {
  if (!by_device_) return sampler_.sample(logits);
  if (choices_[i].token < 0) return Sampler::not_a_number(choices_[i].nan);
  return choices_[i].token;
}

}  // namespace lowbit
