#pragma once
// The sizes of a model's ends, its token embedding and its head, which no budget of the linear layers counts.

#include "calibrate/block_probe.h"
#include "calibrate/sensitivity.h"

namespace lowbit {

/// For the token embedding (and the head, where it is tied to it), and for a head of its own: the first of
/// options.end_candidates, smallest first, that costs at most `limit` of divergence; where none does, what
/// options.embedding and options.head say. Ends that a rule of the recipe names keep what it says. Added to `to.specs`
/// and `to.ends`. Errors: those of fits and of the probe.
Status choose_ends(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                   const QuantizeOptions& options, BlockProbe& probe, double limit, Allocation& to);

}  // namespace lowbit
