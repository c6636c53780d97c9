#include "calibrate/layer_fit.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/try.h"
#include "calibrate/recipe.h"
#include "format/registry.h"
#include "quantize/fit.h"

namespace lowbit {
namespace {

/// How the inputs' Hessian is used.
enum class MomentUse { kNone, kWeights, kFeedback, kRefit, kAlign };

/// How far asymmetric targets go: the whole way would fit the noise of what was measured, too.
constexpr float kAlignment = 0.5f;
/// What auto calibrates asymmetrically: more values lose too little for it.
constexpr int kMostAlignedBits = 3;

Result<MomentUse> moment_use(const QuantizeSpec& spec, const SecondMoments* moments) {
  if (needs_moments(spec)) {
    if (moments == nullptr)
      return fail(ErrorCode::kInvalidArgument, "fit " + spec.fit, "no inputs measured for this layer",
                  "a linear layer of a block, and a calibration text", "--calib FILE; or fit=lsq for this layer");
    if (must_align(spec)) return MomentUse::kAlign;
    return spec.fit == "wls" ? MomentUse::kWeights : spec.fit == "gptq" ? MomentUse::kFeedback : MomentUse::kRefit;
  }
  if (spec.fit != "auto" || moments == nullptr) return MomentUse::kNone;
  return aligns(spec) && !moments->deviation.empty() ? MomentUse::kAlign : MomentUse::kRefit;
}

Result<QTensor> fit_to_outputs(const QTensor& source, const FitOptions& options, const LayerInput& input, MomentUse use,
                               ThreadPool& pool, LayerFit& fit) {
  std::vector<float> w(static_cast<size_t>(source.n * source.k));
  pool.parallel_for(source.n, 16, [&](int64_t begin, int64_t end, int) {
    dequantize_rows(source, begin, end - begin, w.data() + begin * source.k);
  });
  FeedbackOptions feedback;
  if (use == MomentUse::kFeedback) feedback.refine_rounds = 0;
  if (use == MomentUse::kAlign) feedback.shift = kAlignment;
  FeedbackReport report;
  const bool factored = input.factored != nullptr && trellis_of(options.format) == nullptr;  // columns in another order
  auto values = factored
                    ? fit_with_feedback(w.data(), source.n, source.k, options, *input.factored, feedback, pool, &report)
                    : fit_with_feedback(w.data(), source.n, source.k, options, *input.moments, feedback, pool, &report);
  if (!values) return tl::unexpected<Error>(std::move(values.error()));
  fit = {report.weights.rel_error, report.output_error};
  return pack(*values);
}

}  // namespace

bool must_align(const QuantizeSpec& spec) {
  return !spec.keep && (spec.fit == "asymmetric" || spec.fit == "align");  // the second is its old name
}

bool aligns(const QuantizeSpec& spec) {
  return must_align(spec) ||
         (!spec.keep && spec.fit == "auto" && format_info(spec.format).bits_per_code() <= kMostAlignedBits);
}

bool needs_moments(const QuantizeSpec& spec) {
  return must_align(spec) || (!spec.keep && (spec.fit == "wls" || spec.fit == "gptq" || spec.fit == "refit"));
}

bool needs_factor(const QuantizeSpec& spec) {
  return must_align(spec) || (!spec.keep && (spec.fit == "auto" || spec.fit == "gptq" || spec.fit == "refit"));
}

FactoredInputs::FactoredInputs(const MomentsByWeight& moments, const std::vector<std::string>& weights,
                               ThreadPool& pool)
    : moments_(moments) {
  std::vector<std::shared_ptr<const SecondMoments>> inputs;
  for (const std::string& name : weights)
    if (const auto it = moments.find(name);
        it != moments.end() && std::ranges::find(inputs, it->second) == inputs.end())
      inputs.push_back(it->second);
  std::ranges::stable_sort(inputs, std::greater<>(), &SecondMoments::k);  // the longest first
  std::vector<std::optional<FeedbackInput>> made(inputs.size());
  if (inputs.size() == 1) {  // then the pool is free for it
    if (auto input = FeedbackInput::make(inputs[0], FeedbackOptions{}, &pool))
      factored_.emplace(inputs[0].get(), std::move(*input));
    return;
  }
  pool.parallel_for(static_cast<int64_t>(inputs.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      if (auto input = FeedbackInput::make(inputs[i], FeedbackOptions{})) made[i] = std::move(*input);
  });
  for (size_t i = 0; i < inputs.size(); ++i)
    if (made[i]) factored_.emplace(inputs[i].get(), std::move(*made[i]));
}

LayerInput FactoredInputs::of(const std::string& weight) const {
  const auto it = moments_.find(weight);
  if (it == moments_.end()) return {};
  const auto factored = factored_.find(it->second.get());
  return {it->second.get(), factored == factored_.end() ? nullptr : &factored->second};
}

Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const LayerInput& input, ThreadPool& pool, LayerFit& fit) {
  const SecondMoments* const moments = input.moments;
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
  if (*use == MomentUse::kFeedback || *use == MomentUse::kRefit || *use == MomentUse::kAlign)
    return named(fit_to_outputs(source, options, input, *use, pool, fit));

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
