#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "lowbit/error.h"
#include "quantize/feedback.h"

namespace lowbit {

/// Rows that are summed in f32 before they join the sum in f64.
inline constexpr int64_t kMomentChunk = 1024;

/// Accumulates sum x x^T over rows x [k], and sum (y - x) x^T where there are rows y. Same bits for any ISA, thread count and cut of
/// the rows into calls.
class MomentSum {
 public:
  /// `compares`: every call of add() has rows y.
  MomentSum(int64_t k, bool compares, Isa isa, ThreadPool& pool);

  /// rows x [m, k]; y [m, k] or null. Errors: kInvalidArgument (NaN or infinity, with `name`), kOutOfMemory.
  Status add(const std::string& name, const float* rows, const float* y, int64_t m);
  /// The mean over all rows added.
  Result<SecondMoments> finish();

 private:
  Status flush();
  void transpose(const std::vector<float>& rows, std::vector<float>& columns) const;

  int64_t k_, filled_ = 0, count_ = 0;
  Isa isa_;
  ThreadPool* pool_;
  std::vector<float> rows_;                        // [kMomentChunk, k]: rows not yet summed
  std::vector<float> columns_;                     // [k, kMomentChunk]: their transpose
  std::vector<float> product_;                     // [k, k]
  std::vector<double> sum_;                        // [k, k]
  std::vector<float> other_rows_, other_columns_;  // the same of y - x; empty if there is none
  std::vector<double> other_sum_;                  // [k, k]
};

}  // namespace lowbit
