#include "quantize/fit_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/checked.h"
#include "base/rng.h"
#include "base/try.h"
#include "format/registry.h"
#include "quantize/table_fit.h"
#include "quantize/trellis_fit.h"

namespace lowbit {
namespace {

constexpr int64_t kSampleElements = int64_t{1} << 15;  // of a k-means table
constexpr int64_t kLongestPiece = 1024;

tl::unexpected<Error> invalid(std::string got, std::string wanted) {
  return fail(ErrorCode::kInvalidArgument, "quantize", std::move(got), std::move(wanted));
}

Status check_scaling(int64_t n, const FitOptions& o) {
  const Scaling& s = o.scaling;
  if (s.n_block < Scaling::kRowRanges || s.k_block < 0)
    return invalid("scale block " + std::to_string(s.n_block) + "x" + std::to_string(s.k_block),
                   "positive block sizes");
  if ((s.n_block == Scaling::kRowRanges) == o.row_ends.empty())
    return invalid(std::to_string(o.row_ends.size()) + " row ranges",
                   s.n_block == Scaling::kRowRanges ? "at least one" : "none for this scaling");
  for (size_t i = 0; i < o.row_ends.size(); ++i) {
    const bool ascends = o.row_ends[i] > (i == 0 ? 0 : o.row_ends[i - 1]);
    const bool is_last = i + 1 == o.row_ends.size();
    if (!ascends || (is_last && o.row_ends[i] != n))
      return invalid("a row range ending at " + std::to_string(o.row_ends[i]),
                     "ascending ends, the last one " + std::to_string(n));
  }
  return {};
}

/// Codes of a whole row are searched together, with its own scales.
Status check_trellis_options(const FitOptions& o) {
  const auto unsupported = [&](const std::string& got, const char* wanted) -> Status {
    return fail(ErrorCode::kUnsupported, "quantize", std::string(format_info(o.format).name) + " with " + got, wanted);
  };
  if (o.method != FitMethod::kAuto && o.method != FitMethod::kLsq)
    return unsupported(std::string("method ") + fit_method_name(o.method), "method lsq");
  if (o.scaling.zero != ZeroKind::kNone) return unsupported("zero points", "none");
  if (o.scaling.n_block != 1) return unsupported("scales " + scaling_name(o.scaling), "scales of each row");
  return {};
}

Status check_options(int64_t n, int64_t k, const FitOptions& o) {
  if (n <= 0 || k <= 0 || !checked_mul(static_cast<uint64_t>(n), static_cast<uint64_t>(k) * 8))
    return fail(ErrorCode::kInvalidArgument, "quantize", "a matrix of " + std::to_string(n) + " x " + std::to_string(k),
                "extents >= 1");
  const FormatInfo& info = format_info(o.format);
  if (info.kind == ValueKind::kDense)
    return fail(ErrorCode::kUnsupported, "quantize", std::string("format ") + info.name, "a format with codes",
                "dense formats are conversions, not fits");
  if (trellis_of(o.format) != nullptr) LOWBIT_TRY(check_trellis_options(o));
  if (o.method == FitMethod::kAbsmean && o.scaling.zero != ZeroKind::kNone)
    return invalid("method absmean with zero points", "absmean without, or another method");
  if (info.kind != ValueKind::kTable || o.table != TableMethod::kGiven) return {};
  const size_t entries = size_t{1} << info.code_bits;
  const auto is_finite = [](float v) { return std::isfinite(v); };
  const auto is_zero = [](float v) { return v == 0; };
  if (o.codebook.size() != entries || !std::all_of(o.codebook.begin(), o.codebook.end(), is_finite) ||
      std::all_of(o.codebook.begin(), o.codebook.end(), is_zero))
    return invalid("a table of " + std::to_string(o.codebook.size()) + " entries",
                   std::to_string(entries) + " finite entries, not all 0");
  return {};
}

/// importance -> plan.weights: at most 1, and in each group at least 1e-6 of its mean, so that no
/// column is ignored; a group of nothing but zeros counts its columns alike.
Status prepare_weights(FitPlan& plan) {
  if (!plan.importance) return {};
  float largest = 0;
  for (int64_t c = 0; c < plan.k; ++c) {
    const float h = plan.importance[c];
    if (!(h >= 0) || !std::isfinite(h))
      return fail(ErrorCode::kInvalidArgument, "quantize importance",
                  std::to_string(h) + " for column " + std::to_string(c), "finite weights >= 0");
    largest = std::max(largest, h);
  }
  plan.weights.assign(static_cast<size_t>(plan.k), 1.0f);
  for (int64_t begin = 0; begin < plan.k && largest > 0; begin += plan.group()) {
    const int64_t end = std::min(begin + plan.group(), plan.k);
    double sum = 0;
    for (int64_t c = begin; c < end; ++c) sum += plan.importance[c] / largest;
    const auto least = static_cast<float>(1e-6 * sum / static_cast<double>(end - begin));
    if (least < 1e-30f) continue;
    for (int64_t c = begin; c < end; ++c)
      plan.weights[static_cast<size_t>(c)] = std::max(plan.importance[c] / largest, least);
  }
  return {};
}

/// Sampled pieces of groups, each in units of its own power of two.
struct TableSample {
  std::vector<std::vector<float>> pieces;
  std::vector<Group> groups;
};

void add_piece(const FitPlan& plan, const float* row, int64_t begin, int64_t count, TableSample& sample) {
  Group g;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(row[begin + i])) return;  // the fit itself will name it
    g.abs_max = std::max(g.abs_max, std::fabs(row[begin + i]));
  }
  if (g.abs_max == 0) return;
  const int exponent = std::ilogb(g.abs_max);
  std::vector<float> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) x[static_cast<size_t>(i)] = std::ldexp(row[begin + i], -exponent);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  g.abs_max = std::ldexp(g.abs_max, -exponent);
  g.min = *low;
  g.max = *high;
  g.n = count;
  g.h = plan.weights.empty() ? nullptr : plan.weights.data() + begin;
  sample.pieces.push_back(std::move(x));
  g.x = sample.pieces.back().data();
  sample.groups.push_back(g);
}

Result<std::vector<float>> kmeans_of(const FitPlan& plan, const RowReader& rows, ThreadPool& pool) {
  const int64_t cols = plan.scale_cols(), groups = plan.n * cols;
  const int64_t piece = std::min(plan.group(), kLongestPiece);
  const int64_t wanted = std::max<int64_t>(16, kSampleElements / piece);
  std::vector<float> row(static_cast<size_t>(plan.k));
  TableSample sample;
  for (int64_t i = 0; i < std::min(groups, wanted); ++i) {
    Rng rng(plan.options.seed, static_cast<uint64_t>(i));
    const auto pick = [&](int64_t below) { return static_cast<int64_t>(rng.below(static_cast<uint64_t>(below))); };
    const int64_t chosen = groups <= wanted ? i : pick(groups);
    const int64_t first = chosen % cols * plan.group();
    const int64_t width = std::min(plan.group(), plan.k - first), count = std::min(width, piece);
    LOWBIT_TRY(rows(chosen / cols, 1, row.data()));
    add_piece(plan, row.data(), first + pick(width - count + 1), count, sample);
  }
  return kmeans_table(plan.options.format, sample.groups, plan.rule, pool);
}

OffsetRule rule_of(ZeroKind kind) {
  switch (kind) {
    case ZeroKind::kNone:
      return OffsetRule::kNone;
    case ZeroKind::kPointI8:
      return OffsetRule::kInteger;
    case ZeroKind::kPointF16:
    case ZeroKind::kOffset:
      break;
  }
  return OffsetRule::kFree;
}

}  // namespace

Result<FitPlan> make_plan(const RowReader& rows, int64_t n, int64_t k, const FitOptions& options,
                          const float* importance, ThreadPool& pool) {
  LOWBIT_TRY(check_options(n, k, options));
  LOWBIT_TRY(check_scaling(n, options));
  FitPlan plan;
  plan.n = n;
  plan.k = k;
  plan.options = options;
  plan.rule = rule_of(options.scaling.zero);
  plan.importance = importance;
  plan.trellis = trellis_of(options.format);
  LOWBIT_TRY(prepare_weights(plan));
  const FormatInfo& info = format_info(options.format);
  if (options.method == FitMethod::kAuto)
    plan.options.method = info.kind == ValueKind::kFloat ? FitMethod::kAbsmax : FitMethod::kLsq;
  if (info.kind != ValueKind::kTable) {
    plan.options.codebook.clear();
  } else if (options.table == TableMethod::kLloydMax) {
    plan.options.codebook =
        plan.trellis != nullptr ? gaussian_table(options.format) : lloyd_max_table(1 << info.code_bits);
  } else if (options.table == TableMethod::kKmeans) {
    LOWBIT_TRY_ASSIGN(plan.options.codebook,
                      plan.trellis != nullptr ? fit_trellis_table(plan, rows, pool) : kmeans_of(plan, rows, pool));
  }
  plan.grid = make_grid(options.format, plan.options.codebook);
  plan.grid.may_flip = options.scaling.scale != ScaleKind::kPow2;
  return plan;
}

}  // namespace lowbit
