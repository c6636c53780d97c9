#pragma once
// How much a change of some layers of one block changes a model's logits.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "arch/spec.h"
#include "calibrate/batch_room.h"
#include "calibrate/block_program.h"
#include "calibrate/calibration.h"
#include "calibrate/hidden_states.h"
#include "model/source.h"
#include "ops/matmul.h"
#include "runtime/engine.h"

namespace lowbit {

/// Layers of a block with other weights, by role.
using ChangedLayers = std::map<LinearRole, QTensor>;

/// The source's blocks in memory, and what changing one of them does to the logits of the text's first tokens.
class BlockProbe {
 public:
  /// `text` begins and lends its backend; it and `engine` outlive the object. Errors: those of loading and of the
  /// backend.
  static Result<BlockProbe> make(const WeightSource& source, const Engine& engine, Calibration& text);

  const std::shared_ptr<const SourceBlock>& block(int64_t index) const { return blocks_[static_cast<size_t>(index)]; }

  /// Mean KL divergence of the logits that each part of a block costs, its layers being others than the source's. It is
  /// measured for all parts together, and each has the share of it that it has of the errors at the block's end: a
  /// block behind sees those alone. Blocks and, in a block, inputs of the parts come in the order in which they run; no
  /// part is empty.
  Result<std::vector<double>> divergences(int64_t index, const std::vector<ChangedLayers>& parts);

  /// Mean KL divergence of the logits with another token embedding and another head; null: the source's.
  Result<double> divergence_with(const QTensor* embedding, const QTensor* head);

 private:
  BlockProbe(const Engine& engine, Backend& backend, ModelSpec spec)
      : engine_(&engine), backend_(&backend), spec_(std::move(spec)) {}

  Result<double> divergence_of(const std::vector<float>& x, const MatmulPlan& head) const;
  double error_of(const std::vector<float>& x, const std::vector<float>& y) const;
  Status each_logits(const std::vector<float>& x, const MatmulPlan& head,
                     const std::function<void(int64_t row, std::span<float> log_probabilities)>& use) const;

  const Engine* engine_;
  Backend* backend_;
  ModelSpec spec_;
  int64_t rows_ = 0;
  std::vector<TokenId> tokens_;     // [rows]
  std::vector<float> first_;        // [rows, hidden]: their embeddings
  std::vector<float> norm_, base_;  // base_: [rows, vocab] log probabilities
  std::vector<std::shared_ptr<const SourceBlock>> blocks_;
  std::vector<BlockProgram> programs_;  // of them, as they are
  std::unique_ptr<BatchRoom> room_;
  HiddenStates states_;    // of the source, up to the part that was changed last
  HiddenStates part_;      // those of a part on their way out of its block
  HiddenStates together_;  // those of all parts on their way to the logits
  MatmulPlan head_;
};

}  // namespace lowbit
