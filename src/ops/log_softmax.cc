#include "ops/log_softmax.h"

#include <algorithm>
#include <cmath>

namespace lowbit {

void LogSoftmax::apply(std::span<float> logits) const {
  const auto shift = static_cast<float>(log_sum + largest);
  for (float& l : logits) l -= shift;
}

LogSoftmax log_softmax(std::span<const float> logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  const float largest = *top;
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - largest);
  return {largest, top - logits.begin(), std::log(sum)};
}

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i)
    sum += std::exp(static_cast<double>(log_p[i])) * (static_cast<double>(log_p[i]) - log_q[i]);
  return sum;
}

}  // namespace lowbit
