#pragma once
// What the sessions of a model share.

#include <memory>
#include <optional>

#include "lowbit/model.h"
#include "pipeline/trace_recorder.h"
#include "runtime/executor.h"
#include "runtime/transformer.h"

namespace lowbit {

/// Immutable once it is open, but for the executor, which is thread safe, and the profile.
struct SharedModel {
  SharedModel(std::unique_ptr<Transformer> t, std::shared_ptr<KvPool> p, Tokenizer tok)
      : transformer(std::move(t)), executor(*transformer), pages(std::move(p)), tokenizer(std::move(tok)) {}

  std::unique_ptr<Transformer> transformer;
  Executor executor;
  std::shared_ptr<KvPool> pages;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;
  ModelInfo info;
  Profile profile;
};

struct Session::Impl {
  explicit Impl(std::shared_ptr<SharedModel> m)
      : model(std::move(m)),
        cache(model->pages, model->info.context),
        logits(static_cast<size_t>(model->info.vocab_size)) {}

  /// Through the executor; waits for pages where that is wanted. What fails leaves nothing in the trace.
  Status forward(std::span<const TokenId> tokens, LogitsWanted wanted, std::span<float> out);

  std::shared_ptr<SharedModel> model;
  KvCache cache;
  std::vector<float> logits;
  bool has_logits = false;  // `logits` are those after the last token
  std::chrono::milliseconds most_wait{0};
  std::unique_ptr<TraceRecorder> trace;  // from start_trace() to finish_trace()
};

}  // namespace lowbit
