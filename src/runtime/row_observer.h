#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arch/spec.h"

namespace lowbit {

/// Sees what one sequence computes: of each pass its tokens, then its rows at every tap in run order, then its logits.
/// An observer cannot stop the pass: other sequences may be in it.
class RowObserver {
 public:
  RowObserver() = default;
  RowObserver(const RowObserver&) = delete;
  RowObserver& operator=(const RowObserver&) = delete;
  virtual ~RowObserver() = default;
  /// `tokens` at positions from `position` on; logits are wanted of `count` of them, from the `first` on.
  virtual void begin(int64_t position, std::span<const int32_t> tokens, int64_t first, int64_t count) = 0;
  /// x [m, k] before it is multiplied: rows of all tokens, but of those whose logits are wanted at the last tap. May
  /// come in parts.
  virtual void rows(int tap, const float* x, int64_t m, int64_t k) = 0;
  /// [m, vocab]
  virtual void logits(const float* logits, int64_t m, int64_t vocab) = 0;
};

/// The name of a tap: "blocks.3.attn_norm" (the input of q, k and v), "...attn_out", "...ffn_norm", "...ffn_act" (the
/// input of the down projection), and "final_norm".
struct TapName {
  std::string name;
  int64_t width = 0;
};
/// By tap: see tap_of().
std::vector<TapName> tap_names(const ModelSpec& spec);

}  // namespace lowbit
