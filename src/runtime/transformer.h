#pragma once
// A decoder-only transformer: weights of any format in, logits out.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "lowbit/error.h"
#include "model/source.h"
#include "runtime/fingerprint.h"
#include "runtime/forward.h"
#include "runtime/linear_observer.h"
#include "runtime/row_observer.h"
#include "runtime/stages.h"

namespace lowbit {

struct LoadOptions {
  XPolicy x;  // of the blocks' layers; the head's input keeps 8 bits
  Isa isa = Isa::kScalar;
  bool reference = false;      // the ref backend, whatever the ISA
  std::vector<int> gpus = {};  // of cuda::devices(): runs there; none: on the CPU
  int64_t gpu_layers = -1;     // plan_stages()
  int threads = 1;
  bool exact = true;    // CompileOptions
  bool tune = false;    // try cuts of products in the first calls of each shape, and keep the fastest
  int64_t context = 0;  // positions of a sequence; 0: what the model was trained for
  KvFormat kv;          // of all layers' pages
  std::string kv_keep;  // but for these, which stay f16 (parse_kv_keep())
  int64_t batch = 0;  // the most rows computed at once, 0: BatchSize::session_rows; less where they need too much room
  /// Called after each tensor; returning false stops the load with kCancelled.
  std::function<bool(int64_t bytes_done, int64_t bytes_total)> progress;
};

/// Which of a call's tokens need logits, counted from the call's first token.
struct LogitsWanted {
  enum class Kind { kNone, kLast, kRange };
  Kind kind = Kind::kLast;
  int64_t first = 0, count = 0;      // kRange
  const LogitsSink* sink = nullptr;  // takes them, in place of the call's buffer; not together with an observer
  /// The last token's, in place of logits, and those behind it as if each had been run: not together with an observer.
  std::span<TokenChoice> choices = {};

  static LogitsWanted none() { return {Kind::kNone, 0, 0}; }
  static LogitsWanted last() { return {Kind::kLast, 0, 0}; }
  /// Where Transformer::chooses_tokens().
  static LogitsWanted tokens(std::span<TokenChoice> choices) { return {.kind = Kind::kLast, .choices = choices}; }
  static LogitsWanted range(int64_t first, int64_t count, const LogitsSink* sink = nullptr) {
    return {Kind::kRange, first, count, sink};
  }
  /// Rows [begin, end) of a call of n tokens.
  std::pair<int64_t, int64_t> rows_of(int64_t n) const {
    if (kind == Kind::kRange) return {first, first + count};
    return {kind == Kind::kLast ? n - 1 : n, n};
  }
};

/// Tokens of one sequence in a batch: they continue what its cache holds. Logits of `count` of them, from `first` on.
struct BatchPart {
  std::span<const int32_t> tokens;
  KvCache* cache = nullptr;
  int64_t first = 0, count = 0;
  float* logits = nullptr;  // [count, vocab_size], or null where there is a sink
  RowObserver* observer = nullptr;
  const LogitsSink* sink = nullptr;
  int64_t sink_row = 0;           // what the sink calls the first of them
  TokenChoice* choice = nullptr;  // or several, of the passes of a call
  int32_t adapter = kNoAdapter;
};

/// The form in which a model's layers keep the keys and values of a sequence; `kept` of them, ascending, as f16.
std::vector<KvGroup> kv_groups_of(const ModelSpec& spec, const KvFormat& format, std::span<const int> kept = {});

class Transformer {
 public:
  /// Reads tensor by tensor, so that memory peaks at what the loaded model needs plus one tensor; the source may go
  /// away afterwards, except for what an embedding borrows (its bytes are kept alive by the QTensor itself). Errors:
  /// those of executable_spec_of and WeightSource::load; kNotFound (a tensor is missing), kShapeMismatch, kCorrupt (NaN
  /// or
  ///         infinity in a weight or scale), kInvalidArgument (context), kUnsupported, kOutOfMemory, kCancelled. Each
  ///           names its tensor.
  static Result<std::unique_ptr<Transformer>> load(const WeightSource& source, const LoadOptions& options);

  const ModelSpec& spec() const { return spec_; }
  int64_t context() const { return context_; }
  int64_t batch() const { return batch_; }
  const KvFormat& kv() const { return kv_; }
  /// Another model has another one. May be called by many threads at once.
  const std::string& fingerprint() const { return fingerprint_.text(); }
  ThreadPool& pool() { return *pool_; }
  /// Whether its device chooses tokens, so that logits need not be copied.
  bool chooses_tokens() const { return stages_.chooses_tokens(); }
  /// Biases and mask for its choices; may be called while another thread runs it. Errors: as Workspace::place_limits().
  Result<std::unique_ptr<TokenLimits>> place_limits(std::span<const std::pair<int32_t, float>> bias,
                                                    std::span<const uint32_t> mask) const {
    return stages_.place_limits(bias, mask);
  }
  /// The most passes of run(). One where a cache could not be cut back behind them.
  int64_t passes_at_once() const { return kv_.packed() || spec_.shortest_window() > 0 ? 1 : stages_.passes_at_once(); }

  /// The form in which its layers keep keys and values.
  std::vector<KvGroup> kv_groups() const { return stages_.split(kv_groups_of(spec_, kv_, kv_kept_)); }
  /// Pages for its sequences, where it reads them. As KvPool::make.
  Result<std::shared_ptr<KvPool>> make_pool(int64_t max_pages, int64_t slab_pages) const;
  /// A cache of its own for one sequence of at most context() positions.
  Result<KvCache> make_cache() const;

  /// Runs `tokens` at positions cache.length()... and appends them to the cache.
  /// Shapes:   logits [rows wanted, vocab_size], row-major; may be empty for LogitsWanted::none().
  /// Numerics: same bits for any thread count, ISA, batch size and any cut of the tokens into calls.
  /// Errors:   kInvalidArgument (no tokens, an id outside the vocabulary, a range or buffer that does not fit, more
  /// positions than the
  ///           cache holds), kShapeMismatch (a cache of another model), kOutOfMemory. After an error the cache is as it
  ///             was.
  /// One call at a time per Transformer.
  Status forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits);
  /// The errors of forward(), without running it. May be called while another thread is in forward() or run().
  Status check(std::span<const int32_t> tokens, const KvCache& cache, const LogitsWanted& wanted,
               std::span<const float> logits) const;
  /// One pass over the next tokens of several sequences, at most batch() in all: prompts, parts of prompts and single
  /// tokens mixed. Every part has passed check(), its cache has reserved its positions and stands in no other part. The
  /// caches get their rows. `passes`: up to passes_at_once(), where each part is one token and has as many choices;
  /// each goes on with what was chosen. Numerics: each row has the bits that it would have alone. Errors:
  /// kOutOfMemory; then the caches are as they were.
  Status run(std::span<const BatchPart> batch, int64_t passes = 1);

  /// Bytes of prepared weights, embedding, and workspace.
  int64_t resident_bytes() const;
  /// Stages::device_bytes().
  int64_t device_bytes() const { return stages_.device_bytes(); }
  /// Of all layers, in the order in which they run.
  std::vector<WeightInfo> linears() const;
  /// Sees every linear layer's input; null to stop.
  void set_observer(LinearObserver observer);
  /// Adds the times of all calls from now on; must outlive them. Null to stop.
  void set_profile(Profile* profile) { stages_.set_profile(profile); }

 private:
  friend class TransformerLoader;
  Transformer() = default;
  Status prepare_to_run(int64_t batch_limit, bool exact);
  /// Bytes of slots for so many rows, and the rows that a batch may have for that.
  int64_t bytes_of_batch(int64_t rows) const;
  int64_t rows_of_batch(int64_t limit) const;
  /// The observers of a batch's parts see its run.
  void begin_trace(std::span<const BatchPart> batch);

  ModelSpec spec_;
  int64_t context_ = 0, batch_ = 0;
  KvFormat kv_;
  std::vector<int> kv_kept_;
  Fingerprint fingerprint_;
  std::unique_ptr<ThreadPool> pool_;
  Stages stages_;
  ModelWeights weights_;
  int64_t embedding_bytes_ = 0;
  std::vector<Step> steps_;
  TapObserver observer_;  // for set_observer()
  // Of the batch that runs.
  std::vector<int32_t> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<WantedRows> wanted_;
};

}  // namespace lowbit
