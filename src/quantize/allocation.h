#pragma once
// Which of several sizes each part of a model gets, under a budget for all of them.

#include <cstdint>
#include <vector>

#include "lowbit/error.h"

namespace lowbit {

struct SizeChoice {
  int64_t bytes = 0;
  double loss = 0;  // what the model loses by this choice, in any unit that adds up
};

/// One choice per part, so that bytes sum to at most `budget` and losses to little: the cheapest ones first, then
/// always the step along a part's convex hull that saves most loss per byte; at the end whatever single steps still
/// fit. Optimal where the budget is met exactly by hull steps, at most one step off elsewhere. Deterministic; ties go
/// to the earlier part. Errors: kInvalidArgument (the smallest choices exceed the budget, a part without choices, a
/// loss that is not finite).
Result<std::vector<size_t>> allocate_sizes(const std::vector<std::vector<SizeChoice>>& parts, int64_t budget);

/// The choices on the convex hull of a part's losses over bytes, smallest first: those that some budget takes.
std::vector<size_t> worthwhile_sizes(const std::vector<SizeChoice>& choices);

}  // namespace lowbit
