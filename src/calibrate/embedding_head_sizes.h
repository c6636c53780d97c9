#pragma once
// The sizes of a model's token embedding and head, which no budget of the linear layers counts.

#include "calibrate/block_probe.h"
#include "calibrate/sensitivity.h"

namespace lowbit {

/// For the token embedding (and the head, where it is tied to it), and for a head of its own: the first of
/// options.embedding_head_candidates, smallest first, that costs at most `limit` of divergence; where none does, what
/// options.embedding and options.head say. One that a rule of the recipe names keeps what it says. Added to `to.specs`
/// and `to.embedding_head`. Errors: those of fits and of the probe.
Status choose_embedding_head(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                             const QuantizeOptions& options, BlockProbe& probe, double limit, Allocation& to);

}  // namespace lowbit
