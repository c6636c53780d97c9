#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/threads.h"
#include "format/qtensor.h"
#include "lowbit/quantize.h"
#include "quantize/feedback.h"

namespace lowbit {

struct LayerFit {
  double rel_error = 0;
  std::optional<double> output_error;  // with moments
};

/// Moments of the inputs by weight name ("model.layers.0.mlp.up_proj.weight"); layers with the same input share theirs.
using MomentsByWeight = std::map<std::string, std::shared_ptr<const SecondMoments>>;

/// What is known of a layer's input.
struct LayerInput {
  const SecondMoments* moments = nullptr;
  const FeedbackInput* factored = nullptr;  // the same, when they are
  const FeedbackInput* in_order = nullptr;  // for trellises: factored with the columns in their own order
};

/// Inputs of a block, factored for error feedback: each once, all at the same time.
class FactoredInputs {
 public:
  /// Those of `weights`, and in their own order those of `on_trellis`. One that cannot be factored is left to the fit
  /// that will say so, with its layer's name.
  FactoredInputs(const MomentsByWeight& moments, const std::vector<std::string>& weights, ThreadPool& pool,
                 const std::vector<std::string>& on_trellis = {});
  LayerInput of(const std::string& weight) const;

 private:
  const MomentsByWeight& moments_;
  std::map<const SecondMoments*, FeedbackInput> factored_, in_order_;
};

/// Whether a layer that is fitted like this aims at the outputs that the source has on its own stream where that is
/// known (SecondMoments::deviation): auto does for few values. must_align(): it was asked for.
bool aligns(const QuantizeSpec& spec);
bool must_align(const QuantizeSpec& spec);
/// Whether a layer cannot be fitted like this without its input's moments.
bool needs_moments(const QuantizeSpec& spec);
/// Whether a layer that is fitted like this needs its input factored.
bool needs_factor(const QuantizeSpec& spec);

/// One weight in the format a spec asks for; `input` may be empty. Errors: those of the fitters, with the tensor's
/// name; kInvalidArgument for a fit that needs moments where there are none.
Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const LayerInput& input, ThreadPool& pool, LayerFit& fit);

}  // namespace lowbit
