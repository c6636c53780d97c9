#pragma once

#include <string>

#include "backend/backend.h"
#include "kernels/cuda_api.h"

namespace lowbit {

/// HessianSum on the GPU: rows of kHessianChunk in f32, their sum in f64.
class CudaHessianSum final : public HessianSum {
 public:
  static Result<std::unique_ptr<HessianSum>> make(int gpu, int64_t k, bool compares);
  Status add(const float* x, const float* y, int64_t m) override;
  Result<InputHessian> finish(const std::string& name) override;

 private:
  CudaHessianSum(int gpu, int64_t k, bool compares, cuda::Stream stream)
      : gpu_(gpu), k_(k), compares_(compares), stream_(std::move(stream)) {}
  Status reserve(int64_t rows);
  Status sum_up(int64_t rows);
  /// Moves the rows behind the first `whole` ones to the front.
  Status keep_rest(int64_t whole, Buffer& rows) const;
  Result<std::vector<float>> mean_of(const Buffer& sum, bool upper) const;

  int gpu_;
  int64_t k_, capacity_ = 0, filled_ = 0, count_ = 0;
  bool compares_;
  cuda::Stream stream_;
  Buffer rows_;       // [capacity, k]: rows not yet summed
  Buffer workspace_;  // of cuda::add_gram()
  Buffer sum_;        // f64 [k, k]
  Buffer others_;     // [capacity, k]: y - x of those rows; empty if there is none
  Buffer other_sum_;  // f64 [k, k]
  Buffer bad_;        // index of the first number that is not finite
};

}  // namespace lowbit
