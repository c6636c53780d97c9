#pragma once
// How a token is chosen from logits, as numbers: what a sampler asks of a device. docs/numerics.md#sampling.

#include <cstdint>

namespace lowbit {

struct TokenRule {
  float temperature = 0;      // 0: the largest logit, the lowest id among equals
  int32_t top_k = 0;          // the k largest; 0: all
  uint64_t top_p = kAllOfIt;  // the fewest of them that weigh this part of 2^32
  uint64_t min_p = 0;         // of those, the ones with at least this token_weight()
  uint64_t random = 0;        // Rng::next(), of which Rng::below() makes the draw; with a temperature
  static constexpr uint64_t kAllOfIt = uint64_t{1} << 32;
};

/// The most recent tokens of a sequence that a device penalizes.
inline constexpr int64_t kMostRecent = 1024;
/// The most of the likeliest tokens that a device names beside the chosen one.
inline constexpr int64_t kMostLikely = 20;

/// `part` / 2^32 of a sum of weights.
constexpr uint64_t part_of_weight(uint64_t total, uint64_t part) {
  return (total >> 32) * part + (((total & 0xffffffffu) * part) >> 32);
}

}  // namespace lowbit
