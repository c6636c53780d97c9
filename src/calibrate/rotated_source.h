#pragma once
// A model whose residual stream and values are rotated: other weights, the same function.

#include <cstdint>
#include <memory>

#include "arch/spec.h"
#include "model/source.h"

namespace lowbit {

/// A model of the same function with x replaced by T x in the residual stream (T of hidden_size, see Rotation) and
/// every head's values by T' v (T' of head_dim, a plain Hadamard where that is a power of two). Norm weights move into
/// the layers behind them, since only a norm without weights commutes with T; the head therefore parts from a tied
/// embedding. Tensors are computed at load(), as f32. `source` must outlive the result. Errors: those of
/// parse_model_spec() and check_rotatable().
Result<std::unique_ptr<WeightSource>> rotate_source(const WeightSource& source, uint64_t seed);

/// Whether that is the same function. Biases are: they turn with the outputs they belong to. Errors: kUnsupported, with
/// the norm (an offset; one between attention and the layer behind it, or between a layer and the stream).
Status check_rotatable(const ModelSpec& spec);

}  // namespace lowbit
