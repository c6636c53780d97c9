#pragma once
// H factored for error feedback. Internal to src/quantize.

#include <cstdint>
#include <vector>

#include "lowbit/error.h"
#include "quantize/column_strips.h"
#include "quantize/feedback.h"

namespace lowbit {

struct FeedbackFactor {
  std::vector<int64_t> order;  // order[i] = the column that is rounded i-th
  /// [k, k], rows i hold R_ij / R_jj for j > i (in that order), zeros elsewhere: what column i's error adds to column
  /// j. Empty without `ok`.
  ColumnStrips carry{0};
  std::vector<float> gain;  // [k] R_jj: what is lost in column j is (R_jj * (target_j - q_j))^2. Empty without `ok`
  /// [k, k], D (H + damping)^-1 of InputHessian::mismatch D; what is added to a row w is w times it. Empty without
  /// `ok` or D.
  ColumnStrips shift{0};
  /// [n, k], E (H + damping)^-1 of InputHessian::missing E: what is added to the weights. Empty without `ok` or E.
  std::vector<float> added;
  double damping = 0;
  bool ok = false;  // false: H could not be factored with damping up to 1
};

/// Errors: kInvalidArgument (NaN, infinity or a negative diagonal in H), kOutOfMemory.
Result<FeedbackFactor> factor_hessian(const InputHessian& hessian, const FeedbackOptions& options,
                                      ThreadPool* pool = nullptr);

}  // namespace lowbit
