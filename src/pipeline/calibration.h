#pragma once
// What a text says about a model's layers: the second moments of each linear layer's inputs, block by block, each block seeing
// what the quantized blocks before it make of the text.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arch/spec.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "pipeline/block_runner.h"
#include "pipeline/engine.h"
#include "pipeline/held_back.h"
#include "pipeline/layer_fit.h"
#include "quantize/feedback.h"

namespace lowbit {

class Calibration {
 public:
  /// Cuts windows of `context` tokens, evenly spread over the text, and holds its last ones back (a text of less than four windows
  /// has none to spare: the first is taken for both). `source` must outlive the object. Errors: kNotFound, kIo (the text);
  /// kInvalidArgument (a text shorter than one window); what the source and its tokenizer
  /// and BlockRunner::make say.
  /// `follows`: the source's own stream is kept too, for follow() and measure_input().
  static Result<Calibration> start(const WeightSource& source, const CalibrationOptions& options, bool follows,
                                   const Engine& engine);

  int64_t blocks() const { return spec_.block_count(); }
  /// Of a block: see measure_input().
  size_t inputs(int64_t block) const { return inputs_of(spec_.blocks[static_cast<size_t>(block)]).size(); }
  int64_t tokens() const { return windows_ * context_; }
  int64_t context() const { return context_; }
  /// The first n hidden states of the first window, before the next block. n <= context().
  Result<std::vector<float>> first_rows(int64_t n) const;
  const std::string& text_sha256() const { return text_sha256_; }
  HeldBack& held_back() { return held_back_; }

  /// Called now and then in measure() and advance() with the share of the call that is done; false stops it with kCancelled.
  void set_progress(std::function<bool(double share)> progress) { progress_ = std::move(progress); }

  /// Runs block i as the source has it. Errors: kInvalidArgument when an activation is NaN or infinite.
  Result<MomentsByWeight> measure(int64_t block);

  /// Gives up the source's stream.
  void stop_following() { source_states_ = Buffer(); }
  /// In place of measure(), for fits that aim at what the source's layers give on its own stream: follow(), then measure_input() for
  /// each of its inputs(). `weights`: those of the block that are fitted already; the others are the source's.
  Status follow(int64_t block);
  Result<MomentsByWeight> measure_input(int64_t block, size_t which, const std::map<std::string, QTensor>& weights);

  /// Runs block i with `weights` in place of the source's; what comes out is what block i + 1 will see. `observer` sees the inputs of its
  /// layers.
  Status advance(int64_t block, const std::map<std::string, QTensor>& weights, const LinearObserver& observer = {});

  /// In place of measure() for a block whose weights were found earlier; advance() comes next.
  Status skip_measuring(int64_t block);

 private:
  Status report(int64_t window) const;
  void share(SecondMoments measured, int64_t block, size_t which, MomentsByWeight& moments) const;

  const WeightSource* source_ = nullptr;
  ModelSpec spec_;
  int64_t windows_ = 0, context_ = 0;
  std::string text_sha256_;
  HeldBack held_back_;
  std::function<bool(double)> progress_;
  std::unique_ptr<BlockRunner> runner_;
  Buffer states_;         // [windows, context, hidden]: the inputs of the next block
  Buffer source_states_;  // the same of the source's own stream; empty: not followed
};

}  // namespace lowbit
