#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lowbit {
namespace {

/// Source: transformers, _compute_llama3_parameters.
double llama3_frequency(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = double(s.original_max_positions);
  if (wavelength < original / s.high_freq_factor) return frequency;
  if (wavelength > original / s.low_freq_factor) return frequency / s.factor;
  const double blend = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& rope) {
  const RopeScaling& scaling = rope.scaling;
  std::vector<double> frequencies(static_cast<size_t>(rope.dims / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double f = std::pow(rope.theta, -2.0 * double(i) / double(rope.dims));
    if (scaling.kind == RopeScaling::Kind::kLinear) f /= scaling.factor;
    if (scaling.kind == RopeScaling::Kind::kLlama3) f = llama3_frequency(f, scaling);
    frequencies[i] = f;
  }
  return frequencies;
}

void rope_table(const std::vector<double>& frequencies, int64_t first, int64_t n, float* cos, float* sin,
                ThreadPool& pool) {
  const int64_t half = int64_t(frequencies.size());
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = double(first + p) * frequencies[static_cast<size_t>(i)];
        cos[p * half + i] = float(std::cos(angle));
        sin[p * half + i] = float(std::sin(angle));
      }
  });
}

void rope_rows(const VectorOps& ops, float* x, int64_t ldx, int64_t m, int64_t heads, int64_t half, const float* cos,
               const float* sin, ThreadPool& pool) {
  const int64_t grain = std::max<int64_t>(1, 16384 / (2 * heads * half));
  pool.parallel_for(m, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < heads; ++h) ops.rope(x + r * ldx + h * 2 * half, cos + r * half, sin + r * half, half);
  });
}

}  // namespace lowbit
