#pragma once
// Runs a text through a model for the Hessian of each linear layer's inputs, block by block, each block
// seeing what the quantized blocks before it make of the text.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arch/spec.h"
#include "backend/backend.h"
#include "calibrate/batch_room.h"
#include "calibrate/block_program.h"
#include "calibrate/held_out.h"
#include "calibrate/hidden_states.h"
#include "calibrate/layer_fit.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "quantize/feedback.h"
#include "runtime/engine.h"

namespace lowbit {

class Calibration {
 public:
  /// Cuts sequences of `context` tokens, evenly spread over the text or as given, and holds its last ones back (a text
  /// of less than four sequences has none to spare: the first is taken for both). `source` must outlive the object.
  /// Errors: kNotFound, kIo (the text); kInvalidArgument (a text shorter than one sequence); what the source and its
  /// tokenizer and make_backend() say. `asymmetric`: targets of fits will be the source's outputs on its own states,
  /// which are kept too, for measure_input(). `engine` must outlive the object.
  static Result<Calibration> start(const WeightSource& source, const CalibrationOptions& options, bool asymmetric,
                                   const Engine& engine);

  const ModelSpec& spec() const { return spec_; }
  int64_t blocks() const { return spec_.block_count(); }
  int64_t tokens() const { return sequences_ * context_; }
  int64_t context() const { return context_; }
  /// The first n hidden states of the first sequence, before the next block. n <= context(). Errors: as begin().
  Result<std::vector<float>> first_rows(int64_t n);
  /// Its tokens.
  const std::vector<TokenId>& first_tokens() const { return first_tokens_; }
  const std::string& text_sha256() const { return text_sha256_; }
  HeldOut& held_out() { return held_out_; }
  Backend& backend() { return *backend_; }

  /// Called now and then in what runs a block with the share of the call that is done; false stops it with kCancelled.
  void set_progress(std::function<bool(double share)> progress) { progress_ = std::move(progress); }
  /// Before the first block: fits will see the quantized states alone.
  void drop_source() { asymmetric_ = false; }

  // Blocks go by in their order. For each of them: begin(); measure(), or measure_input() for one input after the
  // other; replace() for what was fitted, before the next input is measured; advance().

  /// Loads a block, or takes one that is loaded; before the first of them the text's hidden states are made. Errors:
  /// those of SourceBlock::load(), kOutOfMemory.
  Status begin(int64_t block);
  Status begin(std::shared_ptr<const SourceBlock> block);
  /// A tensor of the block as the source has it, decoded; null: it has no such tensor.
  const QTensor* tensor(const std::string& name) const { return block_->tensor(name); }
  /// Runs the source's block on the quantized states, which stay before it. Errors: kInvalidArgument (NaN, infinity).
  Result<HessianByWeight> measure();
  /// measure(), and the states go on behind the block: where nothing is quantized.
  Result<HessianByWeight> measure_and_advance();
  /// For asymmetric calibration: brings both streams to an input of the block, and says how they differ there; for o
  /// and down, how they differ behind it. Its readers still have the source's weights.
  Result<HessianByWeight> measure_input(InputRole role);
  /// `w` in place of the source's.
  Status replace(const std::string& name, const QTensor& w);
  /// Runs what is left of the block, and the held-out sequences through it; what comes out is what the next block will
  /// see. `use` sees the inputs of its layers, in host memory.
  Status advance(const RowUse& use = {});
  /// After the last block: the held-out sequences, all that stays in memory.
  const HeldOut& finish();

 private:
  Status have_states();
  BeforeBatch report() const;
  HessianByWeight share(const InputSpec& input, InputHessian measured) const;
  Result<HessianByWeight> measure_with(const std::function<Status(const RowUse& use)>& run);

  const WeightSource* source_ = nullptr;
  const Engine* engine_ = nullptr;
  ModelSpec spec_;
  int64_t sequences_ = 0, context_ = 0;
  std::string text_sha256_;
  std::vector<TokenId> fitted_tokens_;  // [sequences, context], until there are states
  std::vector<TokenId> first_tokens_;
  bool asymmetric_ = false;
  std::function<bool(double)> progress_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<BatchRoom> source_room_, room_;
  HeldOut held_out_;
  HiddenStates states_;         // [sequences, context, hidden]: of the quantized blocks
  HiddenStates source_states_;  // the same of the source's blocks, if asymmetric
  BlockSpec room_for_;          // a block that the rooms were made for
  // State of the block that is under way.
  std::shared_ptr<const SourceBlock> block_;
  bool compared_ = false;  // the source's states have come through it
  std::unique_ptr<BlockProgram> source_program_, program_;
};

}  // namespace lowbit
