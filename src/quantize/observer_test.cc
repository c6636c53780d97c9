#include "quantize/observer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace lowbit {
namespace {

static_assert(Observer<MinMaxObserver> && Observer<EmaObserver> && Observer<PercentileObserver> && Observer<Histogram>);

std::vector<float> normal(int n, uint64_t seed, double sigma = 1) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = static_cast<float>(sigma * rng.normal());
  return x;
}

TEST(MinMaxObserver, CoversAndSkipsWhatIsNotFinite) {
  MinMaxObserver o;
  EXPECT_EQ(o.range(), (Range{0, 0}));
  const std::vector<float> x{2, NAN, 3, INFINITY, -INFINITY};
  o.observe(x);
  EXPECT_EQ(o.range(), (Range{0, 3}));  // 0 is always inside
  EXPECT_EQ(o.skipped(), 3);
  o.observe(std::vector<float>{-1});
  MinMaxObserver other;
  other.observe(std::vector<float>{7});
  o.merge(other);
  EXPECT_EQ(o.range(), (Range{-1, 7}));
}

TEST(EmaObserver, FirstStepSetsThenNineTenthsStay) {
  EmaObserver o;
  o.observe(std::vector<float>{-1, 1});
  EXPECT_EQ(o.range(), (Range{-1, 1}));
  o.observe(std::vector<float>{-2, 0.5});
  EXPECT_FLOAT_EQ(o.range().min, -1.1f);
  EXPECT_FLOAT_EQ(o.range().max, 0.95f);
  o.observe(std::vector<float>{NAN});  // no step
  o.observe(std::vector<float>{});
  EXPECT_FLOAT_EQ(o.range().min, -1.1f);
  EXPECT_EQ(o.skipped(), 1);
}

TEST(Histogram, DependsOnTheValuesAlone) {
  auto x = normal(5000, 3);
  x.push_back(100);  // makes the bins grow late, or early in the reversed order
  x.push_back(0);
  Histogram forward, backward, left, right;
  for (float v : x) forward.observe(std::vector<float>{v});
  std::vector<float> reversed(x.rbegin(), x.rend());
  backward.observe(reversed);
  left.observe(std::span(x).first(1234));
  right.observe(std::span(x).subspan(1234));
  left.merge(right);
  for (const Histogram* h : {&backward, &left}) {
    EXPECT_EQ(h->bin_width(), forward.bin_width());
    EXPECT_EQ(h->range(), forward.range());
    EXPECT_EQ(h->count(), forward.count());
    EXPECT_TRUE(std::ranges::equal(h->positive(), forward.positive()));
    EXPECT_TRUE(std::ranges::equal(h->negative(), forward.negative()));
  }
  EXPECT_EQ(forward.bin_width(), 128.0 / Histogram::kBins);
}

TEST(Histogram, ExtremesAndNothing) {
  Histogram h;
  Histogram empty;
  h.merge(empty);
  EXPECT_EQ(h.count(), 0);
  h.observe(std::vector<float>{0, 0});
  h.observe(std::vector<float>{1e-45f, -1e-45f, NAN});
  h.observe(std::vector<float>{3e38f});
  EXPECT_EQ(h.count(), 5);
  EXPECT_EQ(h.skipped(), 1);
  int64_t total = 0;
  for (auto c : h.positive()) total += c;
  for (auto c : h.negative()) total += c;
  EXPECT_EQ(total, 5);
}

TEST(PercentileObserver, CutsBothTails) {
  PercentileObserver all(1.0), most(0.999);
  const auto x = normal(200000, 5);
  all.observe(x);
  most.observe(x);
  MinMaxObserver exact;
  exact.observe(x);
  EXPECT_EQ(all.range(), exact.range());
  EXPECT_NEAR(most.range().max, 3.09, 0.08);
  EXPECT_NEAR(most.range().min, -3.09, 0.08);
  EXPECT_EQ(PercentileObserver(0.99).range(), (Range{0, 0}));
}

TEST(Pow2Params, TheSeedsExamples) {
  const IntGrid int8_sym{8, false, true}, uint8_sym{8, true, true}, int8_asym{8, false, false};
  EXPECT_EQ(pow2_params({-1, 1}, int8_sym).shift, 7);
  EXPECT_EQ(pow2_params({0, 1}, uint8_sym).shift, 8);
  EXPECT_EQ(pow2_params({-1, 1}, int8_sym, 0).shift, 6);
  EXPECT_EQ(pow2_params({0, 1}, uint8_sym, 0).shift, 7);
  EXPECT_EQ(pow2_params({-4, 4}, int8_sym).shift, 5);
  EXPECT_EQ(pow2_params({0, 0}, int8_sym).shift, 7);
  EXPECT_EQ(pow2_params({0, 0}, uint8_sym).shift, 8);
  const IntParams p = pow2_params({-1, 0}, int8_asym);  // 128 would be out of range
  EXPECT_EQ(p.shift, 8);
  EXPECT_EQ(p.zero, 127);
  EXPECT_EQ(p.scale, std::ldexp(1.0f, -8));
}

TEST(Pow2Params, CoverAllRangesForAllBits) {
  Rng rng(11);
  for (int i = 0; i < 20000; ++i) {
    const IntGrid g{1 + static_cast<int>(rng.below(16)), rng.below(2) == 1, rng.below(2) == 1};
    const double size = std::exp2(40 * rng.uniform() - 20);
    Range r{static_cast<float>(-size * rng.uniform()), static_cast<float>(size * rng.uniform())};
    if (g.is_unsigned && g.symmetric) r.min = 0;
    for (int saturate = 0; saturate < 2; ++saturate) {
      if (saturate == 0 && g.q_max() == 0) continue;  // {-1, 0} cannot cover a positive range
      const IntParams p = pow2_params(r, g, saturate);
      ASSERT_GE(p.zero, g.q_min());
      ASSERT_LE(p.zero, g.q_max());
      const double low = (g.q_min() - p.zero) * static_cast<double>(p.scale);
      const double high = (g.q_max() + saturate - p.zero) * static_cast<double>(p.scale);
      // The rounded zero point may move the grid by less than one step.
      const double slack = g.symmetric ? 0 : p.scale;
      ASSERT_LE(low, r.min + slack + 1e-12);
      ASSERT_GE(high, r.max - slack - 1e-12);
    }
  }
}

TEST(RealParams, CoverTheRange) {
  const IntParams sym = real_params({-2, 1}, {8, false, true});
  EXPECT_FLOAT_EQ(sym.scale, 2.0f / 128);
  const IntParams asym = real_params({-1, 3}, {8, true, false});
  EXPECT_FLOAT_EQ(asym.scale, 4.0f / 255);
  EXPECT_EQ(asym.zero, 64);
  EXPECT_EQ(real_params({0, 0}, {8, false, true}).scale, 1);
}

/// Values that lie alone in their bins, on both sides of 0, clipped ones among them.
TEST(QuantizationError, IsThatOfEveryValue) {
  const IntGrid grid{3, false, true};
  const IntParams p{0.5f, 0, 1};
  for (const double weight : {1.0, 3.0}) {
    const auto x = normal(60, 10);
    Histogram h;
    h.observe(x);
    double want = 0;
    for (const double v : x) {
      const double q = std::nearbyint(v / 0.5), clipped = std::min(std::max(q, -4.0), 3.0);
      want += (v - 0.5 * clipped) * (v - 0.5 * clipped) * (q == clipped ? 1 : weight);
    }
    EXPECT_NEAR(quantization_error(h, p, grid, weight), want, 0.02 * want);
  }
}

TEST(Search, ClippingHelpsHeavyTails) {
  Histogram h;
  auto x = normal(100000, 9);
  x.push_back(60);  // one outlier
  h.observe(x);
  const IntGrid int4{4, false, true};
  const IntParams covering = real_params(h.range(), int4), best = search_real_params(h, int4);
  EXPECT_LT(best.scale, 0.3f * covering.scale);
  EXPECT_LT(quantization_error(h, best, int4), 0.3 * quantization_error(h, covering, int4));
}

TEST(Search, ShiftHasTheLeastErrorOfAll) {
  for (int bits = 3; bits <= 10; ++bits) {
    Histogram h;
    h.observe(normal(20000, static_cast<uint64_t>(bits), 0.37 * bits));
    const IntGrid g{bits, false, true};
    const IntParams found = search_pow2_params(h, g, 1);
    const double least = quantization_error(h, found, g);
    for (int shift = -6; shift < 14; ++shift) {
      const IntParams p{std::ldexp(1.0f, -shift), 0, shift};
      EXPECT_LE(least, quantization_error(h, p, g) * (1 + 1e-12)) << bits << " " << shift;
    }
    EXPECT_LE(search_pow2_params(h, g, 3).shift, found.shift);  // clips less
  }
}

}  // namespace
}  // namespace lowbit
