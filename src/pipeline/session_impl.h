#pragma once
// One sequence of a model, behind the public Session.

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

  std::shared_ptr<SharedModel> model;
  KvCache cache;
  std::vector<TokenId> history;  // of a quantized cache, which may have to be computed again
  std::vector<float> logits;
  bool has_logits = false;  // `logits` are those after the last token
  std::chrono::milliseconds most_wait{0};
  std::unique_ptr<TraceRecorder> trace;  // from start_trace() to finish_trace()
};

/// What is behind a model.
SharedModel& shared_model_of(Model& model);

}  // namespace lowbit
