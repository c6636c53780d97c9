#pragma once
// Runs what threads ask of one model, in batches.

#include <condition_variable>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/transformer.h"

namespace lowbit {

/// Where passes through a model meet: a thread that finds it idle runs the next batch, of everybody who waits; those who come
/// meanwhile wait for the one after. So a lone sequence runs on its own thread, and many share the weights' way from memory.
/// Thread safe; a KvCache is used by one call at a time.
class Executor {
 public:
  /// `model` must outlive it, and is run by nobody else.
  explicit Executor(Transformer& model) : model_(model) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Transformer::forward(), with its arguments, numerics and errors: the bits of a sequence do not depend on who runs beside it.
  /// `observer`: sees this sequence's rows, on the thread that runs them.
  Status forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits,
                 RowObserver* observer = nullptr);

 private:
  /// What one thread waits for. Guarded by mutex_; `progress` is the leader's while it runs a batch.
  struct Request {
    std::span<const int32_t> tokens;  // not yet run
    KvCache* cache = nullptr;
    int64_t first = 0, count = 0;  // of `tokens`: those whose logits are wanted and not yet there
    float* logits = nullptr;
    RowObserver* observer = nullptr;
    Status status;
    bool done = false, leads = false;
    std::condition_variable changed;
  };
  /// Runs batches until `own` is done, then hands over.
  void lead(Request& own, std::unique_lock<std::mutex>& lock);
  void run_batch(std::unique_lock<std::mutex>& lock);

  Transformer& model_;
  std::mutex mutex_;
  std::vector<Request*> waiting_;  // oldest first; those of the batch that runs, too
  bool busy_ = false;
  // Of the leader.
  std::vector<Request*> chosen_;
  std::vector<int64_t> left_, rows_;
  std::vector<BatchPart> batch_;
};

}  // namespace lowbit
