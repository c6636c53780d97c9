// Fits of hard inputs (zeros, huge and tiny weights, blocks, NaN) and of options that contradict each other.
#include "quantize/test_fits.h"

namespace lowbit {
namespace {

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
