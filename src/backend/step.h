#pragma once
// The forward pass as data: a short list of steps over rows in a workspace. runtime/ builds it from a model's
// description; backends compile it once and run it, or any range of it.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "arch/spec.h"
#include "backend/profile.h"
#include "backend/x_spec.h"
#include "format/format.h"
#include "kernels/token_rule.h"
#include "ops/kv_cache.h"

namespace lowbit {

/// Rows of a workspace: [rows, width] f32 to those who look. A backend may keep them in another form between two of its
/// steps.
using Slot = uint8_t;
inline constexpr Slot kLogits = 255;  // no slot: the logits that the batch asks for

/// RMS norm by weight [n].
struct Norm {
  std::vector<float> weight;
  float eps = 0;
};

/// A weight as people see it.
struct WeightInfo {
  std::string name, kernel, reason;
  FormatId format = FormatId::kF32;
  int64_t n = 0, k = 0, resident_bytes = 0;
  Activation activation = Activation::kF32;
  int64_t activation_group = 0;  // columns of x per scale; 0: one scale per row
};

/// A weight that a backend has prepared: for products, for its rows (an embedding), or for both. Immutable.
class Weight {
 public:
  Weight() = default;
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;
  virtual ~Weight() = default;
  virtual WeightInfo info() const = 0;
};

/// The input of a product: rows of a slot, normed and transformed first where it says so.
struct StepInput {
  Slot from = 0;
  const Norm* norm = nullptr;
  int64_t hadamard = 0;  // > 0: each so many columns pass a Hadamard transform
  int tap = -1;          // >= 0: what an observer knows this input by
};

/// rows W^T + bias to a slot, or added to it.
struct Product {
  const Weight* weight = nullptr;
  Slot to = 0;
  bool add = false;
  const Norm* norm = nullptr;  // of the input's rows, for this product alone
};

/// Rows of the table for the batch's tokens.
struct EmbedStep {
  const Weight* table = nullptr;
  Slot to = 0;
};
/// Products of the same input: q, k and v.
struct LinearStep {
  StepInput in;
  std::vector<Product> out;
  ModelStep label = ModelStep::kQkv;
};
/// act(gate) * up of the same input.
struct GluStep {
  StepInput in;
  const Weight *gate = nullptr, *up = nullptr;
  Glu glu = Glu::kSilu;
  Slot to = 0;
  const Norm *gate_norm = nullptr, *up_norm = nullptr;  // as Product::norm
};
/// Norms of heads, rotation, the new rows of the cache, attention. q and k are lost.
struct AttentionStep {
  int layer = 0;
  const AttentionSpec* spec = nullptr;
  const Norm *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]
  Slot q = 0, k = 0, v = 0, to = 0;
};
/// The rows whose logits are wanted come to the front of a slot; the steps behind it see them alone, and do nothing
/// without any.
struct GatherStep {
  Slot slot = 0;
};
using Step = std::variant<EmbedStep, LinearStep, GluStep, AttentionStep, GatherStep>;

/// Takes logits row by row as they are computed, so that they need no room of their own: row `row` of those that a call
/// wants. It may overwrite them. Called once a row, in any order, on several threads at once, in the middle of a pass:
/// it must not use the model's threads.
using LogitsSink = std::function<void(int64_t row, std::span<float> logits)>;

/// Logit biases and a token mask where a backend's kernels read them (Workspace::place_limits()). Immutable.
class TokenLimits {
 public:
  TokenLimits() = default;
  TokenLimits(const TokenLimits&) = delete;
  TokenLimits& operator=(const TokenLimits&) = delete;
  virtual ~TokenLimits() = default;
};

/// Changes of a row's logits before its token is chosen: docs/numerics.md#sampling.
struct LogitChanges {
  const TokenLimits* limits = nullptr;
  /// Tokens that are penalized, up to kMostRecent: of a choice behind the first of its array the last ones of the
  /// first's. And the tokens of so many choices before it in the array.
  std::span<const int32_t> recent = {};
  int64_t later = 0;
  float repeat = 1, frequency = 0, presence = 0;
};

/// The parts of a token's log-probabilities: docs/numerics.md#log-probabilities.
struct TokenLogits {
  int64_t count = 0;  // wanted: so many of the likeliest tokens, up to kMostLikely
  float chosen = 0, largest = 0;
  double sum = 0;                              // of exponentials
  std::vector<std::pair<int32_t, float>> top;  // the likeliest first
};

/// The token behind a row, chosen by a backend that does so (Workspace::chooses_tokens()) as a Sampler would; or none
/// (-1), and the first token whose logit is NaN; or neither, where the limits leave no token.
struct TokenChoice {
  TokenRule rule;
  LogitChanges changes = {};
  int32_t token = -1, nan = -1;
  TokenLogits* logits = nullptr;  // wanted, too; of logits that nothing changes
};

/// Rows [row, row + rows) of a batch, and where their logits go: to `logits` [rows, vocab], or to a sink, which knows
/// the first of them as row `sink_row`. Or they stay where they are, and `choice` of the one row comes back, or one for
/// each of the batch's passes.
struct WantedRows {
  int64_t row = 0, rows = 0;
  float* logits = nullptr;
  const LogitsSink* sink = nullptr;
  int64_t sink_row = 0;
  TokenChoice* choice = nullptr;
};

/// The input of one pass: tokens of several sequences, prompts and single tokens mixed. The caches have reserved their
/// positions.
struct Batch {
  std::span<const int32_t> tokens;          // [m]; only an EmbedStep looks at them
  std::span<const SequenceRows> sequences;  // rows follow each other from 0 to m
  std::span<const WantedRows> wanted;       // ascending
  /// More than one: each sequence has one row, and each row choices, so many. The backend goes on with the tokens that
  /// it has chosen; the positions of all passes are reserved. After a NaN the rest of a row's choices mean nothing.
  int64_t passes = 1;
  int64_t rows() const { return sequences.empty() ? 0 : sequences.back().row + sequences.back().rows; }
};

}  // namespace lowbit
