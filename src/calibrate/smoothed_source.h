#pragma once
// A model whose activations' outliers have moved into the weights: other weights, the same function.

#include <memory>

#include "arch/spec.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "runtime/engine.h"

namespace lowbit {

/// A model of the same function with smooth_factors() between each norm of a block and the layers that read its
/// outputs: the norm's weights are divided by the factors, the layers' columns multiplied. Inputs are measured on at
/// most 8K tokens of the calibration text. Tensors are computed at load(), as f32. `source` must outlive the result.
/// Errors: those of check_smoothable() and Calibration, kShapeMismatch.
Result<std::unique_ptr<WeightSource>> smooth_source(const WeightSource& source, const QuantizeOptions& options,
                                                    const Engine& engine);

/// Whether that is the same function. Errors: kUnsupported, with the norm (an offset; something between it and its
/// readers).
Status check_smoothable(const ModelSpec& spec);

}  // namespace lowbit
