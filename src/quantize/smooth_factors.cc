#include "quantize/smooth_factors.h"

#include <algorithm>
#include <cmath>

namespace lowbit {
namespace {

constexpr double kMost = 256;

bool usable(float magnitude) { return magnitude > 0 && std::isfinite(magnitude); }

}  // namespace

std::vector<float> smooth_factors(const std::vector<float>& inputs, const std::vector<float>& weights,
                                  double strength) {
  const size_t k = std::min(inputs.size(), weights.size());
  std::vector<double> exponents(k, 0.0);  // log of each factor
  double sum = 0, count = 0;
  for (size_t j = 0; j < k; ++j) {
    if (!usable(inputs[j]) || !usable(weights[j])) continue;
    exponents[j] = strength * std::log(static_cast<double>(inputs[j])) -
                   (1 - strength) * std::log(static_cast<double>(weights[j]));
    sum += exponents[j];
    count += 1;
  }
  std::vector<float> factors(k, 1.0f);
  for (size_t j = 0; j < k; ++j)
    if (usable(inputs[j]) && usable(weights[j]))
      factors[j] = static_cast<float>(std::clamp(std::exp(exponents[j] - sum / count), 1 / kMost, kMost));
  return factors;
}

}  // namespace lowbit
