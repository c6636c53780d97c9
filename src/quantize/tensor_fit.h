#pragma once
// Shared by all fits of a whole tensor: its scales, its report, its result. Internal to src/quantize.

#include <cstdint>
#include <vector>

#include "quantize/block_fit.h"

namespace lowbit {

inline constexpr int64_t kTaskElements = int64_t{1} << 15;  // of one chunk of a parallel loop

/// Scales and zeros of scale rows [first, ...), to be filled.
struct ScaleArrays {
  ScaleArrays(const FitPlan& plan, int64_t first_row, int64_t rows);
  ScaleRow at(int64_t scale_row);

  int64_t cols, super_cols, first;
  std::vector<float> scales, supers, zeros;
};

/// Every block's scale and zero for w [plan.n, plan.k]. Errors: kInvalidArgument for NaN or infinity, by row and
/// column.
Result<ScaleArrays> fit_all_scales(const FitPlan& plan, const float* w, ThreadPool& pool);

/// The error that names the first NaN or infinity in rows [begin, end) of w, which holds one.
tl::unexpected<Error> find_not_finite(const RowSlice& w, int64_t begin, int64_t end, int64_t k);

/// The scale row of each matrix row.
std::vector<int64_t> scale_row_index(const FitPlan& plan);

int64_t count_zeros(const std::vector<float>& scales);
FitReport make_report(const std::vector<RowError>& rows, int64_t zero_scales, bool weighted);

/// Hands everything to a ValueTensor of `rows` rows; arrays are emptied.
ValueTensor assemble(const FitPlan& plan, int64_t rows, ScaleArrays& arrays, std::vector<uint8_t> codes);

}  // namespace lowbit
