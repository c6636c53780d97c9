#include "quantize/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "format/registry.h"
#include "quantize/grid.h"

namespace lowbit {
namespace {

ThreadPool& pool() {
  static ThreadPool p(1);
  return p;
}

std::vector<float> normal(int64_t n, uint64_t seed, double sigma = 1) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = static_cast<float>(sigma * rng.normal());
  return x;
}

FitOptions options(FormatId format, int64_t group, FitMethod method = FitMethod::kAuto,
                   ScaleKind scale = ScaleKind::kF16, ZeroKind zero = ZeroKind::kNone) {
  FitOptions o;
  o.format = format;
  o.scaling = {1, group, scale, zero};
  o.method = method;
  return o;
}

struct Fitted {
  ValueTensor values;
  FitReport report;
};

Fitted fit_ok(const std::vector<float>& w, int64_t n, int64_t k, const FitOptions& o,
              const float* importance = nullptr) {
  Fitted f;
  auto result = fit(w.data(), n, k, o, importance, pool(), &f.report);
  EXPECT_TRUE(result) << (result ? "" : result.error().message());
  if (result) f.values = std::move(*result);
  return f;
}

std::vector<float> dequantize(const ValueTensor& v) {
  auto w = pack(v);
  EXPECT_TRUE(w) << (w ? "" : w.error().message());
  std::vector<float> out(static_cast<size_t>(v.n * v.k));
  if (w) dequantize_rows(*w, 0, v.n, out.data());
  return out;
}

double rel_error(const std::vector<float>& w, const std::vector<float>& q, const float* h = nullptr, int64_t k = 1) {
  double e = 0, s = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double d = static_cast<double>(w[i]) - q[i];
    const double weight = h ? h[static_cast<int64_t>(i) % k] : 1.0;
    e += weight * d * d;
    s += weight * w[i] * static_cast<double>(w[i]);
  }
  return s > 0 ? e / s : 0;
}

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

std::vector<Scaling> scalings() {
  std::vector<Scaling> all;
  for (const ScaleKind scale :
       {ScaleKind::kF32, ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kPow2, ScaleKind::kDouble})
    for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kPointI8, ZeroKind::kPointF16, ZeroKind::kOffset})
      for (const auto& [n_block, k_block] :
           {std::pair<int64_t, int64_t>{1, 32}, {1, 0}, {0, 0}, {3, 40}, {Scaling::kRowRanges, 0}})
        all.push_back({n_block, k_block, scale, zero});
  return all;
}

FitOptions any_options(FormatId id, const Scaling& s) {
  FitOptions o;
  o.format = id;
  o.scaling = s;
  if (s.n_block == Scaling::kRowRanges) o.row_ends = {2, 5, 11};
  return o;
}

/// Trellises take least squares, scales of each row and no zeros; all else is an error that says so.
bool refused_on_a_trellis(const std::vector<float>& w, int64_t n, int64_t k, const FitOptions& o) {
  if (trellis_of(o.format) == nullptr) return false;
  const bool lsq = o.method == FitMethod::kAuto || o.method == FitMethod::kLsq;
  if (lsq && o.scaling.n_block == 1 && o.scaling.zero == ZeroKind::kNone) return false;
  const auto result = fit(w.data(), n, k, o, nullptr, pool());
  EXPECT_FALSE(result);
  if (!result) {
    EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(result.error().got.find(format_info(o.format).name), 0u) << result.error().got;
  }
  return true;
}

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

// ---- Hard inputs --------------------------------------------------------------------------------

TEST(Fit, ZeroConstantTinyAndHugeGroups) {
  constexpr int64_t kGroup = 32, kCases = 9;
  std::vector<float> w(kGroup * kCases);
  const auto noise = normal(kGroup, 12);
  for (int64_t i = 0; i < kGroup; ++i) {
    const float v = noise[static_cast<size_t>(i)];
    const float cases[kCases] = {0,         -0.0f,    1.5f,        v * 1e-40f,   v * 1e-7f,
                                 v * 1e30f, v * 1e5f, i ? 0 : 1.f, i ? v : 3e38f};
    for (int64_t c = 0; c < kCases; ++c) w[static_cast<size_t>(c * kGroup + i)] = cases[c];
  }
  for (const FormatInfo& info : formats()) {
    if (info.kind == ValueKind::kDense || !info.canonical) continue;
    for (const FitMethod method : {FitMethod::kAbsmax, FitMethod::kAbsmean, FitMethod::kMse, FitMethod::kLsq})
      for (Scaling s : scalings()) {
        s.n_block = 1;
        s.k_block = 0;
        if (method == FitMethod::kAbsmean && s.zero != ZeroKind::kNone) continue;
        FitOptions o = any_options(info.id, s);
        o.method = method;
        if (refused_on_a_trellis(w, kCases, kGroup, o)) continue;
        const std::string what = std::string(info.name) + " " + fit_method_name(method) + " " +
                                 scale_kind_name(s.scale) + " " + zero_kind_name(s.zero);
        const Fitted f = fit_ok(w, kCases, kGroup, o);
        for (const float scale : f.values.scales) ASSERT_TRUE(std::isfinite(scale)) << what;
        const auto q = dequantize(f.values);
        for (const float v : q) ASSERT_TRUE(std::isfinite(v)) << what;
        for (int64_t i = 0; i < 2 * kGroup; ++i) {
          ASSERT_LE(std::fabs(q[static_cast<size_t>(i)]), 1e-30) << what;
        }
        if (s.scale != ScaleKind::kPow2) {
          EXPECT_EQ(f.values.scales[0], 0) << what;
          EXPECT_GE(f.report.zero_scales, 2) << what;
        }
      }
  }
}

TEST(Fit, ConstantGroupsAreExactWithAnOffset) {
  const std::vector<float> w(64, 0.15625f);
  for (const FormatId id : {FormatId::kInt4, FormatId::kInt2, FormatId::kBinary})
    for (const FitMethod m : {FitMethod::kAbsmax, FitMethod::kMse, FitMethod::kLsq})
      EXPECT_EQ(fit_ok(w, 1, 64, options(id, 64, m, ScaleKind::kF16, ZeroKind::kOffset)).report.rel_error, 0.0);
  EXPECT_LT(fit_ok(w, 1, 64, options(FormatId::kBinary, 64)).report.rel_error, 1e-7);
}

TEST(Fit, TinyWeightsKeepWhatF16CanHold) {
  // The scale for int4 would be 2e-9, below f16's 6e-8: it is rounded up, or dropped if no better.
  const auto w = normal(64, 13, 1e-8);
  const Fitted f = fit_ok(w, 1, 64, options(FormatId::kInt4, 64));
  EXPECT_LE(f.report.rel_error, 1.0);
  EXPECT_LT(fit_ok(w, 1, 64, options(FormatId::kInt4, 64, FitMethod::kLsq, ScaleKind::kBf16)).report.rel_error, 0.012);
  const auto denormal = normal(64, 14, 1e-39);
  EXPECT_LT(fit_ok(denormal, 1, 64, options(FormatId::kInt4, 64, FitMethod::kLsq, ScaleKind::kF32)).report.rel_error,
            0.012);
}

TEST(Fit, Pow2ScalesArePowersOfTwoAndTheBestNeighbour) {
  const auto w = normal(64 * 64, 15, 0.3);
  const Fitted f = fit_ok(w, 64, 64, options(FormatId::kInt4, 64, FitMethod::kLsq, ScaleKind::kPow2));
  int exponent = 0;
  for (const float s : f.values.scales) EXPECT_EQ(std::frexp(s, &exponent), 0.5f);
  for (const float factor : {0.5f, 2.0f}) {
    double other = 0, found = 0;
    for (size_t r = 0; r < 64; ++r)
      for (size_t c = 0; c < 64; ++c) {
        const float x = w[r * 64 + c];
        const auto error = [&](float s) {
          const double q = std::min(std::max(std::nearbyint(x / s), -8.0f), 7.0f) * s;
          return (x - q) * (x - q);
        };
        found += error(f.values.scales[r]);
        other += error(f.values.scales[r] * factor);
      }
    EXPECT_LT(found, other);
  }
}

TEST(Fit, Fp8BlocksOf128By128) {
  constexpr int64_t kRows = 200, kCols = 300;  // partial last blocks in both directions
  auto w = normal(kRows * kCols, 16, 0.02);
  for (int64_t r = 0; r < 128; ++r)
    for (int64_t c = 0; c < 128; ++c) w[static_cast<size_t>(r * kCols + c)] = 0;  // seed 004's 0/0
  FitOptions o = options(FormatId::kFp8, 128, FitMethod::kAuto, ScaleKind::kF32);
  o.scaling.n_block = 128;
  const Fitted f = fit_ok(w, kRows, kCols, o);
  ASSERT_EQ(f.values.scales.size(), 6u);
  EXPECT_EQ(f.values.scales[0], 0);
  float largest = 0;
  for (int64_t r = 0; r < 128; ++r)
    for (int64_t c = 128; c < 256; ++c) largest = std::max(largest, std::fabs(w[static_cast<size_t>(r * kCols + c)]));
  EXPECT_FLOAT_EQ(f.values.scales[1], largest / 448);
  EXPECT_LT(f.report.rel_error, 0.001);
}

TEST(Fit, RowRangesHaveAScaleEach) {
  // Seed 002: fused q, k, v rows of unequal counts, one scale for each.
  std::vector<float> w(10 * 32);
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = (i % 3 == 0 ? -1.0f : 1.0f) * (i < 6 * 32 ? 1.0f : i < 8 * 32 ? 2.0f : 4.0f);
  FitOptions o = options(FormatId::kBinary, 0);
  o.scaling.n_block = Scaling::kRowRanges;
  o.row_ends = {6, 8, 10};
  const Fitted f = fit_ok(w, 10, 32, o);
  EXPECT_EQ(f.values.scales, (std::vector<float>{1, 2, 4}));
  EXPECT_EQ(f.report.rel_error, 0);
}

// ---- Errors -------------------------------------------------------------------------------------

TEST(FitErrors, NameRowAndColumnOfWhatIsNotFinite) {
  ThreadPool two(2);
  auto w = normal(100 * 70, 17);
  const float bad[3] = {NAN, INFINITY, -INFINITY};
  for (const int64_t n_block : {int64_t{1}, int64_t{7}, Scaling::kAll})
    for (const ScaleKind scale : {ScaleKind::kF16, ScaleKind::kDouble})
      for (const float value : bad) {
        auto broken = w;
        broken[static_cast<size_t>(83 * 70 + 5)] = value;
        broken[static_cast<size_t>(41 * 70 + 69)] = value;  // the first in row order
        FitOptions o = options(FormatId::kInt4, 32, FitMethod::kAuto, scale);
        o.scaling.n_block = n_block;
        const RowReader reader = [&](int64_t first, int64_t count, float* out) -> Status {
          std::copy_n(broken.data() + first * 70, count * 70, out);
          return {};
        };
        auto whole = fit(broken.data(), 100, 70, o, nullptr, two);
        auto rows = fit_and_pack(reader, 100, 70, o, nullptr, two);
        ASSERT_FALSE(whole || rows);
        for (const Error* e : {&whole.error(), &rows.error()}) {
          EXPECT_EQ(e->code, ErrorCode::kInvalidArgument);
          EXPECT_NE(e->message().find("row 41, column 69"), std::string::npos) << e->message();
        }
      }
}

TEST(FitErrors, ContradictoryOptions) {
  const std::vector<float> w(64, 1.0f);
  const auto code = [&](const FitOptions& o, const float* h = nullptr, int64_t n = 2) {
    auto r = fit(w.data(), n, 32, o, h, pool());
    return r ? ErrorCode::kCancelled : r.error().code;
  };
  using enum FormatId;
  EXPECT_EQ(code(options(kBf16, 32)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(options(kInt4, -5)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(kInt4, 32), nullptr, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(options(kTernary, 32, FitMethod::kAbsmean, ScaleKind::kF16, ZeroKind::kOffset)),
            ErrorCode::kInvalidArgument);
  FitOptions ranges = options(kInt4, 32);
  ranges.scaling.n_block = Scaling::kRowRanges;
  EXPECT_EQ(code(ranges), ErrorCode::kInvalidArgument);
  ranges.row_ends = {1, 3};
  EXPECT_EQ(code(ranges), ErrorCode::kInvalidArgument);
  FitOptions table = options(kCodebook2, 32);
  table.table = TableMethod::kGiven;
  table.codebook = {0, 0, 0};
  EXPECT_EQ(code(table), ErrorCode::kInvalidArgument);
  table.codebook = {3, -1, 0.5f, 1};  // unsorted is fine
  EXPECT_EQ(code(table), ErrorCode::kCancelled);
  std::vector<float> h(32, 1.0f);
  h[7] = -1;
  EXPECT_EQ(code(options(kInt4, 32), h.data()), ErrorCode::kInvalidArgument);
  h[7] = NAN;
  EXPECT_EQ(code(options(kInt4, 32), h.data()), ErrorCode::kInvalidArgument);
  std::fill(h.begin(), h.end(), 0.0f);  // no information: as if there were none
  EXPECT_EQ(code(options(kInt4, 32), h.data()), ErrorCode::kCancelled);
  EXPECT_FALSE(parse_fit_method("best"));
  EXPECT_EQ(*parse_fit_method("lsq"), FitMethod::kLsq);
}

TEST(FitErrors, ReaderErrorsPassThrough) {
  ThreadPool two(2);
  const RowReader reader = [](int64_t first, int64_t count, float* out) -> Status {
    if (first <= 5000 && 5000 < first + count) return fail(ErrorCode::kIo, "rows", "end of file");
    std::fill_n(out, count * 64, 0.5f);
    return {};
  };
  for (const int64_t n_block : {int64_t{1}, Scaling::kAll}) {
    FitOptions o = options(FormatId::kInt4, 32);
    o.scaling.n_block = n_block;
    auto r = fit_and_pack(reader, 9000, 64, o, nullptr, two);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code, ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace lowbit
