#pragma once
// One block of a model for calibration: as the source has it, and as it is once some of its weights are quantized.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arch/spec.h"
#include "backend/backend.h"
#include "base/threads.h"
#include "model/source.h"
#include "runtime/forward.h"

namespace lowbit {

/// A block's weights as the source has them, for products with f32 rows. Each tensor is decoded once: what is prepared
/// for the backend is what fits see. Steps point into it, so it stays where it is. The source must outlive it.
class SourceBlock {
 public:
  /// Errors: those of TensorLoader; kCorrupt (pages of the file were lost).
  static Result<std::shared_ptr<SourceBlock>> load(const WeightSource& source, const ModelSpec& spec, int64_t index,
                                                   Backend& backend, ThreadPool& pool);
  SourceBlock(const SourceBlock&) = delete;
  SourceBlock& operator=(const SourceBlock&) = delete;
  ~SourceBlock() { drop_tensors(); }

  int64_t index() const { return index_; }         // in the model
  const ModelSpec& spec() const { return spec_; }  // of a model of this block alone
  const BlockSpec& block() const { return spec_.blocks.front(); }
  /// kBlockSteps of them; keys and values are those of layer 0.
  const std::vector<Step>& steps() const { return steps_; }
  const Weight* weight(LinearRole role) const { return weights_.blocks.front().of(role); }
  std::string name(const LinearSpec& linear) const { return weight_name(index_, linear.name); }
  /// A decoded tensor, valid until drop_tensors(); null: not a tensor of this block.
  const QTensor* tensor(const std::string& name) const;
  /// And the file's pages that they borrow.
  void drop_tensors();
  /// [n] or empty.
  std::vector<float> bias_of(const LinearSpec& linear) const;

 private:
  SourceBlock(const WeightSource& source, ModelSpec spec, int64_t index)
      : source_(&source), spec_(std::move(spec)), index_(index) {}

  const WeightSource* source_;
  ModelSpec spec_;
  int64_t index_;
  ModelWeights weights_;
  std::map<std::string, std::vector<float>> biases_;
  std::map<std::string, QTensor> tensors_;
  std::vector<Step> steps_;
};

/// A program of a block's steps, with taps. Weights may be replaced one by one; the source's block is shared with other
/// programs.
class BlockProgram {
 public:
  BlockProgram(std::shared_ptr<const SourceBlock> block, Backend& backend, ThreadPool& pool)
      : block_(std::move(block)), backend_(&backend), pool_(&pool), steps_(block_->steps()) {}

  const SourceBlock& source() const { return *block_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// `w` in place of the layer's weight, with the source's bias. Errors: kShapeMismatch, kCorrupt, those of
  /// Backend::prepare(), with the tensor's name.
  Status replace(const LinearSpec& linear, const QTensor& w);
  /// Compiled anew after weights were replaced, which copies none of them.
  Result<const Program*> compiled();

 private:
  std::shared_ptr<const SourceBlock> block_;
  Backend* backend_;
  ThreadPool* pool_;
  std::vector<Step> steps_;
  std::map<LinearRole, std::unique_ptr<Weight>> replaced_;
  std::unique_ptr<Program> program_;
};

}  // namespace lowbit
