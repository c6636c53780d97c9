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
  const FeedbackInput* const factored = trellis_of(options.format) == nullptr ? input.factored : input.in_order;
  auto values = factored != nullptr
                    ? fit_with_feedback(w.data(), source.n, source.k, options, *factored, feedback, pool, &report)
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
                               ThreadPool& pool, const std::vector<std::string>& on_trellis)
    : moments_(moments) {
  struct Wanted {
    std::shared_ptr<const SecondMoments> moments;
    FeedbackOptions options;
    std::optional<FeedbackInput> made;
  };
  std::vector<Wanted> inputs;
  const auto want = [&](const std::vector<std::string>& names, bool act_order) {
    for (const std::string& name : names) {
      const auto it = moments.find(name);
      if (it == moments.end()) continue;
      const auto same = [&](const Wanted& w) { return w.moments == it->second && w.options.act_order == act_order; };
      if (std::ranges::none_of(inputs, same)) {
        inputs.push_back({it->second, {}, {}});
        inputs.back().options.act_order = act_order;
      }
    }
  };
  want(weights, true);
  want(on_trellis, false);
  std::ranges::stable_sort(inputs, std::greater<>(),
                           [](const Wanted& w) { return w.moments->k; });  // the longest first
  const auto make = [](Wanted& w, ThreadPool* own) {
    if (auto input = FeedbackInput::make(w.moments, w.options, own)) w.made = std::move(*input);
  };
  if (inputs.size() == 1)  // then the pool is free for it
    make(inputs[0], &pool);
  else
    pool.parallel_for(static_cast<int64_t>(inputs.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) make(inputs[i], nullptr);
    });
  for (Wanted& w : inputs)
    if (w.made) (w.options.act_order ? factored_ : in_order_).emplace(w.moments.get(), std::move(*w.made));
}

LayerInput FactoredInputs::of(const std::string& weight) const {
  const auto it = moments_.find(weight);
  if (it == moments_.end()) return {};
  const auto find = [&](const auto& inputs) {
    const auto found = inputs.find(it->second.get());
    return found == inputs.end() ? nullptr : &found->second;
  };
  return {it->second.get(), find(factored_), find(in_order_)};
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
