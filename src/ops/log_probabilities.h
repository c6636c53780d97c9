#pragma once
// Logits of one position as probabilities, in double sums.
#include <algorithm>
#include <cmath>
#include <span>

namespace lowbit {

/// log of the sum of exp(logit) over the vocabulary.
inline double log_sum_exp(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - largest);
  return std::log(sum) + largest;
}

/// log p of every token, in place of its logits.
inline void to_log_probabilities(std::span<float> logits) {
  const auto shift = static_cast<float>(log_sum_exp(logits));
  for (float& l : logits) l -= shift;
}

}  // namespace lowbit
