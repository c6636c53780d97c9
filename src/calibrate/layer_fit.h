#pragma once

#include <cstdint>
#include <functional>
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
  std::optional<double> output_error;  // with a Hessian
};

/// Hessian of the inputs by weight name ("model.layers.0.mlp.up_proj.weight"); layers with the same input share theirs.
using HessianByWeight = std::map<std::string, std::shared_ptr<const InputHessian>>;

/// A layer's input as far as it was measured.
struct LayerInput {
  const InputHessian* hessian = nullptr;
  const FeedbackInput* factored = nullptr;  // the same, when they are
  const FeedbackInput* in_order = nullptr;  // for trellises: factored with the columns in their own order
};

/// Inputs of a block, factored for error feedback: each once, all at the same time.
class FactoredInputs {
 public:
  /// Factors the inputs of `weights`, and in their own order those of `on_trellis`. One that cannot be factored is left
  /// to the fit that will say so, with its layer's name.
  FactoredInputs(const HessianByWeight& hessian, const std::vector<std::string>& weights, ThreadPool& pool,
                 const std::vector<std::string>& on_trellis = {});
  LayerInput of(const std::string& weight) const;

 private:
  const HessianByWeight& hessian_;
  std::map<const InputHessian*, FeedbackInput> factored_, in_order_;
};

/// Whether a layer that is fitted like this makes up for the errors of the layers before it, where those are known
/// (InputHessian::has_target()): auto does for few values and fp8. asks_for_asymmetric(): it was asked for.
bool is_asymmetric(const QuantizeSpec& spec);
bool asks_for_asymmetric(const QuantizeSpec& spec);
/// Whether a layer cannot be fitted like this without its input's Hessian.
bool needs_hessian(const QuantizeSpec& spec);
/// Whether a layer that is fitted like this needs its input factored.
bool needs_factor(const QuantizeSpec& spec);

/// One weight in the format a spec asks for; `input` may be empty. Errors: those of the fitters, with the tensor's
/// name; kInvalidArgument for a fit that needs a Hessian where there is none.
/// drop_pages(), where there is one: from time to time, by any thread, while rows are read, so that a mapped source of
/// any size takes little memory; what it drops may be read again.
Result<QTensor> fit_layer(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                          const LayerInput& input, ThreadPool& pool, LayerFit& fit,
                          const std::function<void()>& drop_pages = {});

}  // namespace lowbit
