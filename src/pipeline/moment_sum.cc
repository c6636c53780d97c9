#include "pipeline/moment_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/try.h"
#include "ops/matmul.h"

namespace lowbit {
namespace {

void add_to(const std::vector<float>& product, std::vector<double>& sum, ThreadPool& pool) {
  pool.parallel_for(static_cast<int64_t>(sum.size()), 1 << 16, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      sum[i] += static_cast<double>(product[i]);
  });
}

std::vector<float> mean_of(const std::vector<double>& sum, int64_t count) {
  std::vector<float> mean(sum.size());
  const double scale = count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
  for (size_t i = 0; i < sum.size(); ++i) mean[i] = static_cast<float>(sum[i] * scale);
  return mean;
}

Status check_finite(const std::string& name, const float* rows, int64_t m, int64_t k) {
  for (int64_t i = 0; i < m * k; ++i)
    if (!std::isfinite(rows[i]))
      return fail(ErrorCode::kInvalidArgument, name, std::to_string(rows[i]) + " as input " + std::to_string(i % k),
                  "finite activations", "the model overflows on the calibration text");
  return {};
}

}  // namespace

MomentSum::MomentSum(int64_t k, bool compares, Isa isa, ThreadPool& pool) : k_(k), isa_(isa), pool_(&pool) {
  rows_.resize(static_cast<size_t>(kMomentChunk * k));
  columns_.resize(static_cast<size_t>(k * kMomentChunk));
  product_.resize(static_cast<size_t>(k * k));
  sum_.resize(static_cast<size_t>(k * k));
  if (!compares) return;
  other_rows_.resize(rows_.size());
  other_columns_.resize(columns_.size());
  other_sum_.resize(sum_.size());
}

Status MomentSum::add(const std::string& name, const float* rows, const float* y, int64_t m) {
  LOWBIT_TRY(check_finite(name, rows, m, k_));
  if (y != nullptr) LOWBIT_TRY(check_finite(name, y, m, k_));
  while (m > 0) {
    const int64_t count = std::min(m, kMomentChunk - filled_), floats = count * k_;
    std::copy_n(rows, floats, rows_.begin() + filled_ * k_);
    for (int64_t i = 0; y != nullptr && i < floats; ++i)
      other_rows_[static_cast<size_t>(filled_ * k_ + i)] = y[i] - rows[i];
    rows += floats;
    if (y != nullptr) y += floats;
    m -= count;
    count_ += count;
    filled_ += count;
    if (filled_ == kMomentChunk) LOWBIT_TRY(flush());
  }
  return {};
}

void MomentSum::transpose(const std::vector<float>& rows, std::vector<float>& columns) const {
  pool_->parallel_for(k_, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = 0; r < kMomentChunk; ++r)
      for (int64_t c = begin; c < end; ++c)
        columns[static_cast<size_t>(c * kMomentChunk + r)] = rows[static_cast<size_t>(r * k_ + c)];
  });
}

/// columns columns^T is a matrix product like any other: the columns are the weights and the activations at once.
Status MomentSum::flush() {
  if (filled_ == 0) return {};
  std::fill(rows_.begin() + filled_ * k_, rows_.end(), 0.0f);
  transpose(rows_, columns_);
  QTensor w;
  w.n = k_;
  w.k = kMomentChunk;
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(k_ * kMomentChunk * int64_t(sizeof(float)), "second moments"));
  std::memcpy(w.codes.data(), columns_.data(), columns_.size() * sizeof(float));
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = isa_;
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(w, options, *pool_));
  const auto multiply = [&](const std::vector<float>& columns, std::vector<double>& sum) -> Status {
    ActivationRows rows;
    LOWBIT_TRY(rows.prepare(Activation::kF32, columns.data(), k_, kMomentChunk, kMomentChunk, isa_, *pool_));
    LOWBIT_TRY(plan.run(rows, nullptr, product_.data(), k_, *pool_));
    add_to(product_, sum, *pool_);
    return {};
  };
  LOWBIT_TRY(multiply(columns_, sum_));
  if (!other_sum_.empty()) {
    std::fill(other_rows_.begin() + filled_ * k_, other_rows_.end(), 0.0f);
    transpose(other_rows_, other_columns_);
    LOWBIT_TRY(multiply(other_columns_, other_sum_));
  }
  filled_ = 0;
  return {};
}

Result<SecondMoments> MomentSum::finish() {
  LOWBIT_TRY(flush());
  return SecondMoments{k_, mean_of(sum_, count_), mean_of(other_sum_, count_)};
}

}  // namespace lowbit
