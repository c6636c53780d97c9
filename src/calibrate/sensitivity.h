#pragma once
// The measured loss of each part of a model at each size; and the sizes that fit a budget best.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calibrate/recipe.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "runtime/engine.h"

namespace lowbit {

/// The format of each linear layer, by tensor name, and why: a choice for each part, in the order of the blocks.
struct Allocation {
  std::map<std::string, QuantizeSpec> specs;
  std::vector<PartChoice> choices;
  std::vector<PartChoice> embedding_head;  // embedding and head, which the budget does not count
};

/// "codebook4 g32 double", as choices name a size.
std::string size_name(const QuantizeSpec& spec);

/// One of options.candidates (without any: options.linear in every format worth it) for each part of a block, so that
/// the linear layers take at most options.target_bpw bits per weight together. Layers that a rule of the recipe names
/// keep what it says and count with it. q and k go together, gate and up too.
///
/// With options.embedding_head_candidates embedding and head are chosen too, so that each costs at most a twentieth of
/// the divergence of all linear layers: choose_embedding_head().
///
/// Each part's loss at a size is  KLD(part at 3 bits) * output error(size) / output error(3 bits).  The KL divergence
/// of the logits on a few hundred tokens of the text is measured for the parts of a block together, all else
/// unquantized, and divided among them by the errors that each alone leaves at the block's end. Output errors are of
/// some rows of each layer, rounded to the size; what error feedback saves of a layer's is measured once. Losses add up
/// as long as they are small; for 1 and 2 bits they are an order, not a prediction. Holds the whole model in memory.
/// Deterministic. Errors: kInvalidArgument (a budget below the smallest formats), those of calibration.
Result<Allocation> allocate_formats(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                                    const QuantizeOptions& options);

nlohmann::json allocation_json(const Allocation& allocation);
/// Empty when it is not what allocation_json wrote.
Allocation parse_allocation_json(const nlohmann::json& json);

}  // namespace lowbit
