#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/step.h"

namespace lowbit {

/// Log-probabilities of one position, by docs/numerics.md#log-probabilities: of `token`, and of the `k` likeliest in
/// `top`, which is used again. The lower id is first among equals, NaN behind all numbers. `logits`: at least one, and
/// one for `token`.
float token_logprobs(std::span<const float> logits, int32_t token, int64_t k,
                     std::vector<std::pair<int32_t, float>>& top);
/// As above, from what a device has found in the logits.
float token_logprobs(const TokenLogits& of, std::vector<std::pair<int32_t, float>>& top);

}  // namespace lowbit
