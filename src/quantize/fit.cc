#include "quantize/fit.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/try.h"
#include "format/registry.h"
#include "quantize/block_fit.h"
#include "quantize/fit_plan.h"
#include "quantize/tensor_fit.h"
#include "quantize/trellis_fit.h"

namespace lowbit {
namespace {

constexpr std::array<std::pair<FitMethod, const char*>, 5> kMethodNames = {{{FitMethod::kAuto, "auto"},
                                                                            {FitMethod::kAbsmax, "absmax"},
                                                                            {FitMethod::kAbsmean, "absmean"},
                                                                            {FitMethod::kMse, "mse"},
                                                                            {FitMethod::kLsq, "lsq"}}};

Result<ValueTensor> fit_on_trellis(const FitPlan& plan, const float* w, ThreadPool& pool, FitReport* report) {
  LOWBIT_TRY_ASSIGN(TrellisRowFits fits, fit_all_trellis_rows(plan, w, false, pool));
  if (report) *report = make_report(fits.errors, count_zeros(fits.arrays.scales), plan.importance != nullptr);
  return assemble(plan, plan.n, fits.arrays, std::move(fits.codes));
}

Result<ValueTensor> fit_with_plan(const FitPlan& plan, const float* w, ThreadPool& pool, FitReport* report) {
  if (plan.trellis != nullptr) return fit_on_trellis(plan, w, pool, report);
  LOWBIT_TRY_ASSIGN(ScaleArrays arrays, fit_all_scales(plan, w, pool));
  std::vector<uint8_t> codes(static_cast<size_t>(plan.n * plan.k));
  std::vector<RowError> errors(static_cast<size_t>(plan.n));
  const std::vector<int64_t> scale_row_of = scale_row_index(plan);
  pool.parallel_for(plan.n, std::max<int64_t>(1, kTaskElements / plan.k), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const ScaleRow at = arrays.at(scale_row_of[static_cast<size_t>(r)]);
      errors[static_cast<size_t>(r)] = encode_row(plan, w + r * plan.k, at.scales, at.zeros, codes.data() + r * plan.k);
    }
  });
  if (report) *report = make_report(errors, count_zeros(arrays.scales), plan.importance != nullptr);
  return assemble(plan, plan.n, arrays, std::move(codes));
}

/// Rows [first, first + rows), whole blocks of them: read, fitted and packed by one thread.
Result<QTensor> fit_rows(const FitPlan& plan, const RowReader& reader, int64_t first, int64_t rows, RowError* errors,
                         std::atomic<int64_t>& zero_scales) {
  std::vector<float> w(static_cast<size_t>(rows * plan.k));
  LOWBIT_TRY(reader(first, rows, w.data()));
  const RowSlice slice{w.data(), first};
  const int64_t n_block = plan.options.scaling.n_block;
  const int64_t first_block = first / n_block, blocks = ceil_div(rows, n_block);
  ScaleArrays arrays(plan, first_block, blocks);
  std::vector<uint8_t> codes(static_cast<size_t>(rows * plan.k));
  if (plan.trellis != nullptr) {
    if (!fit_trellis_rows(plan, slice, first, rows, arrays, codes.data(), errors))
      return find_not_finite(slice, first, first + rows, plan.k);
    zero_scales += count_zeros(arrays.scales);
    return pack(assemble(plan, rows, arrays, std::move(codes)));
  }
  BlockScratch scratch;
  for (int64_t b = first_block; b < first_block + blocks; ++b)
    if (!fit_blocks(plan, slice, b, 0, plan.scale_cols(), arrays.at(b), scratch))
      return find_not_finite(slice, first, first + rows, plan.k);
  for (int64_t r = first; r < first + rows; ++r) {
    const ScaleRow at = arrays.at(r / n_block);
    errors[r - first] =
        encode_row(plan, slice.row(r, plan.k), at.scales, at.zeros, codes.data() + (r - first) * plan.k);
  }
  zero_scales += count_zeros(arrays.scales);
  return pack(assemble(plan, rows, arrays, std::move(codes)));
}

Result<QTensor> allocate_result(const FitPlan& plan) {
  QTensor w;
  w.format = plan.options.format;
  w.n = plan.n;
  w.k = plan.k;
  w.scaling = plan.options.scaling;
  w.codebook = plan.options.codebook;
  const int64_t rows = plan.scale_rows(), count = rows * plan.scale_cols();
  LOWBIT_TRY_ASSIGN(w.codes, Buffer::allocate(plan.n * row_bytes(w.format, w.k), "weight codes"));
  LOWBIT_TRY_ASSIGN(w.scales, Buffer::allocate(count * scale_bytes(w.scaling.scale), "weight scales"));
  LOWBIT_TRY_ASSIGN(w.zeros, Buffer::allocate(count * zero_bytes(w.scaling), "weight zero points"));
  LOWBIT_TRY_ASSIGN(w.super_scales, Buffer::allocate(rows * plan.super_cols() * 2, "weight super-scales"));
  return w;
}

/// Copies a part's bytes to where `before` of its rows (of `total` in all) come first.
void place(const Buffer& part, Buffer& whole, int64_t before, int64_t total) {
  if (!part.empty())
    std::memcpy(whole.data() + whole.size() / total * before, part.data(), static_cast<size_t>(part.size()));
}

Result<QTensor> fit_by_rows(const FitPlan& plan, const RowReader& reader, ThreadPool& pool, FitReport* report) {
  LOWBIT_TRY_ASSIGN(QTensor result, allocate_result(plan));
  const int64_t n_block = plan.options.scaling.n_block;
  const int64_t chunk = round_up(std::max<int64_t>(1, kTaskElements / plan.k), n_block);
  const int64_t chunks = ceil_div(plan.n, chunk);
  std::vector<RowError> errors(static_cast<size_t>(plan.n));
  std::vector<std::optional<Error>> failures(static_cast<size_t>(chunks));
  std::atomic<int64_t> zero_scales = 0, lowest_failure = chunks;
  pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c) {
      if (c > lowest_failure) return;
      const int64_t first = c * chunk, rows = std::min(chunk, plan.n - first);
      auto part = fit_rows(plan, reader, first, rows, errors.data() + first, zero_scales);
      if (!part) {
        failures[static_cast<size_t>(c)] = std::move(part.error());
        for (int64_t seen = lowest_failure; c < seen && !lowest_failure.compare_exchange_weak(seen, c);) {
        }
        return;
      }
      const int64_t block = first / n_block, blocks = plan.scale_rows();
      place(part->codes, result.codes, first, plan.n);
      place(part->scales, result.scales, block, blocks);
      place(part->zeros, result.zeros, block, blocks);
      place(part->super_scales, result.super_scales, block, blocks);
    }
  });
  if (lowest_failure < chunks) return tl::unexpected(std::move(*failures[static_cast<size_t>(lowest_failure)]));
  if (report) *report = make_report(errors, zero_scales, plan.importance != nullptr);
  return result;
}

Status read_all(const RowReader& reader, int64_t n, int64_t k, ThreadPool& pool, std::vector<float>& w) {
  const int64_t chunk = std::max<int64_t>(1, kTaskElements / k), chunks = ceil_div(n, chunk);
  std::vector<std::optional<Error>> failures(static_cast<size_t>(chunks));
  w.resize(static_cast<size_t>(n * k));
  pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c)
      if (auto s = reader(c * chunk, std::min(chunk, n - c * chunk), w.data() + c * chunk * k); !s)
        failures[static_cast<size_t>(c)] = std::move(s.error());
  });
  for (auto& f : failures)
    if (f) return tl::unexpected(std::move(*f));
  return {};
}

}  // namespace

const char* fit_method_name(FitMethod method) { return kMethodNames[static_cast<size_t>(method)].second; }

Result<FitMethod> parse_fit_method(std::string_view name) {
  std::string known;
  for (const auto& [method, text] : kMethodNames) {
    if (name == text) return method;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  return fail(ErrorCode::kInvalidArgument, "fit method", "'" + std::string(name) + "'", "one of " + known);
}

Result<ValueTensor> fit(const float* w, int64_t n, int64_t k, const FitOptions& options, const float* importance,
                        ThreadPool& pool, FitReport* report) {
  const RowReader reader = [w, k](int64_t first, int64_t count, float* out) -> Status {
    std::copy_n(w + first * k, count * k, out);
    return {};
  };
  LOWBIT_TRY_ASSIGN(const FitPlan plan, make_plan(reader, n, k, options, importance, pool));
  return fit_with_plan(plan, w, pool, report);
}

Result<QTensor> fit_and_pack(const RowReader& rows, int64_t n, int64_t k, const FitOptions& options,
                             const float* importance, ThreadPool& pool, FitReport* report) {
  LOWBIT_TRY_ASSIGN(const FitPlan plan, make_plan(rows, n, k, options, importance, pool));
  const int64_t n_block = options.scaling.n_block;
  if (n_block > 0 && n_block < n) return fit_by_rows(plan, rows, pool, report);
  std::vector<float> w;
  LOWBIT_TRY(read_all(rows, n, k, pool, w));
  LOWBIT_TRY_ASSIGN(const ValueTensor values, fit_with_plan(plan, w.data(), pool, report));
  w = {};
  return pack(values);
}

}  // namespace lowbit
