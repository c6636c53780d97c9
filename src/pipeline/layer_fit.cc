#include "pipeline/layer_fit.h"

#include <vector>

#include "base/try.h"
#include "pipeline/recipe.h"
#include "quantize/fit.h"

namespace lowbit {
namespace {

/// How the inputs' moments are used.
enum class MomentUse { kNone, kWeights, kFeedback, kRefit };

Result<MomentUse> moment_use(const QuantizeSpec& spec, const SecondMoments* moments) {
  if (spec.fit == "wls" || spec.fit == "gptq" || spec.fit == "refit") {
    if (moments == nullptr)
      return fail(ErrorCode::kInvalidArgument, "fit " + spec.fit, "no inputs measured for this layer",
                  "a linear layer of a block, and a calibration text", "--calib FILE; or fit=lsq for this layer");
    return spec.fit == "wls" ? MomentUse::kWeights : spec.fit == "gptq" ? MomentUse::kFeedback : MomentUse::kRefit;
  }
  return spec.fit == "auto" && moments != nullptr ? MomentUse::kRefit : MomentUse::kNone;
}

Result<QTensor> fit_to_outputs(const QTensor& source, const FitOptions& options, const SecondMoments& moments,
                               MomentUse use, ThreadPool& pool, LayerFit& fit) {
  std::vector<float> w(static_cast<size_t>(source.n * source.k));
  pool.parallel_for(source.n, 16, [&](int64_t begin, int64_t end, int) {
    dequantize_rows(source, begin, end - begin, w.data() + begin * source.k);
  });
  FeedbackOptions feedback;
  if (use == MomentUse::kFeedback) feedback.refine_rounds = 0;
  FeedbackReport report;
  LOWBIT_TRY_ASSIGN(const ValueTensor values,
                    fit_with_feedback(w.data(), source.n, source.k, options, moments, feedback, pool, &report));
  fit = {report.weights.rel_error, report.output_error};
  return pack(values);
}

}  // namespace

Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const SecondMoments* moments, ThreadPool& pool, LayerFit& fit) {
  const auto named = [&](Result<QTensor> w) {
    if (!w) w.error().where = name + ": " + w.error().where;
    return w;
  };
  FitOptions options;
  options.format = spec.format;
  options.scaling = scaling_of(spec);
  options.seed = seed;
  const auto use = moment_use(spec, moments);
  if (!use) return named(tl::unexpected<Error>(use.error()));
  if (*use == MomentUse::kNone) {
    LOWBIT_TRY_ASSIGN(options.method, parse_fit_method(spec.fit));
  }
  if (*use == MomentUse::kFeedback || *use == MomentUse::kRefit)
    return named(fit_to_outputs(source, options, *moments, *use, pool, fit));

  const RowReader rows = [&](int64_t first, int64_t count, float* out) -> Status {
    dequantize_rows(source, first, count, out);
    return {};
  };
  const std::vector<float> importance = *use == MomentUse::kWeights ? moments->diagonal() : std::vector<float>();
  FitReport report;
  auto w =
      fit_and_pack(rows, source.n, source.k, options, importance.empty() ? nullptr : importance.data(), pool, &report);
  fit.rel_error = report.rel_error;
  return named(std::move(w));
}

}  // namespace lowbit
