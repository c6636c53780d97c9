#pragma once

#include <vector>

#include "backend/backend.h"

namespace lowbit {

class CpuHessianSum final : public HessianSum {
 public:
  CpuHessianSum(int64_t k, bool compares, Isa isa, ThreadPool& pool);
  Status add(const float* x, const float* y, int64_t m) override;
  Result<InputHessian> finish(const std::string& name) override;

 private:
  /// Rows x, or y - x, become columns behind those that are there; y may be null. Whether all of both is finite.
  bool take(const float* x, const float* y, int64_t m);
  Status flush();
  /// Joins columns [first, first + n) of rows[0, m) of a product: left [m, kHessianChunk] by those of columns_.
  Status multiply(const class MatmulPlan& by, const std::vector<float>& left, int64_t m, int64_t first,
                  std::vector<double>& sum);

  int64_t k_, filled_ = 0, count_ = 0;
  int64_t bad_column_ = -1;  // the first that was not finite
  Isa isa_;
  ThreadPool* pool_;
  std::vector<float> columns_;        // [k, kHessianChunk]: rows x not yet summed, as columns
  std::vector<float> other_columns_;  // the same of y - x; empty if there is none
  std::vector<float> product_;        // [k, a panel of columns]
  std::vector<double> sum_;           // [k, k]: columns not before the row's panel
  std::vector<double> other_sum_;     // [k, k]
};

}  // namespace lowbit
