#pragma once
// A decoder-only transformer of the llama family: weights of any format in, logits out.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "format/qtensor.h"
#include "kernels/api.h"
#include "lowbit/error.h"
#include "model/linear.h"
#include "model/model_spec.h"
#include "model/profile.h"
#include "model/source.h"
#include "ops/attention.h"
#include "ops/kv_cache.h"

namespace lowbit {

struct LoadOptions {
  /// kInt8: layers whose weights are integers, or tables of them, take int8 activations (layer_activation()), all others f32.
  /// kF32: the exact path everywhere.
  Activation activation = Activation::kInt8;
  int64_t activation_group = 0;         // kInt8: columns of x per scale, see MatmulOptions; 0: one scale per row
  bool activations_as_trained = false;  // kInt8: trained_activation_group() of each layer in place of activation_group
  ActivationRounding rounding;          // kInt8: of the blocks' layers; the head's input keeps 8 bits
  Isa isa = Isa::kScalar;
  bool reference = false;  // the kernels of kernels/ref, whatever the ISA
  int threads = 1;
  bool tune = false;    // try cuts of products in the first calls of each shape, and keep the fastest
  int64_t context = 0;  // positions of a sequence; 0: what the model was trained for
  int64_t batch = 512;  // the most rows computed at once; less when the workspace would pass 32 MiB
  /// Loads this block alone, without embedding and head, for run_block().
  std::optional<int64_t> only_block;
  /// Called after each tensor; returning false stops the load with kCancelled.
  std::function<bool(int64_t bytes_done, int64_t bytes_total)> progress;
};

/// Which of a call's tokens need logits, counted from the call's first token.
struct LogitsWanted {
  enum class Kind { kNone, kLast, kRange };
  Kind kind = Kind::kLast;
  int64_t first = 0, count = 0;  // kRange

  static LogitsWanted none() { return {Kind::kNone, 0, 0}; }
  static LogitsWanted last() { return {Kind::kLast, 0, 0}; }
  static LogitsWanted range(int64_t first, int64_t count) { return {Kind::kRange, first, count}; }
};

struct LinearInfo {
  std::string name, kernel, reason;
  FormatId format;
  int64_t n, k, resident_bytes;
  Activation activation;
  int64_t activation_group;  // columns of x per scale; 0: one scale per row
};

class Transformer {
 public:
  /// Reads tensor by tensor, so that memory peaks at what the loaded model needs plus one tensor; the source may go away afterwards,
  /// except for what an embedding borrows (its bytes are kept alive by the QTensor itself).
  /// Errors: those of executable_spec_of and WeightSource::load; kNotFound (a tensor is missing), kShapeMismatch, kCorrupt (NaN or
  ///         infinity in a weight or scale), kInvalidArgument (context), kUnsupported, kOutOfMemory, kCancelled. Each names its tensor.
  static Result<std::unique_ptr<Transformer>> load(const WeightSource& source, const LoadOptions& options);

  const ModelSpec& spec() const { return spec_; }
  int64_t context() const { return context_; }
  int64_t batch() const { return batch_; }
  ThreadPool& pool() { return *pool_; }

  KvShape kv_shape() const { return {spec_.block_count(), attention_spec().kv_heads, attention_spec().head_dim}; }
  /// A cache of its own for one sequence of at most context() positions.
  Result<KvCache> make_cache() const;

  /// Runs `tokens` at positions cache.length()... and appends them to the cache.
  /// Shapes:   logits [rows wanted, vocab_size], row-major; may be empty for LogitsWanted::none().
  /// Numerics: same bits for any thread count, ISA, batch size and any cut of the tokens into calls.
  /// Errors:   kInvalidArgument (no tokens, an id outside the vocabulary, a range or buffer that does not fit, more positions than the
  ///           cache holds), kShapeMismatch (a cache of another model), kOutOfMemory. After an error the cache is as it was.
  /// One call at a time per Transformer.
  Status forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits);

  /// The block of a model loaded with `only_block`, on a whole sequence: x [m, hidden] at positions 0..m-1, in place. The
  /// cache is of make_cache() and emptied first. Errors: kInvalidArgument (more rows than context()), kOutOfMemory.
  /// With `stop_at` it ends where the observer has seen an input: 0 that of q, k and v, 1 of o, 2 of gate and up, 3 of down; x is
  /// then lost.
  Status run_block(std::span<float> x, KvCache& cache, int stop_at = kWholeBlock);
  static constexpr int kWholeBlock = 4;

  /// Bytes of prepared weights, embedding, and workspace.
  int64_t resident_bytes() const;
  std::vector<LinearInfo> linears() const;
  /// Sees every linear layer's input; null to stop.
  void set_observer(LinearObserver observer) { input_->set_observer(std::move(observer)); }
  /// Adds the times of all calls from now on; must outlive them. Null to stop.
  void set_profile(Profile* profile) { profile_ = profile; }

 private:
  friend class TransformerLoader;
  struct Layer {
    BlockSpec spec;
    std::vector<float> input_norm, post_norm;  // [hidden]
    std::vector<float> q_norm, k_norm;         // [head_dim] or empty
    Linear q, k, v, o, gate, up, down;
    /// Null: not executed.
    Linear* linear(LinearRole role);
    std::vector<float>* norm(InputRole role);
  };
  /// Rows of one batch; allocated once.
  struct Workspace {
    Buffer x;         // [batch, hidden] residual stream
    Buffer h;         // [batch, hidden] normed rows, outputs of o and down
    Buffer q, attn;   // [batch, q_size]
    Buffer k, v;      // [batch, kv_size]
    Buffer gate, up;  // [batch, intermediate]
    Buffer cos, sin;  // [batch, head_dim / 2]
    int64_t bytes() const;
  };

  Transformer() = default;
  Status allocate_workspace(int64_t batch_limit);
  Status check_call(std::span<const int32_t> tokens, const KvCache& cache, const LogitsWanted& wanted,
                    std::span<float> logits) const;
  /// Logits of rows [first, first + count) of the batch. Their rounding is the default one.
  Status run_head(int64_t first, int64_t count, float* logits);
  /// One batch at `position`; logits of its rows [first, first + count).
  Status run_batch(std::span<const int32_t> tokens, int64_t position, KvCache& cache, int64_t first, int64_t count,
                   float* logits);
  void embed(std::span<const int32_t> tokens);
  Status attention_part(const Layer& layer, int64_t index, int64_t m, int64_t position, KvCache& cache);
  /// `next`: the layer behind this one; null: the head.
  Status feed_forward_part(const Layer& layer, const Layer* next, int64_t m);
  void add_rows(const float* h, int64_t m, float* x);
  /// Times a step that multiplies m rows with the weights of some layers.
  StepTimer time_linears(ModelStep step, int64_t m, std::initializer_list<const Linear*> linears) const;

  /// The same in all blocks: check_executable().
  const AttentionSpec& attention_spec() const { return spec_.blocks.front().attention; }

  ModelSpec spec_;
  int64_t context_ = 0, batch_ = 0;
  const VectorOps* ops_ = nullptr;
  std::vector<double> frequencies_;
  QTensor embedding_;  // borrows the source's bytes where it can
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  Linear head_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<LinearInput> input_;
  ActivationRounding rounding_;
  Workspace work_;
  Attention attention_;
  Profile* profile_ = nullptr;
  int stop_at_ = kWholeBlock;
};

}  // namespace lowbit
