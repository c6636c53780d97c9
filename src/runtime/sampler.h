#pragma once
// Chooses the next token from logits.

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "kernels/token_rule.h"
#include "lowbit/error.h"
#include "lowbit/sampling.h"

namespace lowbit {

/// Deterministic: the same options, logits and accepted tokens give the same choices, on every device. Weights of
/// tokens are integers (token_weight() of kernels/token_weight.h), so are their sums and the draw:
/// docs/numerics.md#sampling.
class Sampler {
 public:
  /// Errors: kInvalidArgument (an option out of its range or not a number; it is named).
  static Result<Sampler> make(const SamplerOptions& options);

  /// Does not accept() the token by itself. Allocates only on the first call.
  /// Errors: kInvalidArgument (no logits, more than 2^23, a NaN among them, a bias or a mask of tokens that have none,
  /// or every token is forbidden).
  Result<int32_t> sample(std::span<const float> logits);

  /// The rule by which sample() would choose next, for a device that chooses instead. It advances the random sequence.
  TokenRule next_rule();
  /// Its changes of logits: by the options, and the tokens that are penalized now, the oldest first.
  const SamplerOptions& options() const { return options_; }
  bool penalizes() const;
  bool forbids() const { return !options_.logit_bias.empty() || !options_.token_mask.empty(); }
  /// The first token behind `tokens` that the mask allows, but for bits that only fill a word; -1: none.
  int64_t first_beyond(int64_t tokens) const;
  int64_t recent_count() const { return int64_t(recent_.size()); }
  void recent(std::vector<int32_t>& to) const;
  /// The errors of sample(): for logits of which that of `token` is the first NaN, where no token may be chosen.
  static tl::unexpected<Error> not_a_number(int64_t token);
  static tl::unexpected<Error> all_forbidden();

  /// Tells the penalties that `token` is now part of the text: prompt tokens too.
  void accept(int32_t token);
  /// Forgets the accepted tokens and starts the random sequence anew.
  void reset();

 private:
  struct Candidate {
    int32_t id;
    float logit;
    uint64_t weight;  // at temperature 1 until the draw
  };

  explicit Sampler(const SamplerOptions& options) : options_(options), rng_(options.seed) {}
  Result<std::span<const float>> adjust(std::span<const float> logits);
  void penalize();
  void mask();
  void keep_largest(std::span<const float> logits, size_t k);
  void keep_all(std::span<const float> logits, float largest);
  void keep_top_p();
  void keep_min_p();
  int32_t draw(float largest);
  bool drops_none(size_t tokens) const;
  int32_t draw_of_all(std::span<const float> logits, float largest);

  SamplerOptions options_;
  Rng rng_;
  std::vector<int32_t> recent_;  // a ring of repeat_window tokens
  size_t recent_next_ = 0;
  std::vector<int32_t> sorted_;        // `recent_` by id
  std::vector<float> adjusted_;        // logits after bias, penalties and mask
  std::vector<Candidate> candidates_;  // those that are still to be had
  std::vector<uint64_t> sums_;         // of weights, where no token is dropped
};

}  // namespace lowbit
