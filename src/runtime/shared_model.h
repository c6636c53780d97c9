#pragma once
// The part of a model that its sessions share.

#include <memory>
#include <optional>

#include "lowbit/model.h"
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

}  // namespace lowbit
