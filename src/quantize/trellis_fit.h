#pragma once
// Scales, codes and tables of weights on a trellis, against the weights themselves. Internal to src/quantize.

#include <cstdint>
#include <vector>

#include "quantize/tensor_fit.h"

namespace lowbit {

/// The 16 entries that suit a standard normal variable on the trellis of `format`, as integers with the largest
/// magnitude 127.
std::vector<float> gaussian_table(FormatId format);

/// Starts from gaussian_table(); codes, scales and entries of sampled rows improve in turn. Integers as above. Errors:
/// the reader's.
Result<std::vector<float>> fit_trellis_table(const FitPlan& plan, const RowReader& rows, ThreadPool& pool);

/// Rows [first, first + count) of w, each with scales of its own: scales and codes improve in turn, then codes are
/// chosen anew for the scales as stored. Fills `arrays`, codes [count, k] and what each row lost; without codes (null)
/// scales alone. False when a weight is NaN or infinite.
bool fit_trellis_rows(const FitPlan& plan, const RowSlice& w, int64_t first, int64_t count, ScaleArrays& arrays,
                      uint8_t* codes, RowError* errors);

/// fit_trellis_rows() of the whole matrix; `scales_alone`: codes and errors stay zeros. Errors: kInvalidArgument for
/// NaN or infinity, by row and column.
struct TrellisRowFits {
  ScaleArrays arrays;
  std::vector<uint8_t> codes;
  std::vector<RowError> errors;
};
Result<TrellisRowFits> fit_all_trellis_rows(const FitPlan& plan, const float* w, bool scales_alone, ThreadPool& pool);

}  // namespace lowbit
