#include "runtime/token_chooser.h"

namespace lowbit {

LogitsWanted TokenChooser::wanted() {
  if (!by_device_) return LogitsWanted::last();
  choice_ = {sampler_.next_rule()};
  return LogitsWanted::token(&choice_);
}

Result<int32_t> TokenChooser::token(std::span<const float> logits) {
  if (!by_device_) return sampler_.sample(logits);
  if (choice_.token < 0) return Sampler::not_a_number(choice_.nan);
  return choice_.token;
}

}  // namespace lowbit
