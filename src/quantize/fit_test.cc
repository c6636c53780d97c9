#include <cfloat>
#include <cstring>
#include <limits>

#include "quantize/grid.h"
#include "quantize/test_fits.h"

namespace lowbit {
namespace {

// ---- The ladder of relative errors on normal data -----------------------------------------------

struct Step {
  const char* name;
  FitOptions options;
  double want;
};

TEST(Ladder, EveryFitterReachesItsStep) {
  using enum FormatId;
  using enum FitMethod;
  constexpr auto kHalf = ScaleKind::kF16;
  constexpr auto kPoint = ZeroKind::kPointI8, kOffset = ZeroKind::kOffset;
  FitOptions absmean = options(kTernary, 0, kAbsmean);
  absmean.scaling.n_block = absmean.scaling.k_block = Scaling::kAll;
  FitOptions gauss2 = options(kCodebook2, 64), gauss3 = options(kCodebook3, 64);
  gauss2.table = gauss3.table = TableMethod::kLloydMax;
  FitOptions gauss_trellis2 = options(kTrellis2, 64), trellis2_row = options(kTrellis2, 0),
             trellis3_row = options(kTrellis3, 0);
  gauss_trellis2.table = trellis2_row.table = trellis3_row.table = TableMethod::kLloydMax;
  const Step steps[] = {
      {"binary mean g64", options(kBinary, 64), 0.3568},
      {"binary absmean g64", options(kBinary, 64, kAbsmean), 0.3568},
      {"ternary absmean per tensor", absmean, 0.2628},
      {"ternary least squares g64", options(kTernary, 64), 0.1840},
      {"ternary-packed least squares g128", options(kTernaryPacked, 128), 0.1872},
      {"int2 min-max, zero point g64", options(kInt2, 64, kAbsmax, kHalf, kPoint), 0.2085},
      {"int2 mse, zero point g64", options(kInt2, 64, kMse, kHalf, kPoint), 0.1262},
      {"int2 signed least squares g64", options(kInt2, 64), 0.1233},
      {"int2 signed least squares g128", options(kInt2, 128), 0.1319},
      {"int2odd least squares g64", options(kInt2Odd, 64), 0.1125},
      {"codebook2 Lloyd-Max g64", gauss2, 0.1108},
      {"codebook2 k-means g64", options(kCodebook2, 64), 0.1108},
      {"int2 least squares offset g64", options(kInt2, 64, kLsq, kHalf, kOffset), 0.1026},
      {"int2 least squares offset g128", options(kInt2, 128, kLsq, kHalf, kOffset), 0.1109},
      {"int2 least squares f16 zero g64", options(kInt2, 64, kLsq, kHalf, ZeroKind::kPointF16), 0.1026},
      {"int2 least squares offset g16, double scales", options(kInt2, 16, kLsq, ScaleKind::kDouble, kOffset), 0.0659},
      {"int3 min-max, zero point g64", options(kInt3, 64, kAbsmax, kHalf, kPoint), 0.0381},
      {"int3 least squares offset g64", options(kInt3, 64, kLsq, kHalf, kOffset), 0.0272},
      {"codebook3 Lloyd-Max g64", gauss3, 0.0292},
      {"trellis2 Gaussian table g64", gauss_trellis2, 0.0735},
      {"trellis2 fitted table g64", options(kTrellis2, 64), 0.0735},
      {"trellis2 Gaussian table per row", trellis2_row, 0.0760},
      {"trellis3 Gaussian table per row", trellis3_row, 0.0223},
      {"trellis3 fitted table g64", options(kTrellis3, 64), 0.0203},
      {"trellis2 fitted table g40, double scales", options(kTrellis2, 40, kLsq, ScaleKind::kDouble), 0.0720},
      {"int4 least squares offset g64", options(kInt4, 64, kLsq, kHalf, kOffset), 0.0067},
      {"int4 least squares offset g128", options(kInt4, 128, kLsq, kHalf, kOffset), 0.0084},
  };
  constexpr int64_t kRows = 256, kCols = 1024;
  const auto w = normal(kRows * kCols, 1);
  for (const Step& step : steps) {
    const Fitted f = fit_ok(w, kRows, kCols, step.options);
    std::printf("  %-46s measured %.4f  table %.4f\n", step.name, f.report.rel_error, step.want);
    EXPECT_NEAR(f.report.rel_error, step.want, 0.03 * step.want) << step.name;
    EXPECT_NEAR(rel_error(w, dequantize(f.values)), f.report.rel_error, 1e-9) << step.name;
  }
}

/// A scale is rounded for storage; then the grid's middle stays at the middle of what it has to cover.
TEST(Fit, ARoundedScaleKeepsTheMiddleOfTheRange) {
  for (const FormatId id : {FormatId::kUint4, FormatId::kInt4, FormatId::kInt2}) {
    const Grid grid = make_grid(id, {});
    for (uint64_t seed = 1; seed < 20; ++seed) {
      std::vector<float> w = normal(64, seed, 0.1);
      for (float& v : w) v += 0.5f;
      const auto [low, high] = std::minmax_element(w.begin(), w.end());
      const auto fitted = fit_ok(w, 1, 64, options(id, 64, FitMethod::kAbsmax, ScaleKind::kPow2, ZeroKind::kOffset));
      const float scale = fitted.values.scales.at(0), zero = fitted.values.zeros.at(0);
      EXPECT_NEAR(scale * (grid.low() + grid.high()) / 2 + zero, (*low + *high) / 2, 1e-3) << format_info(id).name;
    }
  }
}

TEST(Ladder, BetterMethodsLoseLess) {
  const auto w = normal(64 * 512, 7);
  for (const FormatId id : {FormatId::kInt8, FormatId::kInt4, FormatId::kInt3, FormatId::kInt2, FormatId::kInt3Odd,
                            FormatId::kTernary, FormatId::kCodebook4})
    for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kPointI8, ZeroKind::kPointF16, ZeroKind::kOffset}) {
      const auto error = [&](FitMethod m) {
        return fit_ok(w, 64, 512, options(id, 64, m, ScaleKind::kF16, zero)).report.rel_error;
      };
      const double absmax = error(FitMethod::kAbsmax), mse = error(FitMethod::kMse), lsq = error(FitMethod::kLsq);
      const std::string what = std::string(format_info(id).name) + " " + zero_kind_name(zero);
      EXPECT_LE(mse, absmax * 1.0001) << what;
      EXPECT_LE(lsq, mse * 1.001) << what;
    }
}

// ---- Every combination is sound -----------------------------------------------------------------

TEST(Fit, EveryFormatAndScalingRoundTripsAndReports) {
  constexpr int64_t kRows = 11, kCols = 101;  // short last groups everywhere
  const auto w = normal(kRows * kCols, 3, 0.02);
  for (const FormatInfo& info : formats()) {
    if (info.kind == ValueKind::kDense || !info.canonical) continue;
    for (const Scaling& s : scalings()) {
      const std::string what = std::string(info.name) + " " + scaling_name(s) + " " + scale_kind_name(s.scale) + " " +
                               zero_kind_name(s.zero);
      if (refused_on_a_trellis(w, kRows, kCols, any_options(info.id, s))) continue;
      const Fitted f = fit_ok(w, kRows, kCols, any_options(info.id, s));
      for (const float scale : f.values.scales) ASSERT_TRUE(std::isfinite(scale)) << what;
      auto packed = pack(f.values);
      ASSERT_TRUE(packed) << what << packed.error().message();
      auto back = unpack(*packed);
      ASSERT_TRUE(back) << what;
      EXPECT_EQ(back->codes, f.values.codes) << what;
      EXPECT_EQ(back->scales, f.values.scales) << what;
      EXPECT_EQ(back->zeros, f.values.zeros) << what;
      EXPECT_EQ(back->super_scales, f.values.super_scales) << what;
      const double error = rel_error(w, dequantize(f.values));
      EXPECT_NEAR(error, f.report.rel_error, 1e-6 * error + 1e-12) << what;
      // An alphabet of one sign leaves half of the weights at 0 unless a zero point moves it.
      const bool one_signed = info.kind == ValueKind::kInteger && info.min_value >= 0 && s.zero == ZeroKind::kNone;
      const double limit = one_signed ? 0.6 : info.code_bits >= 8 ? 0.003 : info.code_bits >= 3 ? 0.12 : 0.45;
      EXPECT_LT(error, limit) << what;
    }
  }
}

TEST(Fit, SameBitsForAnyThreadCountAndForRowsAtATime) {
  constexpr int64_t kRows = 301, kCols = 200;
  const auto w = normal(kRows * kCols, 4, 0.05);
  auto h = normal(kCols, 5);
  for (auto& v : h) v *= v;
  const RowReader reader = [&](int64_t first, int64_t count, float* out) -> Status {
    std::copy_n(w.data() + first * kCols, count * kCols, out);
    return {};
  };
  ThreadPool three(3);
  for (const FormatId id : {FormatId::kInt4, FormatId::kTernaryPacked, FormatId::kCodebook3, FormatId::kTrellis2})
    for (const int64_t n_block : {int64_t{1}, int64_t{128}, Scaling::kAll})
      for (const ScaleKind scale : {ScaleKind::kF16, ScaleKind::kDouble}) {
        const bool trellis = id == FormatId::kTrellis2;
        FitOptions o = options(id, 64, FitMethod::kAuto, scale, trellis ? ZeroKind::kNone : ZeroKind::kOffset);
        o.scaling.n_block = trellis ? 1 : n_block;
        const Fitted one = fit_ok(w, kRows, kCols, o, h.data());
        FitReport many_report, rows_report;
        auto many = fit(w.data(), kRows, kCols, o, h.data(), three, &many_report);
        auto rows = fit_and_pack(reader, kRows, kCols, o, h.data(), three, &rows_report);
        ASSERT_TRUE(many && rows);
        auto from_rows = unpack(*rows);
        ASSERT_TRUE(from_rows);
        for (const ValueTensor* v : {&*many, &*from_rows}) {
          EXPECT_EQ(v->codes, one.values.codes);
          EXPECT_EQ(v->scales, one.values.scales);
          EXPECT_EQ(v->super_scales, one.values.super_scales);
          EXPECT_EQ(v->zeros, one.values.zeros);
          EXPECT_EQ(v->codebook, one.values.codebook);
        }
        for (const FitReport* r : {&many_report, &rows_report}) {
          EXPECT_EQ(r->rel_error, one.report.rel_error);
          EXPECT_EQ(r->weighted_error, one.report.weighted_error);
          EXPECT_EQ(r->zero_scales, one.report.zero_scales);
        }
      }
}

TEST(Fit, SeedChoosesTheSampleOnly) {
  const auto w = normal(512 * 256, 6);
  FitOptions o = options(FormatId::kCodebook4, 64);
  const Fitted a = fit_ok(w, 512, 256, o), again = fit_ok(w, 512, 256, o);
  o.seed = 1;
  const Fitted b = fit_ok(w, 512, 256, o);
  EXPECT_EQ(a.values.codebook, again.values.codebook);
  EXPECT_NE(a.values.codebook, b.values.codebook);
  EXPECT_NEAR(a.report.rel_error, b.report.rel_error, 0.02 * a.report.rel_error);
  o.format = FormatId::kInt4;
  const Fitted c = fit_ok(w, 512, 256, o);
  o.seed = 0;
  EXPECT_EQ(fit_ok(w, 512, 256, o).values.codes, c.values.codes);
}

TEST(Fit, WeightsLowerTheWeightedError) {
  constexpr int64_t kRows = 64, kCols = 512;
  const auto w = normal(kRows * kCols, 8);
  Rng rng(9);
  std::vector<float> h(kCols);
  for (auto& v : h) v = static_cast<float>(std::exp(2 * rng.normal()));
  for (const FormatId id : {FormatId::kInt4, FormatId::kInt3, FormatId::kInt2, FormatId::kInt2Odd, FormatId::kTernary,
                            FormatId::kBinary, FormatId::kCodebook2})
    for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kOffset, ZeroKind::kPointI8}) {
      const FitOptions o = options(id, 64, FitMethod::kLsq, ScaleKind::kF16, zero);
      const Fitted plain = fit_ok(w, kRows, kCols, o), weighted = fit_ok(w, kRows, kCols, o, h.data());
      const double before = rel_error(w, dequantize(plain.values), h.data(), kCols);
      EXPECT_NEAR(weighted.report.weighted_error, rel_error(w, dequantize(weighted.values), h.data(), kCols), 1e-9);
      EXPECT_LT(weighted.report.weighted_error, 0.97 * before) << format_info(id).name;
      EXPECT_GT(weighted.report.rel_error, plain.report.rel_error);
    }
}

TEST(Fit, WeightsOnAGridComeBackExactly) {
  Rng rng(10);
  for (const FormatId id : {FormatId::kInt8, FormatId::kInt4, FormatId::kInt3, FormatId::kInt2, FormatId::kInt2Odd,
                            FormatId::kTernary, FormatId::kBinary}) {
    const FormatInfo& info = format_info(id);
    std::vector<float> w(32 * 128);
    for (size_t i = 0; i < w.size(); ++i) {
      const float scale = 0.03125f * static_cast<float>(1 + i / 64 % 3);
      const auto code = rng.below(id == FormatId::kTernary ? 3 : 1u << info.code_bits);
      w[i] = scale * format_ops(id).values[code];
      if (i % 64 == 0) w[i] = scale * static_cast<float>(info.max_value);  // the full range is used
    }
    EXPECT_EQ(fit_ok(w, 32, 128, options(id, 64, FitMethod::kLsq)).report.rel_error, 0.0) << info.name;
  }
}

}  // namespace
}  // namespace lowbit
