#include "quantize/feedback_factor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>

#include "base/checked.h"
#include "quantize/cholesky.h"
#include "quantize/parallel.h"
#include "quantize/tile_products.h"
#include "quantize/vector_loops.h"

namespace lowbit {
namespace {

constexpr double kMostDamping = 1.0;

Status check_hessian(const InputHessian& m, ThreadPool* pool) {
  const auto k = static_cast<size_t>(m.k);
  if (m.h.size() != k * k)
    return fail(ErrorCode::kShapeMismatch, "Hessian", std::to_string(m.h.size()) + " numbers",
                std::to_string(k) + " x " + std::to_string(k));
  std::atomic<bool> good = true;
  parallel_for(pool, m.k, kStripWidth, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = m.h.data() + i * m.k;
      if (!std::all_of(row, row + m.k, [](float h) { return std::isfinite(h); }) || row[i] < 0) good = false;
    }
  });
  for (size_t i = 0; !good && i < k * k; ++i)
    if (!std::isfinite(m.h[i]) || (i % (k + 1) == 0 && m.h[i] < 0))
      return fail(ErrorCode::kInvalidArgument, "Hessian",
                  std::to_string(m.h[i]) + " for inputs " + std::to_string(i / k) + " and " + std::to_string(i % k),
                  "finite numbers, not negative on the diagonal", "the model overflowed on the calibration text");
  return {};
}

std::vector<int64_t> column_order(const InputHessian& m, bool act_order) {
  std::vector<int64_t> order(static_cast<size_t>(m.k));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto diagonal = [&](int64_t i) { return m.h[static_cast<size_t>(i * m.k + i)]; };
  if (act_order) std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return diagonal(a) > diagonal(b); });
  return order;
}

/// d H^-1 of rows d [n, k] from H's lower factor, number by number to set(row, column, value); row and column i of the
/// factor are column(i) of H.
template <class Column, class Set>
void solve_rows(const std::vector<float>& rows, const Eigen::MatrixXd& factor, const Column& column, ThreadPool* pool,
                const Set& set) {
  constexpr int64_t kMostAtOnce = 8;  // of kSides rows: the factor is read once for them
  const int64_t k = factor.rows(), n = static_cast<int64_t>(rows.size()) / k, groups = ceil_div(n, kSides);
  const int64_t at_once = std::clamp<int64_t>(ceil_div(groups, pool == nullptr ? 1 : pool->size()), 1, kMostAtOnce);
  const auto solve = [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * at_once * kSides, last = std::min(n, end * at_once * kSides);
    std::vector<double> d(static_cast<size_t>(at_once * k * kSides));
    for (int64_t from = first; from < last; from += at_once * kSides) {
      const int64_t to = std::min(last, from + at_once * kSides);
      const auto each = [&](const auto& use) {
        for (int64_t group = from; group < to; group += kSides)
          for (int64_t i = 0; i < k; ++i)
            for (int64_t r = group; r < std::min(to, group + kSides); ++r)
              use(r, column(i), d[static_cast<size_t>((group - from) * k + i * kSides + r - group)]);
      };
      each([&](int64_t r, int64_t c, double& value) { value = rows[static_cast<size_t>(r * k + c)]; });
      solve_by_factor(factor, d.data(), ceil_div(to - from, kSides));
      each([&](int64_t r, int64_t c, double value) { set(r, c, static_cast<float>(value)); });
    }
  };
  parallel_for(pool, ceil_div(groups, at_once), 1, solve);
}

}  // namespace

std::vector<float> InputHessian::diagonal() const {
  std::vector<float> d(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) d[static_cast<size_t>(i)] = h[static_cast<size_t>(i * k + i)];
  return d;
}

double quadratic_form(const InputHessian& hessian, const float* x, int64_t rows) {
  constexpr int64_t kBlock = 16, kRowsAtOnce = 4 * kDotRows;  // which stay in the second-level cache
  const int64_t k = hessian.k;
  double sum = 0;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce)
    for (int64_t i = 0; i < k; ++i) {
      // H is symmetric: what is right of the block on the diagonal counts twice.
      const int64_t begin = i / kBlock * kBlock, end = std::min(begin + kBlock, k);
      const float* const h = hessian.h.data() + i * k;
      for (int64_t r = first; r < std::min(rows, first + kRowsAtOnce); r += kDotRows) {
        const auto count = static_cast<int>(std::min<int64_t>(kDotRows, rows - r));
        float inside[kDotRows], outside[kDotRows];
        const float* const at = x + r * k;
        dot_products(at + begin, k, count, h + begin, end - begin, inside);
        dot_products(at + end, k, count, h + end, k - end, outside);
        for (int j = 0; j < count; ++j) sum += double(at[j * k + i]) * (double(inside[j]) + 2 * double(outside[j]));
      }
    }
  return sum;
}

Result<FeedbackFactor> factor_hessian(const InputHessian& hessian, const FeedbackOptions& options, ThreadPool* pool) {
  if (auto status = check_hessian(hessian, pool); !status) return tl::unexpected<Error>(std::move(status.error()));
  const int64_t k = hessian.k;
  FeedbackFactor factor;
  factor.order = column_order(hessian, options.act_order);
  double mean = 0;
  for (const float d : hessian.diagonal()) mean += d / static_cast<double>(k);
  if (mean == 0) return factor;

  // R upper with H = R R^T is the lower Cholesky factor of H read backwards.
  const auto column = [&](int64_t i) { return factor.order[static_cast<size_t>(k - 1 - i)]; };
  Eigen::MatrixXd lower;
  for (factor.damping = options.damping; factor.damping <= kMostDamping; factor.damping *= 10) {
    lower.resize(k, k);
    parallel_for(pool, k, kStripWidth, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j)  // H is symmetric: what is read and what is written lie together
        for (int64_t i = j; i < k; ++i) lower(i, j) = hessian.h[static_cast<size_t>(column(j) * k + column(i))];
    });
    lower.diagonal().array() += factor.damping * mean;
    factor.ok = cholesky_in_tiles(lower, pool);
    if (factor.ok) break;
  }
  if (!factor.ok) return factor;
  factor.carry = ColumnStrips(k, pool);
  for (int64_t j = 0; j < k; ++j) factor.gain.push_back(static_cast<float>(lower(k - 1 - j, k - 1 - j)));
  parallel_for(pool, factor.carry.strips(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t strip = begin; strip < end; ++strip)
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = std::max(i + 1, strip * kStripWidth); j < std::min(k, (strip + 1) * kStripWidth); ++j)
          factor.carry.at(i, j) = static_cast<float>(lower(k - 1 - i, k - 1 - j) / lower(k - 1 - j, k - 1 - j));
  });
  if (!hessian.mismatch.empty()) {
    factor.shift = ColumnStrips(k, pool);
    solve_rows(hessian.mismatch, lower, column, pool,
               [&](int64_t r, int64_t c, float value) { factor.shift.at(r, c) = value; });
  }
  factor.added.resize(hessian.missing.size());
  solve_rows(hessian.missing, lower, column, pool,
             [&](int64_t r, int64_t c, float value) { factor.added[static_cast<size_t>(r * k + c)] = value; });
  return factor;
}

}  // namespace lowbit
