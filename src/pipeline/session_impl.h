#pragma once
// One sequence of a model, behind the public Session.

#include <chrono>
#include <memory>
#include <vector>

#include "lowbit/model.h"
#include "pipeline/trace_recorder.h"
#include "runtime/shared_model.h"

namespace lowbit {

struct Session::Impl {
  explicit Impl(std::shared_ptr<SharedModel> m)
      : model(std::move(m)),
        cache(model->pages, model->info.context),
        logits(static_cast<size_t>(model->info.vocab_size)) {}

  /// Through the executor; waits for pages where that is wanted. What fails leaves nothing in the trace.
  Status forward(std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out);
  /// forward() on any cache of the model, without a trace.
  Status run(KvCache& on, std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out);

  /// Whether a pass may give its token in place of logits: a trace writes logits.
  bool chooses_tokens() const { return trace == nullptr && model->transformer->chooses_tokens(); }

  /// How many of `wanted` tokens one pass after the other may choose in one call, each taking so long.
  int64_t tokens_at_once(int64_t wanted, double seconds_each) const;
  /// Forgets what has been read behind `length`, where a call read more.
  Status keep(int64_t length);

  /// Makes `call`; when it runs out of pages, again whenever some have become free, for at most `wait`. Returns the
  /// last result.
  template <class Call>
  Status with_pages(std::chrono::milliseconds wait, const Call& call) {
    const auto end = std::chrono::steady_clock::now() + wait;
    while (true) {
      const uint64_t freed = model->pages->times_freed();
      const Status status = call();
      if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !model->pages->wait_until_freed(freed, left)) return status;
    }
  }

  std::shared_ptr<SharedModel> model;
  KvCache cache;
  std::vector<TokenId> history;  // the sequence: a file names it, and a quantized cache may have to be computed again
  std::vector<float> logits;
  bool has_logits = false;  // `logits` are those after the last token
  std::chrono::milliseconds most_wait{0};
  std::unique_ptr<TraceRecorder> trace;  // from start_trace() to finish_trace()
};

/// The implementation of a model.
SharedModel& shared_model_of(Model& model);

}  // namespace lowbit
