#pragma once

#include <vector>

#include "backend/backend.h"
#include "kernels/gram_api.h"

namespace lowbit {

class CpuHessianSum final : public HessianSum {
 public:
  CpuHessianSum(int64_t k, bool compares, Isa isa, ThreadPool& pool);
  Status add(const float* x, const float* y, int64_t m) override;
  Result<InputHessian> finish(const std::string& name) override;

 private:
  /// Panels [ceil(k / kGramColumns)][kHessianChunk, kGramColumns]: rows not yet summed.
  using Panels = std::vector<float>;
  /// Rows x and y - x join those that are there; y may be null. Whether all of both is finite.
  bool take(const float* x, const float* y, int64_t m);
  /// Sums what is there.
  void flush();
  /// Columns of one panel by those of another, as a part of sum [k, k].
  void multiply(const Panels& left, int64_t left_panel, int64_t right_panel, std::vector<double>& sum) const;

  int64_t k_, filled_ = 0, count_ = 0;
  int64_t bad_column_ = -1;  // the first that was not finite
  GramKernel add_products_;
  ThreadPool* pool_;
  Panels x_, difference_;          // of y - x; empty if there is none
  std::vector<double> sum_;        // [k, k]: columns not before the row's panel
  std::vector<double> other_sum_;  // [k, k]
};

}  // namespace lowbit
