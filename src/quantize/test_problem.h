#pragma once
// A layer's fit against its outputs, for tests.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "quantize/feedback.h"

namespace lowbit::testing_quantize {

/// Inputs with a power-law spectrum in random directions and a few loud channels, as transformers have.
struct Problem {
  int64_t n = 24, k = 192;
  std::vector<float> w;
  InputHessian hessian;

  explicit Problem(uint64_t seed = 1) {
    Rng rng(seed, 0);
    const auto width = static_cast<size_t>(k);
    const auto normal = [&] { return static_cast<float>(rng.normal()); };
    std::vector<float> loud(width), basis(width * width);
    for (float& v : loud) v = std::exp(0.7f * normal());
    for (float& v : basis) v = normal() / std::sqrt(static_cast<float>(k));
    hessian.k = k;
    hessian.h.assign(width * width, 0.0f);
    for (size_t e = 0; e < width; ++e)
      for (size_t i = 0; i < width; ++i)
        for (size_t j = 0; j < width; ++j)
          hessian.h[i * width + j] +=
              basis[e * width + i] * loud[i] * basis[e * width + j] * loud[j] / static_cast<float>(e + 1);
    for (int64_t i = 0; i < n * k; ++i) w.push_back(normal() / std::sqrt(loud[static_cast<size_t>(i % k)]));
  }

  double loss(const ValueTensor& q) const {
    std::vector<float> reals(w.size());
    const auto packed = pack(q);
    EXPECT_TRUE(packed);
    dequantize_rows(*packed, 0, n, reals.data());
    double sum = 0, energy = 0;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < k; ++j) {
          const double h = hessian.h[static_cast<size_t>(i * k + j)];
          const auto a = static_cast<size_t>(r * k + i), b = static_cast<size_t>(r * k + j);
          sum += h * (static_cast<double>(w[a]) - reals[a]) * (static_cast<double>(w[b]) - reals[b]);
          energy += h * w[a] * w[b];
        }
    return sum / energy;
  }
};

inline FitOptions grouped(FormatId format, int64_t group = 64) {
  FitOptions options;
  options.format = format;
  options.scaling.k_block = group;
  return options;
}

inline ValueTensor run(const Problem& p, const FitOptions& options, const FeedbackOptions& feedback, int threads = 1,
                       FeedbackReport* report = nullptr) {
  ThreadPool pool(threads);
  auto q = fit_with_feedback(p.w.data(), p.n, p.k, options, p.hessian, feedback, pool, report);
  EXPECT_TRUE(q) << q.error().message();
  return q ? *q : ValueTensor{};
}

}  // namespace lowbit::testing_quantize
