#pragma once
// Runs what threads ask of one model, in batches.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/transformer.h"

namespace lowbit {

/// The next work of one sequence: the arguments of Executor::forward().
struct SequenceRequest {
  std::span<const int32_t> tokens;
  KvCache* cache = nullptr;
  LogitsWanted wanted;
  std::span<float> logits;
  RowObserver* observer = nullptr;
  int32_t adapter = kNoAdapter;
};

/// Where passes through a model meet: a thread that finds it idle runs the next batch, of everybody who waits; those
/// who come meanwhile wait for the one after. So a lone sequence runs on its own thread, and many share the weights'
/// way from memory. Thread safe; a KvCache is used by one call at a time.
class Executor {
 public:
  /// `model` must outlive it, and is run by nobody else.
  explicit Executor(Transformer& model) : model_(model) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Transformer::forward(), with its arguments, numerics and errors: the bits of a sequence do not depend on who runs
  /// beside it. `observer`: sees this sequence's rows, on the thread that runs them. Several choices: the tokens chosen
  /// are run, too, but for the last; one without a token (NaN) ends them, and what the cache holds behind it means
  /// nothing.
  Status forward(std::span<const int32_t> tokens, KvCache& cache, LogitsWanted wanted, std::span<float> logits,
                 RowObserver* observer = nullptr);
  /// forward() for many sequences of one caller, each with a cache of its own, in as few passes as they fit in. Errors:
  /// those of any of them, kInvalidArgument (a cache that stands in two) and kUnsupported (an adapter, which no model
  /// has yet); after one, all caches are as they were, and sinks may have had rows.
  Status forward(std::span<const SequenceRequest> requests);

 private:
  /// The requests that one thread waits for. Guarded by mutex_.
  struct Call {
    size_t left = 0;  // requests that are not done
    Status status;
    bool leads = false;
    std::condition_variable changed;
  };
  /// One sequence of it: what is not yet run.
  struct Request {
    Call* call = nullptr;
    std::span<const int32_t> tokens;
    KvCache* cache = nullptr;
    int64_t first = 0, count = 0;  // of `tokens`: those whose logits are wanted
    float* logits = nullptr;
    RowObserver* observer = nullptr;
    const LogitsSink* sink = nullptr;
    int64_t sink_row = 0;
    std::span<TokenChoice> choices;  // those that are not made
    int32_t adapter = kNoAdapter;
    std::optional<KvCache> again;       // computes recent positions once more (KvCache::refreshing())
    std::vector<int32_t> again_tokens;  // their tokens
  };
  static Request request_of(const SequenceRequest& from, Call& call);
  /// How many positions a request will write.
  static int64_t positions_of(const SequenceRequest& request);
  /// Waits until all of a call is done.
  void run(Call& call, std::span<Request> requests);
  /// Runs batches until `own` is done, then hands over.
  void lead(Call& own, std::unique_lock<std::mutex>& lock);
  void run_batch(std::unique_lock<std::mutex>& lock);
  /// How many rows a request may have next; those that are due begin to compute positions once more.
  static int64_t next_rows(Request& request);
  /// How many passes the next batch may have: several where one call alone waits, for tokens of generations.
  int64_t passes() const;
  /// The batch without those whose cache gets no room; their errors are in opened_.
  void open_parts();
  /// Updates a request after a batch has run with this status: the part that is left to do.
  void advance(Request& request, const BatchPart& part, const Status& status);
  /// Takes a request from those that wait.
  void finish(Request& request, const Status& status);
  /// Whether a request whose tokens have run goes on with one that was chosen.
  bool goes_on(Request& request, const BatchPart& part) const;

  Transformer& model_;
  std::mutex mutex_;
  std::vector<Request*> waiting_;  // oldest first; those of the batch that runs, too
  bool busy_ = false;
  // State of the leader, the thread that runs a batch.
  std::vector<Request*> chosen_;
  std::vector<int64_t> left_, rows_;
  int64_t passes_ = 1;
  std::vector<Status> opened_;  // of chosen_
  std::vector<BatchPart> batch_;
};

}  // namespace lowbit
