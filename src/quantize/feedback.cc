#include "quantize/feedback.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/try.h"
#include "quantize/feedback_factor.h"
#include "quantize/fit_plan.h"
#include "quantize/refine.h"
#include "quantize/tensor_fit.h"
#include "quantize/vector_loops.h"

namespace lowbit {
namespace {

/// Chooses all codes of a row in the factor's order, each target moved by the errors before it.
void round_with_feedback(const FeedbackFactor& factor, RowCodes& row) {
  const int64_t k = row.k();
  std::vector<float> carried(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const int64_t c = factor.order[static_cast<size_t>(i)];
    const float w = row.weights()[c];
    const float error = w - row.choose(c, w + carried[static_cast<size_t>(i)]);
    if (error != 0) add_scaled(error, factor.carry.data() + i * k + i + 1, k - i - 1, carried.data() + i + 1);
  }
}

/// Scales that belong to one row each and are stored as floats can be refitted row by row.
bool can_refit(const Scaling& s) {
  const bool is_float = s.scale == ScaleKind::kF32 || s.scale == ScaleKind::kF16 || s.scale == ScaleKind::kBf16;
  return s.n_block == 1 && s.zero == ZeroKind::kNone && is_float;
}

struct RowLoss {
  RowError weights;
  double output = 0, output_energy = 0;
};

RowLoss loss_of(const RowCodes& row, const SecondMoments& moments, RowRefiner& refiner) {
  RowLoss loss;
  for (int64_t c = 0; c < row.k(); ++c) {
    const double w = row.weights()[c], d = w - row.real(c), h = moments.h[static_cast<size_t>(c * row.k() + c)];
    loss.weights.error += d * d;
    loss.weights.energy += w * w;
    loss.weights.weighted_error += h * d * d;
    loss.weights.weighted_energy += h * w * w;
  }
  loss.output = refiner.output_error();
  loss.output_energy = refiner.output_energy();
  return loss;
}

/// What the rows of a tensor share; fit_row() may be called from any thread.
struct Job {
  const FitPlan& plan;
  const FeedbackOptions& options;
  const SecondMoments& moments;
  const FeedbackFactor& factor;
  float damping = 0;  // added to H's diagonal

  RowLoss fit_row(const float* w, const ScaleRow& at, uint8_t* codes) const {
    RowCodes row(plan, w, at.scales, at.zeros);
    RowRefiner refiner(moments, damping, row);
    if (factor.ok) {
      round_with_feedback(factor, row);
      for (int round = 0; round < options.refine_rounds; ++round) {
        if (can_refit(plan.options.scaling)) refiner.refit_scales(plan.options.scaling.scale);
        refiner.descend();
      }
    } else {
      for (int64_t c = 0; c < row.k(); ++c) row.choose(c, w[c]);
    }
    row.write(codes);
    return loss_of(row, moments, refiner);
  }
};

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

}  // namespace

Result<ValueTensor> fit_with_feedback(const float* w, int64_t n, int64_t k, const FitOptions& options,
                                      const SecondMoments& moments, const FeedbackOptions& feedback, ThreadPool& pool,
                                      FeedbackReport* report) {
  if (moments.k != k)
    return fail(ErrorCode::kShapeMismatch, "second moments", std::to_string(moments.k) + " inputs",
                std::to_string(k) + ", the weight's columns");
  LOWBIT_TRY_ASSIGN(const FeedbackFactor factor, factor_moments(moments, feedback));
  const std::vector<float> importance = moments.diagonal();
  const RowReader reader = [w, k](int64_t first, int64_t count, float* out) -> Status {
    std::copy_n(w + first * k, count * k, out);
    return {};
  };
  LOWBIT_TRY_ASSIGN(const FitPlan plan, make_plan(reader, n, k, options, importance.data()));
  LOWBIT_TRY_ASSIGN(ScaleArrays arrays, fit_all_scales(plan, w, pool));

  const double mean = std::accumulate(importance.begin(), importance.end(), 0.0) / static_cast<double>(k);
  const Job job{plan, feedback, moments, factor, static_cast<float>(factor.damping * mean)};
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  std::vector<RowLoss> losses(static_cast<size_t>(n));
  const std::vector<int64_t> scale_row_of = scale_row_index(plan);
  pool.parallel_for(n, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r)
      losses[static_cast<size_t>(r)] =
          job.fit_row(w + r * k, arrays.at(scale_row_of[static_cast<size_t>(r)]), codes.data() + r * k);
  });
  if (report) *report = summarize(losses, arrays, factor);
  return assemble(plan, n, arrays, std::move(codes));
}

}  // namespace lowbit
