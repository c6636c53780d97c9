#pragma once
// Shared by the tests of fits: options, a fit that must succeed, its error, and all scalings.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "format/registry.h"
#include "quantize/fit.h"

namespace lowbit {

inline ThreadPool& pool() {
  static ThreadPool p(1);
  return p;
}

inline std::vector<float> normal(int64_t n, uint64_t seed, double sigma = 1) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (auto& v : x) v = static_cast<float>(sigma * rng.normal());
  return x;
}

inline FitOptions options(FormatId format, int64_t group, FitMethod method = FitMethod::kAuto,
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

inline Fitted fit_ok(const std::vector<float>& w, int64_t n, int64_t k, const FitOptions& o,
                     const float* importance = nullptr) {
  Fitted f;
  auto result = fit(w.data(), n, k, o, importance, pool(), &f.report);
  EXPECT_TRUE(result) << (result ? "" : result.error().message());
  if (result) f.values = std::move(*result);
  return f;
}

inline std::vector<float> dequantize(const ValueTensor& v) {
  auto w = pack(v);
  EXPECT_TRUE(w) << (w ? "" : w.error().message());
  std::vector<float> out(static_cast<size_t>(v.n * v.k));
  if (w) dequantize_rows(*w, 0, v.n, out.data());
  return out;
}

inline double rel_error(const std::vector<float>& w, const std::vector<float>& q, const float* h = nullptr,
                        int64_t k = 1) {
  double e = 0, s = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double d = static_cast<double>(w[i]) - q[i];
    const double weight = h ? h[static_cast<int64_t>(i) % k] : 1.0;
    e += weight * d * d;
    s += weight * w[i] * static_cast<double>(w[i]);
  }
  return s > 0 ? e / s : 0;
}

inline std::vector<Scaling> scalings() {
  std::vector<Scaling> all;
  for (const ScaleKind scale :
       {ScaleKind::kF32, ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kPow2, ScaleKind::kDouble})
    for (const ZeroKind zero : {ZeroKind::kNone, ZeroKind::kPointI8, ZeroKind::kPointF16, ZeroKind::kOffset})
      for (const auto& [n_block, k_block] :
           {std::pair<int64_t, int64_t>{1, 32}, {1, 0}, {0, 0}, {3, 40}, {Scaling::kRowRanges, 0}})
        all.push_back({n_block, k_block, scale, zero});
  return all;
}

inline FitOptions any_options(FormatId id, const Scaling& s) {
  FitOptions o;
  o.format = id;
  o.scaling = s;
  if (s.n_block == Scaling::kRowRanges) o.row_ends = {2, 5, 11};
  return o;
}

/// Trellises take least squares, scales of each row and no zeros; all else is an error that says so.
inline bool refused_on_a_trellis(const std::vector<float>& w, int64_t n, int64_t k, const FitOptions& o) {
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

}  // namespace lowbit
