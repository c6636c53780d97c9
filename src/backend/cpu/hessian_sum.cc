#include "backend/cpu/hessian_sum.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/checked.h"
#include "base/try.h"
#include "kernels/registry.h"

namespace lowbit {
namespace {

bool finite(const float* row, int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000;  // a sum of 0 * row[i] would be one chain
  uint32_t special = 0;
  for (int64_t i = 0; i < n; ++i) special |= uint32_t((std::bit_cast<uint32_t>(row[i]) & kExponent) == kExponent);
  return special == 0;
}

/// The first column with a number that is not finite.
int64_t bad_column(const float* x, const float* y, int64_t m, int64_t columns) {
  for (int64_t i = 0; i < m * columns; ++i)
    if (!std::isfinite(x[i]) || (y != nullptr && !std::isfinite(y[i]))) return i % columns;
  return -1;
}

}  // namespace

CpuHessianSum::CpuHessianSum(int64_t k, int64_t n, Isa isa, ThreadPool& pool)
    : k_(k), n_(n), add_products_(gram_kernel(isa)), pool_(&pool) {
  x_.resize(size_t(round_up(k, kGramColumns) * kHessianChunk));
  sum_.resize(size_t(k * k));
  difference_.resize(size_t(round_up(n, kGramColumns) * kHessianChunk));
  other_sum_.resize(size_t(n * k));
}

bool CpuHessianSum::take(const float* x, const float* y, int64_t columns, int64_t m, Panels& to) const {
  std::atomic<bool> all_finite{true};
  pool_->parallel_for(ceil_div(columns, kGramColumns), 1, [&](int64_t begin, int64_t end, int) {
    bool good = true;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kGramColumns, n = std::min(kGramColumns, columns - first);
      float* out = to.data() + (panel * kHessianChunk + filled_) * kGramColumns;
      for (int64_t r = 0; r < m; ++r, out += kGramColumns) {
        const float* const row = x + r * columns + first;
        good &= finite(row, n);
        if (y == nullptr) {
          std::copy_n(row, n, out);
          continue;
        }
        const float* const other = y + r * columns + first;
        good &= finite(other, n);
        for (int64_t c = 0; c < n; ++c) out[c] = row[c] - other[c];
      }
    }
    if (!good) all_finite.store(false, std::memory_order_relaxed);
  });
  return all_finite.load();
}

Status CpuHessianSum::add(const float* x, const float* y, const float* z, int64_t m) {
  while (m > 0 && bad_column_ < 0) {
    const int64_t rows = std::min(m, kHessianChunk - filled_);
    if (!take(x, nullptr, k_, rows, x_)) {
      bad_column_ = bad_column(x, nullptr, rows, k_);
    } else if (n_ > 0 && !take(y, z, n_, rows, difference_)) {
      bad_column_ = bad_column(y, z, rows, n_);
      bad_compared_ = true;
    }
    x += rows * k_;
    if (n_ > 0) {
      y += rows * n_;
      z += rows * n_;
    }
    m -= rows;
    count_ += rows;
    filled_ += rows;
    if (filled_ == kHessianChunk) flush();
  }
  return {};
}

void CpuHessianSum::multiply(const Panels& left, int64_t left_panel, int64_t right_panel, std::vector<double>& sum,
                             int64_t rows_of_sum) const {
  constexpr int64_t kPanel = kHessianChunk * kGramColumns;
  const int64_t i = left_panel * kGramColumns, j = right_panel * kGramColumns;
  add_products_({left.data() + left_panel * kPanel, x_.data() + right_panel * kPanel, filled_, sum.data() + i * k_ + j,
                 k_, std::min(kGramColumns, rows_of_sum - i), std::min(kGramColumns, k_ - j)});
}

/// H is symmetric: of its columns before a row's panel none is summed.
void CpuHessianSum::flush() {
  if (filled_ == 0 || bad_column_ >= 0) return;
  const int64_t panels = ceil_div(k_, kGramColumns), others = ceil_div(n_, kGramColumns);
  // A thread keeps the panel that stands on the right in its second-level cache.
  pool_->parallel_for(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t right = begin; right < end; ++right) {
      for (int64_t left = 0; left <= right; ++left) multiply(x_, left, right, sum_, k_);
      for (int64_t left = 0; left < others; ++left) multiply(difference_, left, right, other_sum_, n_);
    }
  });
  filled_ = 0;
}

Result<InputHessian> CpuHessianSum::finish(const std::string& name) {
  if (bad_column_ >= 0) return not_finite(name, bad_column_, bad_compared_);
  if (count_ == 0) return no_inputs(name);
  flush();
  const double scale = 1.0 / static_cast<double>(count_);
  InputHessian hessian;
  hessian.k = k_;
  const auto mean_of = [&](const std::vector<double>& sum, bool upper) {
    std::vector<float> mean(sum.size());
    pool_->parallel_for(int64_t(sum.size()) / k_, 16, [&](int64_t begin, int64_t end, int) {
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
