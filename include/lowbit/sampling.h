#pragma once
// How the next token is chosen.

#include <cstdint>
#include <utility>
#include <vector>

namespace lowbit {

/// Applied in this order: logit bias, repeat penalty, frequency and presence penalty, token mask, top-k, top-p, min-p,
/// temperature: docs/numerics.md#sampling. The defaults of `lowbit run`.
struct SamplerOptions {
  float temperature = 0.8f;     // 0: the largest logit, the lowest id among equals
  int64_t top_k = 40;           // the k largest; 0: all
  float top_p = 0.95f;          // the fewest whose probabilities reach this sum; 1: all
  float min_p = 0.05f;          // those with at least this part of the largest probability; 0: all
  float repeat_penalty = 1;     // logits of recent tokens: positive ones / penalty, negative ones * penalty; 1: none
  float frequency_penalty = 0;  // logits of recent tokens: less this for each time that they are there
  float presence_penalty = 0;   // the same, once
  int64_t repeat_window = 64;   // how many tokens are recent, those of the prompt too
  uint64_t seed = 0;
  /// Added to the logits of these tokens; minus infinity: never that one.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  /// Bit i % 32 of word i / 32: token i may be chosen. Behind the last word: no. A word of no token: 0. Empty: all may.
  std::vector<uint32_t> token_mask = {};
};

}  // namespace lowbit
