#include "backend/cpu/hessian_sum.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/try.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

/// Columns of H computed at once. Of the rows behind them none is: H is symmetric.
constexpr int64_t kPanel = 192;

bool finite(const float* row, int64_t n) {
  float sum = 0;  // 0 * infinity and 0 * NaN are NaN
  for (int64_t i = 0; i < n; ++i) sum += 0.0f * row[i];
  return sum == 0.0f;
}

/// The first number that is not finite, x before y.
int64_t bad_column(const float* x, const float* y, int64_t m, int64_t k) {
  for (const float* rows : {x, y})
    for (int64_t i = 0; rows != nullptr && i < m * k; ++i)
      if (!std::isfinite(rows[i])) return i % k;
  return -1;
}

}  // namespace

CpuHessianSum::CpuHessianSum(int64_t k, bool compares, Isa isa, ThreadPool& pool) : k_(k), isa_(isa), pool_(&pool) {
  columns_.resize(size_t(k * kHessianChunk));
  product_.resize(size_t(k * std::min(k, kPanel)));
  sum_.resize(size_t(k * k));
  if (!compares) return;
  other_columns_.resize(columns_.size());
  other_sum_.resize(sum_.size());
}

bool CpuHessianSum::take(const float* x, const float* y, int64_t m) {
  constexpr int64_t kLine = 16;  // columns: a line of the cache
  std::atomic<bool> all_finite{true};
  pool_->parallel_for((k_ + kLine - 1) / kLine, 1, [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kLine, last = std::min(end * kLine, k_);
    bool good = true;
    for (int64_t r = 0; r < m; ++r) {
      const float* const row = x + r * k_;
      good &= finite(row + first, last - first);
      for (int64_t c = first; c < last; ++c) columns_[size_t(c * kHessianChunk + filled_ + r)] = row[c];
      if (y == nullptr) continue;
      const float* const other = y + r * k_;
      good &= finite(other + first, last - first);
      for (int64_t c = first; c < last; ++c)
        other_columns_[size_t(c * kHessianChunk + filled_ + r)] = other[c] - row[c];
    }
    if (!good) all_finite.store(false, std::memory_order_relaxed);
  });
  return all_finite.load();
}

Status CpuHessianSum::add(const float* x, const float* y, int64_t m) {
  while (m > 0 && bad_column_ < 0) {
    const int64_t rows = std::min(m, kHessianChunk - filled_);
    if (!take(x, y, rows)) bad_column_ = bad_column(x, y, rows, k_);
    x += rows * k_;
    if (y != nullptr) y += rows * k_;
    m -= rows;
    count_ += rows;
    filled_ += rows;
    if (filled_ == kHessianChunk) LOWBIT_TRY(flush());
  }
  return {};
}

Status CpuHessianSum::multiply(const MatmulPlan& by, const std::vector<float>& left, int64_t m, int64_t first,
                               std::vector<double>& sum) {
  const int64_t n = by.n();
  ActivationRows rows;
  LOWBIT_TRY(rows.prepare(Activation::kF32, left.data(), m, kHessianChunk, kHessianChunk, isa_, *pool_));
  LOWBIT_TRY(by.run(rows, nullptr, product_.data(), n, *pool_));
  pool_->parallel_for(m, std::max<int64_t>(1, (1 << 15) / n), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = product_.data() + r * n;
      double* const to = sum.data() + r * k_ + first;
      for (int64_t c = 0; c < n; ++c) to[c] += static_cast<double>(from[c]);
    }
  });
  return {};
}

/// columns columns^T is a matrix product like any other: some columns are the weights, and all of them, or those up to
/// them, the rows.
Status CpuHessianSum::flush() {
  if (filled_ == 0 || bad_column_ >= 0) return {};
  const bool compares = !other_columns_.empty();
  for (int64_t c = 0; c < k_ && filled_ < kHessianChunk; ++c)
    for (std::vector<float>* columns : {&columns_, compares ? &other_columns_ : nullptr})
      if (columns != nullptr)
        std::fill_n(columns->begin() + c * kHessianChunk + filled_, kHessianChunk - filled_, 0.0f);
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = isa_;
  for (int64_t first = 0; first < k_; first += kPanel) {
    QTensor w;
    w.n = std::min(kPanel, k_ - first);
    w.k = kHessianChunk;
    w.codes = Buffer::borrow(
        std::as_writable_bytes(std::span(columns_).subspan(size_t(first * kHessianChunk), size_t(w.n * kHessianChunk))),
        nullptr);
    LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(w, options, *pool_));
    LOWBIT_TRY(multiply(plan, columns_, first + w.n, first, sum_));
    if (compares) LOWBIT_TRY(multiply(plan, other_columns_, k_, first, other_sum_));
  }
  filled_ = 0;
  return {};
}

Result<InputHessian> CpuHessianSum::finish(const std::string& name) {
  if (bad_column_ >= 0) return not_finite(name, bad_column_);
  if (count_ == 0) return no_inputs(name);
  LOWBIT_TRY(flush());
  const double scale = 1.0 / static_cast<double>(count_);
  InputHessian hessian;
  hessian.k = k_;
  const auto mean_of = [&](const std::vector<double>& sum, bool upper) {
    std::vector<float> mean(sum.size());
    pool_->parallel_for(k_, 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < k_; ++c)
          mean[size_t(r * k_ + c)] = float(sum[size_t(upper && c < r ? c * k_ + r : r * k_ + c)] * scale);
    });
    return mean;
  };
  hessian.h = mean_of(sum_, true);
  sum_ = {};
  if (!other_sum_.empty()) hessian.mismatch = mean_of(other_sum_, false);
  return hessian;
}

}  // namespace lowbit
