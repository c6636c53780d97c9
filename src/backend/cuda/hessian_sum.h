#pragma once

#include <string>

#include "backend/backend.h"
#include "kernels/cuda_api.h"

namespace lowbit {

/// HessianSum on the GPU: rows of kHessianChunk in f32, their sum in f64.
class CudaHessianSum final : public HessianSum {
 public:
  static Result<std::unique_ptr<HessianSum>> make(int gpu, int64_t k, int64_t n);
  Status add(const float* x, const float* y, const float* z, int64_t m) override;
  Result<InputHessian> finish(const std::string& name) override;

 private:
  CudaHessianSum(int gpu, int64_t k, int64_t n, cuda::Stream stream)
      : gpu_(gpu), k_(k), n_(n), stream_(std::move(stream)) {}
  Status reserve(int64_t rows);
  Status sum_up(int64_t rows);
  /// Moves the rows behind the first `whole` ones to the front.
  Status keep_rest(int64_t whole, int64_t columns, Buffer& rows) const;
  /// n = 0: of a symmetric sum [k, k].
  Result<std::vector<float>> mean_of(const Buffer& sum, int64_t n) const;

  int gpu_;
  int64_t k_, n_, capacity_ = 0, filled_ = 0, count_ = 0;
  cuda::Stream stream_;
  Buffer rows_;       // [capacity, k]: rows not yet summed
  Buffer workspace_;  // of cuda::add_gram()
  Buffer sum_;        // f64 [k, k]
  Buffer others_;     // [capacity, n]: y - z of those rows
  Buffer other_sum_;  // f64 [n, k]
  Buffer bad_;        // indices of the first numbers that are not finite: in x; in y or z
};

}  // namespace lowbit
