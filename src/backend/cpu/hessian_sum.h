#pragma once

#include <vector>

#include "backend/backend.h"
#include "kernels/gram_api.h"

namespace lowbit {

class CpuHessianSum final : public HessianSum {
 public:
  CpuHessianSum(int64_t k, int64_t n, Isa isa, ThreadPool& pool);
  Status add(const float* x, const float* y, const float* z, int64_t m) override;
  Result<InputHessian> finish(const std::string& name) override;

 private:
  /// Panels [ceil(k / kGramColumns)][kHessianChunk, kGramColumns]: rows not yet summed.
  using Panels = std::vector<float>;
  /// Rows x - y of so many columns join those of `to`; y may be null. Whether all of both is finite.
  bool take(const float* x, const float* y, int64_t columns, int64_t m, Panels& to) const;
  /// Sums what is there.
  void flush();
  /// Columns of one panel by those of another, as a part of sum [k, k].
  void multiply(const Panels& left, int64_t left_panel, int64_t right_panel, std::vector<double>& sum,
                int64_t rows_of_sum) const;

  int64_t k_, n_, filled_ = 0, count_ = 0;
  int64_t bad_column_ = -1;  // the first that was not finite
  bool bad_compared_ = false;
  GramKernel add_products_;
  ThreadPool* pool_;
  Panels x_, difference_;          // y - z; empty if there is none
  std::vector<double> sum_;        // [k, k]: columns not before the row's panel
  std::vector<double> other_sum_;  // [n, k]
};

}  // namespace lowbit
