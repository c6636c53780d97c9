#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lowbit/error.h"
#include "quantize/feedback.h"
#include "tensor/buffer.h"

namespace lowbit {

/// MomentSum on the GPU, with its bits: sums of kMomentChunk rows in f32, their sum in f64.
class DeviceMomentSum {
 public:
  /// rows x [m, k] in device memory, y [m, k] too or null; k and whether there is y are the same for all calls. Errors: kOutOfMemory,
  /// what CUDA says.
  Status add(const float* rows, const float* y, int64_t m, int64_t k);
  /// The mean over all rows added. Errors: kInvalidArgument (NaN or infinity somewhere, with `name`), kOutOfMemory.
  Result<SecondMoments> finish(const std::string& name);

 private:
  Status prepare(int64_t m, int64_t k, bool compares);
  Status sum_up(int64_t rows);
  /// Appends m rows behind those that are not yet summed.
  Status append(const float* rows, int64_t m, Buffer& to) const;
  /// What is left behind `whole` rows moves to the front.
  Status keep_rest(int64_t whole, Buffer& rows) const;
  Result<std::vector<float>> mean_of(const Buffer& sum, bool upper) const;

  int64_t k_ = 0, capacity_ = 0, filled_ = 0, count_ = 0;
  Buffer rows_;       // [capacity, k]: rows not yet summed
  Buffer workspace_;  // of add_moments()
  Buffer sum_;        // f64 [k, k]
  Buffer others_;     // [capacity, k]: y - x of those rows; empty if there is none
  Buffer other_sum_;  // f64 [k, k]
  Buffer bad_;        // index of the first number that is not finite
};

}  // namespace lowbit
