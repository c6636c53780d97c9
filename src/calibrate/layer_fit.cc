#include "calibrate/layer_fit.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/try.h"
#include "calibrate/recipe.h"
#include "format/registry.h"
#include "quantize/fit.h"

namespace lowbit {
namespace {

/// Elements that are read between two times at which pages are dropped: some 32 MiB of them in two bytes each.
constexpr int64_t kPagesElements = int64_t{1} << 24;

/// How the inputs' Hessian is used.
enum class HessianUse { kNone, kWeights, kFeedback, kRefit, kAsymmetric };

/// How far asymmetric targets go: the whole way would fit the noise of what was measured, too.
constexpr float kShift = 0.5f;
/// `auto` is asymmetric for formats up to so many bits, and for fp8, whose three bits of mantissa lose more than int8.
constexpr int kMostAsymmetricBits = 3;

Result<HessianUse> hessian_use(const QuantizeSpec& spec, const InputHessian* hessian) {
  if (needs_hessian(spec)) {
    if (hessian == nullptr)
      return fail(ErrorCode::kInvalidArgument, "fit " + spec.fit, "no inputs measured for this layer",
                  "a linear layer of a block, and a calibration text", "--calib FILE; or fit=lsq for this layer");
    if (asks_for_asymmetric(spec)) return HessianUse::kAsymmetric;
    return spec.fit == "wls" ? HessianUse::kWeights : spec.fit == "gptq" ? HessianUse::kFeedback : HessianUse::kRefit;
  }
  if (spec.fit != "auto" || hessian == nullptr) return HessianUse::kNone;
  return is_asymmetric(spec) && hessian->has_target() ? HessianUse::kAsymmetric : HessianUse::kRefit;
}

Result<QTensor> fit_to_outputs(const QTensor& source, const FitOptions& options, const LayerInput& input,
                               HessianUse use, ThreadPool& pool, LayerFit& fit) {
  const auto w = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(source.n * source.k));
  pool.parallel_for(source.n, 16, [&](int64_t begin, int64_t end, int) {
    dequantize_rows(source, begin, end - begin, w.get() + begin * source.k);
  });
  FeedbackOptions feedback;
  if (use == HessianUse::kFeedback) feedback.refine_rounds = 0;
  if (use == HessianUse::kAsymmetric) feedback.shift = kShift;
  FeedbackReport report;
  const FeedbackInput* const factored = trellis_of(options.format) == nullptr ? input.factored : input.in_order;
  auto values = factored != nullptr
                    ? fit_with_feedback(w.get(), source.n, source.k, options, *factored, feedback, pool, &report)
                    : fit_with_feedback(w.get(), source.n, source.k, options, *input.hessian, feedback, pool, &report);
  if (!values) return tl::unexpected<Error>(std::move(values.error()));
  fit = {report.weights.rel_error, report.output_error};
  return pack(*values);
}

}  // namespace

bool asks_for_asymmetric(const QuantizeSpec& spec) {
  return !spec.keep && (spec.fit == "asymmetric" || spec.fit == "align");  // the second is its old name
}

bool is_asymmetric(const QuantizeSpec& spec) {
  if (spec.keep || spec.fit != "auto") return asks_for_asymmetric(spec);
  return spec.format == FormatId::kFp8 || format_info(spec.format).bits_per_code() <= kMostAsymmetricBits;
}

bool needs_hessian(const QuantizeSpec& spec) {
  return asks_for_asymmetric(spec) || (!spec.keep && (spec.fit == "wls" || spec.fit == "gptq" || spec.fit == "refit"));
}

bool needs_factor(const QuantizeSpec& spec) {
  return asks_for_asymmetric(spec) || (!spec.keep && (spec.fit == "auto" || spec.fit == "gptq" || spec.fit == "refit"));
}

FactoredInputs::FactoredInputs(const HessianByWeight& hessian, const std::vector<std::string>& weights,
                               ThreadPool& pool, const std::vector<std::string>& on_trellis)
    : hessian_(hessian) {
  struct Wanted {
    std::shared_ptr<const InputHessian> hessian;
    FeedbackOptions options;
    std::unique_ptr<FeedbackInput> made;
  };
  std::vector<Wanted> inputs;
  const auto want = [&](const std::vector<std::string>& names, bool act_order) {
    for (const std::string& name : names) {
      const auto it = hessian.find(name);
      if (it == hessian.end()) continue;
      const auto same = [&](const Wanted& w) { return w.hessian == it->second && w.options.act_order == act_order; };
      if (std::ranges::none_of(inputs, same)) {
        inputs.push_back({it->second, {}, nullptr});
        inputs.back().options.act_order = act_order;
      }
    }
  };
  want(weights, true);
  want(on_trellis, false);
  std::ranges::stable_sort(inputs, std::greater<>(),
                           [](const Wanted& w) { return w.hessian->k; });  // the longest first
  const auto make = [](Wanted& w, ThreadPool* own) {
    if (auto input = FeedbackInput::make(w.hessian, w.options, own))
      w.made = std::make_unique<FeedbackInput>(std::move(*input));
  };
  // Large inputs come first: the whole pool for each, and for one alone; a thread for each of the others.
  size_t large = 0;
  while (large < inputs.size() && (inputs[large].hessian->k > kMostColumnsOfAThread || inputs.size() == 1))
    make(inputs[large++], &pool);
  pool.parallel_for(static_cast<int64_t>(inputs.size() - large), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) make(inputs[large + static_cast<size_t>(i)], nullptr);
  });
  for (Wanted& w : inputs)
    if (w.made) (w.options.act_order ? factored_ : in_order_).emplace(w.hessian.get(), std::move(*w.made));
}

LayerInput FactoredInputs::of(const std::string& weight) const {
  const auto it = hessian_.find(weight);
  if (it == hessian_.end()) return {};
  const auto find = [&](const auto& inputs) {
    const auto found = inputs.find(it->second.get());
    return found == inputs.end() ? nullptr : &found->second;
  };
  return {it->second.get(), find(factored_), find(in_order_)};
}

Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const LayerInput& input, ThreadPool& pool, LayerFit& fit,
                          const std::function<void()>& drop_pages) {
  const InputHessian* const hessian = input.hessian;
  const auto named = [&](Result<QTensor> w) {
    if (!w) w.error().where = name + ": " + w.error().where;
    return w;
  };
  FitOptions options;
  options.format = spec.format;
  options.scaling = scaling_of(spec);
  options.seed = seed;
  const auto use = hessian_use(spec, hessian);
  if (!use) return named(tl::unexpected<Error>(use.error()));
  if (*use == HessianUse::kNone) {
    LOWBIT_TRY_ASSIGN(options.method, parse_fit_method(spec.fit));
  }
  if (*use == HessianUse::kFeedback || *use == HessianUse::kRefit || *use == HessianUse::kAsymmetric)
    return named(fit_to_outputs(source, options, input, *use, pool, fit));

  std::atomic<int64_t> elements = 0;
  const RowReader rows = [&](int64_t first, int64_t count, float* out) -> Status {
    dequantize_rows(source, first, count, out);
    const int64_t before = elements.fetch_add(count * source.k);
    if (drop_pages && before / kPagesElements != (before + count * source.k) / kPagesElements) drop_pages();
    return {};
  };
  const std::vector<float> importance = *use == HessianUse::kWeights ? hessian->diagonal() : std::vector<float>();
  FitReport report;
  auto w =
      fit_and_pack(rows, source.n, source.k, options, importance.empty() ? nullptr : importance.data(), pool, &report);
  fit.rel_error = report.rel_error;
  return named(std::move(w));
}

}  // namespace lowbit
