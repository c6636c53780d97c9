#pragma once
// How the next token is chosen.

#include <cstdint>

namespace lowbit {

/// Applied in this order: repeat penalty, top-k, top-p, min-p, temperature. The defaults of `lowbit
/// run`.
struct SamplerOptions {
  float temperature = 0.8f;    // 0: the largest logit, the lowest id among equals
  int64_t top_k = 40;          // the k largest; 0: all
  float top_p = 0.95f;         // the fewest whose probabilities reach this sum; 1: all
  float min_p = 0.05f;         // those with at least this part of the largest probability; 0: all
  float repeat_penalty = 1;    // logits of recent tokens: positive ones / penalty, negative ones * penalty; 1: none
  int64_t repeat_window = 64;  // how many tokens are recent
  uint64_t seed = 0;
};

}  // namespace lowbit
