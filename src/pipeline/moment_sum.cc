#include "pipeline/moment_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/try.h"
#include "ops/matmul.h"

namespace lowbit {
MomentSum::MomentSum(int64_t k, Isa isa, ThreadPool& pool) : k_(k), isa_(isa), pool_(&pool) {
  rows_.resize(static_cast<size_t>(kMomentChunk * k));
  columns_.resize(static_cast<size_t>(k * kMomentChunk));
  product_.resize(static_cast<size_t>(k * k));
  sum_.resize(static_cast<size_t>(k * k));
}

Status MomentSum::add(const std::string& name, const float* rows, int64_t m) {
  for (int64_t i = 0; i < m * k_; ++i)
    if (!std::isfinite(rows[i]))
      return fail(ErrorCode::kInvalidArgument, name, std::to_string(rows[i]) + " as input " + std::to_string(i % k_),
                  "finite activations", "the model overflows on the calibration text");
  while (m > 0) {
    const int64_t count = std::min(m, kMomentChunk - filled_);
    std::copy_n(rows, count * k_, rows_.begin() + filled_ * k_);
    rows += count * k_;
    m -= count;
    count_ += count;
    filled_ += count;
    if (filled_ == kMomentChunk) LOWBIT_TRY(flush());
  }
  return {};
}

/// columns columns^T is a matrix product like any other: the columns are the weights and the activations at once.
Status MomentSum::flush() {
  if (filled_ == 0) return {};
  std::fill(rows_.begin() + filled_ * k_, rows_.end(), 0.0f);
  filled_ = 0;
  pool_->parallel_for(k_, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = 0; r < kMomentChunk; ++r)
      for (int64_t c = begin; c < end; ++c)
        columns_[static_cast<size_t>(c * kMomentChunk + r)] = rows_[static_cast<size_t>(r * k_ + c)];
  });
  QTensor w;
  w.n = k_;
  w.k = kMomentChunk;
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(k_ * kMomentChunk * int64_t(sizeof(float)), "second moments"));
  std::memcpy(w.codes.data(), columns_.data(), columns_.size() * sizeof(float));
  MatmulOptions options;
  options.activation = Activation::kF32;
  options.isa = isa_;
  LOWBIT_TRY_ASSIGN(const MatmulPlan plan, MatmulPlan::make(w, options, *pool_));
  ActivationRows rows;
  LOWBIT_TRY(rows.prepare(Activation::kF32, columns_.data(), k_, kMomentChunk, kMomentChunk, isa_, *pool_));
  LOWBIT_TRY(plan.run(rows, nullptr, product_.data(), k_, *pool_));
  pool_->parallel_for(k_ * k_, 1 << 16, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      sum_[i] += static_cast<double>(product_[i]);
  });
  return {};
}

Result<SecondMoments> MomentSum::finish() {
  LOWBIT_TRY(flush());
  SecondMoments moments;
  moments.k = k_;
  moments.h.resize(sum_.size());
  const double scale = count_ > 0 ? 1.0 / static_cast<double>(count_) : 0.0;
  for (size_t i = 0; i < sum_.size(); ++i) moments.h[i] = static_cast<float>(sum_[i] * scale);
  return moments;
}

}  // namespace lowbit
