#pragma once

#include <cstdint>
#include <span>

namespace lowbit {

/// One position's logits as log-probabilities. THE definition: `sum` adds exp_f64() of the f32 differences l[i] -
/// largest, by the blocks of kernels/exp_f64.h; log p[i] = (l[i] - largest) - log(sum), where the first difference is
/// rounded to f32, as in llama.cpp, and the second is double. The same bits on every device.
struct LogSoftmax {
  float largest = 0;
  int64_t top = 0;     // the first of the largest
  double log_sum = 0;  // log(sum)

  double of(float logit) const { return static_cast<double>(logit - largest) - log_sum; }
  /// log p of every token in place of its logit, all shifted by one f32: log(sum) + largest.
  void apply(std::span<float> logits) const;
};

/// `logits`: at least one.
LogSoftmax log_softmax(std::span<const float> logits);

/// sum of p (log p - log q) over rows of log-probabilities, in double.
double kl_divergence(std::span<const float> log_p, std::span<const float> log_q);

}  // namespace lowbit
