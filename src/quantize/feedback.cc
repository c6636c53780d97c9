#include "quantize/feedback.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/try.h"
#include "quantize/feedback_factor.h"
#include "quantize/fit_plan.h"
#include "quantize/parallel.h"
#include "quantize/refine.h"
#include "quantize/tensor_fit.h"
#include "quantize/trellis_feedback.h"
#include "quantize/trellis_fit.h"

namespace lowbit {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 16;

/// call(first, count) for rows that share each pass over H: as many as leave every thread several passes and fit into
/// its share of memory. The rows' bits do not depend on it.
template <class Call>
void for_passes(int64_t n, int64_t bytes_of_row, ThreadPool& pool, const Call& call) {
  constexpr int64_t kFewest = 8, kPassesOfAThread = 4, kMostBytes = int64_t{32} << 20;
  int64_t rows = 32;
  while (rows > kFewest && (n < rows * kPassesOfAThread * pool.size() || rows * bytes_of_row > kMostBytes)) rows /= 2;
  pool.parallel_for((n + rows - 1) / rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t first = begin * rows; first < std::min(n, end * rows); first += rows)
      call(first, std::min(rows, n - first));
  });
}

/// Chooses all codes of some rows in the factor's order, each target moved by the errors before it. Errors reach the
/// columns of their own strip at once and those after it together.
void round_with_feedback(const ColumnStrips& carry, const std::vector<int64_t>& order, std::span<RowCodes> rows) {
  const int64_t k = carry.k();
  std::vector<std::vector<float>> carried(rows.size(), std::vector<float>(static_cast<size_t>(carry.padded())));
  std::vector<float*> targets;
  for (auto& row : carried) targets.push_back(row.data());
  std::vector<SparseVector> errors(rows.size());
  for (int64_t strip = 0; strip < carry.strips(); ++strip) {
    for (size_t r = 0; r < rows.size(); ++r) {
      errors[r].clear();
      for (int64_t i = strip * kStripWidth; i < std::min(k, (strip + 1) * kStripWidth); ++i) {
        const int64_t c = order[static_cast<size_t>(i)];
        const float w = rows[r].weights()[c];
        const float error = w - rows[r].choose(c, w + carried[r][static_cast<size_t>(i)]);
        if (error == 0) continue;
        errors[r].push(error, i);
        // The row has zeros up to column i, so codes already chosen see no change.
        add_scaled_row(error, carry.row(strip, i), targets[r] + strip * kStripWidth);
      }
    }
    add_products(carry, errors, strip + 1, carry.strips(), -1, targets);
  }
}

/// H with `damping` on its diagonal.
ColumnStrips damped(const InputHessian& hessian, float damping, ThreadPool* pool) {
  ColumnStrips h(hessian.k, pool);
  parallel_for(pool, hessian.k, kStripWidth, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < hessian.k; ++j)
        h.at(i, j) = hessian.h[static_cast<size_t>(i * hessian.k + j)] + (i == j ? damping : 0.0f);
  });
  return h;
}

/// Scales that belong to one row each can be refitted row by row, unless only powers of two will do.
bool can_refit(const Scaling& s) { return s.n_block == 1 && s.zero == ZeroKind::kNone && s.scale != ScaleKind::kPow2; }

struct RowLoss {
  RowError weights;
  double output = 0, output_energy = 0;
};

RowLoss loss_of(const RowCodes& row, const InputHessian& hessian) {
  RowLoss loss;
  for (int64_t c = 0; c < row.k(); ++c) {
    const double w = row.weights()[c], d = w - row.real(c), h = hessian.h[static_cast<size_t>(c * row.k() + c)];
    loss.weights.error += d * d;
    loss.weights.energy += w * w;
    loss.weights.weighted_error += h * d * d;
    loss.weights.weighted_energy += h * w * w;
  }
  return loss;
}

/// The parts that all rows of a tensor share; fit_rows() may be called from any thread.
struct Job {
  const FitPlan& plan;
  const FeedbackOptions& options;
  const InputHessian& hessian;
  const FeedbackFactor& factor;
  const ColumnStrips& h;  // damped
  float damping = 0;      // added to H's diagonal
  std::vector<std::vector<TrellisBlock>> trellis_sweeps = {};

  void fit_rows(std::span<RowCodes> rows, uint8_t* codes, RowLoss* losses) const {
    RowRefiner refiner(h, damping, rows);
    if (plan.trellis != nullptr) {  // without a factor: the codes that fitted the scales
      if (factor.ok) round_trellis_with_feedback(factor, rows);
    } else if (factor.ok) {
      round_with_feedback(factor.carry, factor.order, rows);
    } else {
      for (RowCodes& row : rows)
        for (int64_t c = 0; c < row.k(); ++c) row.choose(c, row.weights()[c]);
    }
    const int rounds = factor.ok ? options.refine_rounds : 0;
    const bool refits = can_refit(plan.options.scaling);
    if (rounds == 0 || !refits) refiner.set_gradients();
    for (int round = 0; round < rounds; ++round) {
      if (refits) refiner.refit_scales(plan.options.scaling.scale);
      if (plan.trellis == nullptr) refiner.descend();
      for (const auto& blocks : trellis_sweeps) refiner.descend_blocks(blocks);
    }
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].write(codes + static_cast<int64_t>(r) * plan.k);
      losses[r] = loss_of(rows[r], hessian);
      losses[r].output = refiner.output_error(r);
      losses[r].output_energy = refiner.output_energy(r);
    }
  }
};

using Matrix = std::unique_ptr<float[]>;

/// w + strength * added.
Matrix moved(const float* w, const std::vector<float>& added, float strength, ThreadPool& pool) {
  auto target = std::make_unique_for_overwrite<float[]>(added.size());
  pool.parallel_for(static_cast<int64_t>(added.size()), kElementsAtOnce, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) target[i] = w[i] + strength * added[i];
  });
  return target;
}

/// w + strength * w shift.
Matrix shifted(const float* w, int64_t n, int64_t k, const ColumnStrips& shift, float strength, ThreadPool& pool) {
  auto target = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n * k));
  for_passes(n, k * int64_t(sizeof(float)), pool, [&](int64_t first, int64_t passed) {
    const auto count = static_cast<size_t>(passed);
    std::vector<SparseVector> rows(count);
    std::vector<std::vector<float>> added(count, std::vector<float>(static_cast<size_t>(shift.padded())));
    std::vector<float*> to;
    for (size_t r = 0; r < count; ++r) {
      const float* const row = w + (first + static_cast<int64_t>(r)) * k;
      for (int64_t i = 0; i < k; ++i)
        if (row[i] != 0) rows[r].push(row[i], i);
      to.push_back(added[r].data());
    }
    add_products(shift, rows, 0, shift.strips(), -1, to);
    for (size_t r = 0; r < count; ++r)
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = (first + static_cast<int64_t>(r)) * k + i;
        target[static_cast<size_t>(at)] = w[at] + strength * added[r][static_cast<size_t>(i)];
      }
  });
  return target;
}

FeedbackReport summarize(const std::vector<RowLoss>& rows, const ScaleArrays& arrays, const FeedbackFactor& factor) {
  FeedbackReport report;
  std::vector<RowError> weights;
  double output = 0, energy = 0;
  for (const RowLoss& row : rows) {
    weights.push_back(row.weights);
    output += row.output;
    energy += row.output_energy;
  }
  report.weights = make_report(weights, count_zeros(arrays.scales), true);
  report.output_error = energy > 0 ? output / energy : 0;
  report.damping = factor.damping;
  report.fell_back = !factor.ok;
  return report;
}

/// Scales as fit() chooses them; and codes, where those are chosen together with them and are not to be chosen again.
struct Start {
  ScaleArrays arrays;
  std::vector<uint8_t> codes;
};
Result<Start> fit_start(const FitPlan& plan, const float* w, bool chooses_again, ThreadPool& pool) {
  if (plan.trellis != nullptr) {
    LOWBIT_TRY_ASSIGN(TrellisRowFits fits, fit_all_trellis_rows(plan, w, chooses_again, pool));
    return Start{std::move(fits.arrays), std::move(fits.codes)};
  }
  LOWBIT_TRY_ASSIGN(ScaleArrays arrays, fit_all_scales(plan, w, pool));
  return Start{std::move(arrays), std::vector<uint8_t>(static_cast<size_t>(plan.n * plan.k))};
}

Status check_shape(const InputHessian& hessian, int64_t n, int64_t k) {
  if (!hessian.missing.empty() && static_cast<int64_t>(hessian.missing.size()) != n * k)
    return fail(ErrorCode::kShapeMismatch, "Hessian", std::to_string(hessian.missing.size()) + " numbers of outputs",
                std::to_string(n) + " x " + std::to_string(k) + ", the weight's");
  if (hessian.k == k) return {};
  return fail(ErrorCode::kShapeMismatch, "Hessian", std::to_string(hessian.k) + " inputs",
              std::to_string(k) + ", the weight's columns");
}

}  // namespace

struct FeedbackInput::Parts {
  std::shared_ptr<const InputHessian> hessian;
  FeedbackFactor factor;
  float damping = 0;  // added to H's diagonal
  ColumnStrips h{0};  // damped
};

Result<FeedbackInput> FeedbackInput::make(std::shared_ptr<const InputHessian> hessian, const FeedbackOptions& options,
                                          ThreadPool* pool) {
  LOWBIT_TRY_ASSIGN(FeedbackFactor factor, factor_hessian(*hessian, options, pool));
  const std::vector<float> diagonal = hessian->diagonal();
  const double mean = std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(hessian->k);
  const auto damping = static_cast<float>(factor.damping * mean);
  ColumnStrips h = damped(*hessian, damping, pool);
  return FeedbackInput(
      std::make_shared<const Parts>(Parts{std::move(hessian), std::move(factor), damping, std::move(h)}));
}

Result<ValueTensor> fit_with_feedback(const float* w, int64_t n, int64_t k, const FitOptions& options,
                                      const InputHessian& hessian, const FeedbackOptions& feedback, ThreadPool& pool,
                                      FeedbackReport* report) {
  LOWBIT_TRY(check_shape(hessian, n, k));
  const std::shared_ptr<const InputHessian> borrowed(std::shared_ptr<void>(), &hessian);
  FeedbackOptions of_input = feedback;
  of_input.act_order = feedback.act_order && trellis_of(options.format) == nullptr;
  LOWBIT_TRY_ASSIGN(const FeedbackInput input, FeedbackInput::make(borrowed, of_input, &pool));
  return fit_with_feedback(w, n, k, options, input, feedback, pool, report);
}

Result<ValueTensor> fit_with_feedback(const float* w, int64_t n, int64_t k, const FitOptions& options,
                                      const FeedbackInput& input, const FeedbackOptions& feedback, ThreadPool& pool,
                                      FeedbackReport* report) {
  const auto& [shared, factor, damping, h] = input.parts();
  const InputHessian& hessian = *shared;
  LOWBIT_TRY(check_shape(hessian, n, k));
  Matrix target;
  if (feedback.shift != 0 && !factor.added.empty())
    target = moved(w, factor.added, feedback.shift, pool);
  else if (feedback.shift != 0 && factor.shift.k() > 0)
    target = shifted(w, n, k, factor.shift, feedback.shift, pool);
  if (target) w = target.get();
  const std::vector<float> importance = hessian.diagonal();
  const RowReader reader = [w, k](int64_t first, int64_t count, float* out) -> Status {
    std::copy_n(w + first * k, count * k, out);
    return {};
  };
  LOWBIT_TRY_ASSIGN(const FitPlan plan, make_plan(reader, n, k, options, importance.data(), pool));
  if (plan.trellis != nullptr && !std::ranges::is_sorted(factor.order))
    return fail(ErrorCode::kInvalidArgument, "Hessian", "columns in the order of their inputs' size",
                "their own order for a trellis", "FeedbackOptions::act_order = false");
  LOWBIT_TRY_ASSIGN(Start start, fit_start(plan, w, factor.ok, pool));
  ScaleArrays& arrays = start.arrays;
  std::vector<uint8_t>& codes = start.codes;

  Job job{plan, feedback, hessian, factor, h, damping};
  if (plan.trellis != nullptr && factor.ok)
    for (const int64_t offset : {kStripWidth / 2, int64_t{0}}) job.trellis_sweeps.push_back(trellis_blocks(h, offset));
  std::vector<RowLoss> losses(static_cast<size_t>(n));
  const std::vector<int64_t> scale_row_of = scale_row_index(plan);
  const int64_t bytes_of_row = plan.scale_cols() * h.padded() * int64_t(sizeof(float));  // RowRefiner's largest part
  for_passes(n, bytes_of_row, pool, [&](int64_t first, int64_t count) {
    std::vector<RowCodes> rows;
    for (int64_t r = first; r < first + count; ++r) {
      const ScaleRow at = arrays.at(scale_row_of[static_cast<size_t>(r)]);
      rows.emplace_back(plan, w + r * k, at);
      for (int64_t c = 0; plan.trellis != nullptr && c < k; ++c)
        rows.back().set(c, codes[static_cast<size_t>(r * k + c)]);
    }
    job.fit_rows(rows, codes.data() + first * k, losses.data() + first);
  });
  if (report) *report = summarize(losses, arrays, factor);
  return assemble(plan, n, arrays, std::move(codes));
}

}  // namespace lowbit
