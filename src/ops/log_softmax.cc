#include "ops/log_softmax.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/exp_f64.h"

namespace lowbit {

namespace {

double sum_block(std::span<const float> logits, float largest) {
  std::array<double, kSumBlock> s{};
  for (size_t i = 0; i < logits.size(); ++i) s[i] = exp_f64(logits[i] - largest);
  for (size_t width = kSumBlock / 2; width > 0; width /= 2)
    for (size_t i = 0; i < width; ++i) s[i] += s[i + width];
  return s[0];
}

}  // namespace

void LogSoftmax::apply(std::span<float> logits) const {
  const auto shift = static_cast<float>(log_sum + largest);
  for (float& l : logits) l -= shift;
}

LogSoftmax log_softmax(std::span<const float> logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  const float largest = *top;
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kSumBlock)
    sum += sum_block(logits.subspan(begin, std::min<size_t>(kSumBlock, logits.size() - begin)), largest);
  return {largest, top - logits.begin(), std::log(sum)};
}

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i)
    sum += std::exp(static_cast<double>(log_p[i])) * (static_cast<double>(log_p[i]) - log_q[i]);
  return sum;
}

}  // namespace lowbit
