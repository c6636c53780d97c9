#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lowbit {

/// Log-probabilities of one position, by docs/numerics.md#log-probabilities: of `token`, and of the `k` likeliest in
/// `top`, which is used again. The lower id is first among equals. `logits`: at least one, and one for `token`.
float token_logprobs(std::span<const float> logits, int32_t token, int64_t k,
                     std::vector<std::pair<int32_t, float>>& top);

}  // namespace lowbit
