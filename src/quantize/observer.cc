#include "quantize/observer.h"

#include <algorithm>
#include <cmath>

namespace lowbit {
namespace {

/// Calls `visit` with each finite value; returns how many were not.
template <class F>
int64_t for_each_finite(std::span<const float> batch, const F& visit) {
  int64_t skipped = 0;
  for (const float v : batch) {
    if (std::isfinite(v)) {
      visit(v);
    } else {
      ++skipped;
    }
  }
  return skipped;
}

void include(Range& range, float v) {
  range.min = std::min(range.min, v);
  range.max = std::max(range.max, v);
}

void add_pairs(std::vector<int64_t>& bins) {
  const size_t half = bins.size() / 2;
  for (size_t i = 0; i < half; ++i) bins[i] = bins[2 * i] + bins[2 * i + 1];
  std::fill(bins.begin() + static_cast<std::ptrdiff_t>(half), bins.end(), 0);
}

int clamp_zero(double zero, const IntGrid& g) {
  return static_cast<int>(std::min(std::max(zero, static_cast<double>(g.q_min())), static_cast<double>(g.q_max())));
}

/// The step that maps the range onto the grid; `saturate` as in pow2_params.
double covering_step(Range r, const IntGrid& g, int saturate) {
  const double top = g.q_max() + saturate, min = r.min, max = r.max;
  if (!g.symmetric) return (max - min) / (top - g.q_min());
  const double for_max = max > 0 && top > 0 ? max / top : 0.0;
  return g.is_unsigned ? for_max : std::max(for_max, min / g.q_min());
}

IntParams params_of_shift(Range r, const IntGrid& g, int shift) {
  IntParams p;
  p.shift = shift;
  p.scale = std::ldexp(1.0f, -shift);
  if (!g.symmetric) p.zero = clamp_zero(g.q_min() - std::floor(std::ldexp(static_cast<double>(r.min), shift)), g);
  return p;
}

}  // namespace

void MinMaxObserver::observe(std::span<const float> batch) {
  skipped_ += for_each_finite(batch, [&](float v) { include(range_, v); });
}
void MinMaxObserver::merge(const MinMaxObserver& other) {
  include(range_, other.range_.min);
  include(range_, other.range_.max);
  skipped_ += other.skipped_;
}

void EmaObserver::observe(std::span<const float> step) {
  float low = INFINITY, high = -INFINITY;
  skipped_ += for_each_finite(step, [&](float v) {
    low = std::min(low, v);
    high = std::max(high, v);
  });
  if (!(low <= high)) return;
  min_ = started_ ? keep_ * min_ + (1 - keep_) * low : low;
  max_ = started_ ? keep_ * max_ + (1 - keep_) * high : high;
  started_ = true;
}
Range EmaObserver::range() const { return {std::min(min_, 0.0f), std::max(max_, 0.0f)}; }

double Histogram::bin_width() const { return std::ldexp(1.0 / kBins, exponent_); }

Histogram Histogram::from_counts(Range range, int bin_exponent, std::span<const int64_t> positive,
                                 std::span<const int64_t> negative) {
  Histogram h;
  h.range_ = range;
  h.exponent_ = bin_exponent + std::ilogb(static_cast<double>(kBins));
  h.positive_.assign(positive.begin(), positive.end());
  h.negative_.assign(negative.begin(), negative.end());
  for (auto* side : {&h.positive_, &h.negative_}) {
    side->resize(kBins);
    for (const int64_t n : *side) h.count_ += n;
  }
  return h;
}

void Histogram::grow(int exponent) {
  if (exponent <= exponent_) return;
  positive_.resize(kBins);
  negative_.resize(kBins);
  // Beyond 13 doublings everything lies in bin 0.
  const int doublings = exponent_ == kEmpty ? 0 : std::min(exponent - exponent_, 13);
  for (int i = 0; i < doublings; ++i) {
    add_pairs(positive_);
    add_pairs(negative_);
  }
  exponent_ = exponent;
}

void Histogram::observe(std::span<const float> batch) {
  float largest = 0;
  skipped_ += for_each_finite(batch, [&](float v) {
    include(range_, v);
    largest = std::max(largest, std::fabs(v));
    ++count_;
  });
  grow(largest > 0 ? std::ilogb(largest) + 1 : kEmpty + 1);
  const double per_width = 1 / bin_width();
  for_each_finite(batch, [&](float v) {
    const auto bin = static_cast<size_t>(std::fabs(static_cast<double>(v)) * per_width);
    ++(v < 0 ? negative_ : positive_)[bin];
  });
}

void Histogram::merge(const Histogram& other) {
  Histogram aligned = other;
  const int exponent = std::max(exponent_, other.exponent_);
  if (exponent == kEmpty) {
    skipped_ += other.skipped_;
    return;
  }
  grow(exponent);
  aligned.grow(exponent);
  for (size_t i = 0; i < kBins; ++i) {
    positive_[i] += aligned.positive_[i];
    negative_[i] += aligned.negative_[i];
  }
  include(range_, other.range_.min);
  include(range_, other.range_.max);
  count_ += other.count_;
  skipped_ += other.skipped_;
}

Range PercentileObserver::range() const {
  const Histogram& h = histogram_;
  if (h.count() == 0) return {};
  const auto allowed =  // values that may lie beyond each end
      static_cast<int64_t>(std::floor((1 - p_) * static_cast<double>(h.count()) + 1e-9));
  const auto end_of = [&](std::span<const int64_t> bins) {
    int64_t beyond = 0;
    for (size_t i = bins.size(); i-- > 0;) {
      beyond += bins[i];
      if (beyond > allowed) return static_cast<double>(i + 1) * h.bin_width();
    }
    return 0.0;
  };
  const Range exact = h.range();
  return {std::max(exact.min, static_cast<float>(-end_of(h.negative()))),
          std::min(exact.max, static_cast<float>(end_of(h.positive())))};
}

IntParams real_params(Range range, const IntGrid& grid) {
  const double step = covering_step(range, grid, 0);
  IntParams p;
  p.scale = static_cast<float>(step);
  if (!(p.scale > 0)) return {1, grid.symmetric ? 0 : clamp_zero(0, grid), 0};
  if (!grid.symmetric)
    p.zero = clamp_zero(std::nearbyint(grid.q_min() - range.min / static_cast<double>(p.scale)), grid);
  return p;
}

IntParams pow2_params(Range range, const IntGrid& grid, int saturate) {
  const double step = covering_step(range, grid, saturate);
  int shift = grid.is_unsigned ? grid.bits : grid.bits - 1;
  if (step > 0) {  // floor(-log2 step) without a logarithm
    int exponent = 0;
    const double fraction = std::frexp(step, &exponent);
    shift = fraction == 0.5 ? 1 - exponent : -exponent;
  }
  return params_of_shift(range, grid, shift);
}

double quantization_error(const Histogram& h, const IntParams& p, const IntGrid& grid, double clip_weight) {
  const double width = h.bin_width();
  double sum = 0;
  const auto add = [&](std::span<const int64_t> bins, double sign) {
    for (size_t i = 0; i < bins.size(); ++i) {
      if (bins[i] == 0) continue;
      const double x = sign * (static_cast<double>(i) + 0.5) * width;
      const double q = std::nearbyint(x / static_cast<double>(p.scale)) + p.zero;
      const double clipped = clamp_zero(q, grid);
      const double d = x - (clipped - p.zero) * static_cast<double>(p.scale);
      sum += static_cast<double>(bins[i]) * d * d * (q == clipped ? 1.0 : clip_weight);
    }
  };
  add(h.positive(), 1);
  add(h.negative(), -1);
  return sum;
}

IntParams search_real_params(const Histogram& h, const IntGrid& grid) {
  IntParams best = real_params(h.range(), grid);
  double least = quantization_error(h, best, grid);
  for (int i = 1; i < 80; ++i) {
    const float part = 1.0f - 0.01f * static_cast<float>(i);
    const IntParams p = real_params({part * h.range().min, part * h.range().max}, grid);
    const double error = quantization_error(h, p, grid);
    if (error < least) {
      least = error;
      best = p;
    }
  }
  return best;
}

IntParams search_pow2_params(const Histogram& h, const IntGrid& grid, double clip_weight) {
  IntParams best = pow2_params(h.range(), grid, 0);
  const int first = best.shift;
  double least = quantization_error(h, best, grid, clip_weight);
  for (int shift = first + 1; shift < first + 4; ++shift) {
    const IntParams p = params_of_shift(h.range(), grid, shift);
    const double error = quantization_error(h, p, grid, clip_weight);
    if (error < least) {
      least = error;
      best = p;
    }
  }
  return best;
}

}  // namespace lowbit
