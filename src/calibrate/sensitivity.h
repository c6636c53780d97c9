#pragma once
// What each part of a model loses at each size, measured; and the sizes that fit a budget best.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibrate/recipe.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "runtime/engine.h"

namespace lowbit {

/// What each linear layer gets, by tensor name, and why: a choice for each part, in the order of the blocks.
struct Allocation {
  std::map<std::string, QuantizeSpec> specs;
  std::vector<PartChoice> choices;
};

/// One of options.candidates (without any: options.linear in every format worth it) for each part of a block, so that the linear layers
/// take at most options.target_bpw bits per weight together. Layers that a rule of the recipe names keep what it says and count with it.
/// q and k go together, gate and up too.
///
/// Each part's loss at a size is  KLD(part alone at 3 bits) * output error(size) / output error(3 bits):  the KL divergence of the
/// logits on a few hundred tokens of the text, measured with all else unquantized, scaled by the error of the layer's outputs after
/// error feedback. Losses add up as long as they are small; for 1 and 2 bits they are an order, not a prediction.
/// Holds the whole model in memory. Deterministic. Errors: kInvalidArgument (a budget below the smallest formats), those of
/// calibration.
Result<Allocation> allocate_formats(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                                    const QuantizeOptions& options);

nlohmann::json allocation_json(const Allocation& allocation);
/// Empty when it is not what allocation_json wrote.
Allocation parse_allocation_json(const nlohmann::json& json);

}  // namespace lowbit
