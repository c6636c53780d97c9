#include "quantize/tensor_fit.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <utility>

#include "base/checked.h"

namespace lowbit {
namespace {

tl::unexpected<Error> not_finite(float value, int64_t row, int64_t col) {
  return fail(ErrorCode::kInvalidArgument, "quantize",
              std::to_string(value) + " at row " + std::to_string(row) + ", column " + std::to_string(col),
              "finite weights");
}

}  // namespace

ScaleArrays::ScaleArrays(const FitPlan& plan, int64_t first_row, int64_t rows)
    : cols(plan.scale_cols()), super_cols(plan.super_cols()), first(first_row) {
  const bool has_zeros = plan.options.scaling.zero != ZeroKind::kNone;
  scales.resize(static_cast<size_t>(rows * cols));
  supers.resize(static_cast<size_t>(rows * super_cols));
  zeros.resize(has_zeros ? static_cast<size_t>(rows * cols) : 0);
}

ScaleRow ScaleArrays::at(int64_t scale_row) {
  const int64_t i = scale_row - first;
  return {scales.data() + i * cols, supers.data() + i * super_cols, zeros.empty() ? nullptr : zeros.data() + i * cols};
}

Result<ScaleArrays> fit_all_scales(const FitPlan& plan, const float* w, ThreadPool& pool) {
  const RowSlice slice{w, 0};
  const int64_t parts = ceil_div(plan.scale_cols(), kSuperGroup), blocks = plan.scale_rows();
  ScaleArrays arrays(plan, 0, blocks);
  std::atomic<bool> finite = true;
  std::vector<BlockScratch> scratch(static_cast<size_t>(pool.size()));
  const int64_t part_elements = ceil_div(plan.n, blocks) * ceil_div(plan.k, parts);
  pool.parallel_for(parts * blocks, std::max<int64_t>(1, kTaskElements / part_elements),
                    [&](int64_t begin, int64_t end, int worker) {
                      for (int64_t t = begin; t < end; ++t) {
                        const int64_t col = t % parts * kSuperGroup;
                        if (!fit_blocks(plan, slice, t / parts, col, std::min(col + kSuperGroup, plan.scale_cols()),
                                        arrays.at(t / parts), scratch[static_cast<size_t>(worker)]))
                          finite = false;
                      }
                    });
  if (!finite) return find_not_finite(slice, 0, plan.n, plan.k);
  return arrays;
}

tl::unexpected<Error> find_not_finite(const RowSlice& w, int64_t begin, int64_t end, int64_t k) {
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < k; ++c)
      if (const float v = w.row(r, k)[c]; !std::isfinite(v)) return not_finite(v, r, c);
  return not_finite(NAN, begin, 0);
}

std::vector<int64_t> scale_row_index(const FitPlan& plan) {
  std::vector<int64_t> index(static_cast<size_t>(plan.n));
  for (int64_t s = 0; s < plan.scale_rows(); ++s) {
    const auto [begin, end] = plan.rows_of(s);
    std::fill(index.begin() + begin, index.begin() + end, s);
  }
  return index;
}

int64_t count_zeros(const std::vector<float>& scales) { return std::count(scales.begin(), scales.end(), 0.0f); }

FitReport make_report(const std::vector<RowError>& rows, int64_t zero_scales, bool weighted) {
  RowError sum;
  for (const RowError& r : rows) {
    sum.error += r.error;
    sum.energy += r.energy;
    sum.weighted_error += r.weighted_error;
    sum.weighted_energy += r.weighted_energy;
  }
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
  FitReport report;
  report.rel_error = ratio(sum.error, sum.energy);
  report.weighted_error = weighted ? ratio(sum.weighted_error, sum.weighted_energy) : report.rel_error;
  report.zero_scales = zero_scales;
  return report;
}

ValueTensor assemble(const FitPlan& plan, int64_t rows, ScaleArrays& arrays, std::vector<uint8_t> codes) {
  ValueTensor v;
  v.format = plan.options.format;
  v.n = rows;
  v.k = plan.k;
  v.codes = std::move(codes);
  v.scaling = plan.options.scaling;
  v.scales = std::move(arrays.scales);
  v.super_scales = std::move(arrays.supers);
  v.zeros = std::move(arrays.zeros);
  v.codebook = plan.options.codebook;
  v.row_ends = plan.options.row_ends;
  return v;
}

}  // namespace lowbit
