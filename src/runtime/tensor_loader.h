#pragma once
// Tensors of a source, prepared for a backend: each is fetched, checked and decoded once, and released before the next
// one.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/threads.h"
#include "model/source.h"
#include "runtime/forward.h"

namespace lowbit {

class TensorLoader {
 public:
  /// Gets every tensor once it has been prepared, and lets the source have its pages back. An error ends the load.
  using Done = std::function<Status(const std::string& name, QTensor w)>;

  /// All must outlive the object.
  TensorLoader(const WeightSource& source, Backend& backend, ThreadPool& pool, Done done)
      : source_(source), backend_(backend), pool_(pool), done_(std::move(done)) {}

  // Errors: kNotFound (a tensor is missing), kShapeMismatch, kCorrupt (NaN or infinity in a weight or scale),
  // kUnsupported, kOutOfMemory, and those of `done`. Each names its tensor.
  Status load_vector(const std::string& name, int64_t n, std::vector<float>& out);
  Status load_norm(const std::string& name, const NormSpec& spec, Norm& out);
  /// W [n, k].
  Status load_weight(const std::string& name, int64_t n, int64_t k, std::vector<float> bias, const XPolicy& x,
                     WeightUse use, std::unique_ptr<Weight>& out);
  /// Norms, biases and linear layers. `index`: of the block in the source.
  Status load_block(int64_t index, const BlockSpec& spec, const XPolicy& x, BlockWeights& out);

 private:
  Status load_linear(int64_t index, const LinearSpec& linear, const XPolicy& x, BlockWeights& block);

  const WeightSource& source_;
  Backend& backend_;
  ThreadPool& pool_;
  Done done_;
};

/// Backend::prepare() for what choose_x() gives the weight; errors name the tensor.
Result<std::unique_ptr<Weight>> prepare_weight(Backend& backend, const std::string& name, const QTensor& w,
                                               std::vector<float> bias, const XPolicy& x, WeightUse use);

}  // namespace lowbit
