#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/try.h"
#include "pipeline/session_impl.h"
#include "runtime/token_chooser.h"

namespace lowbit {

Status Session::prefill_together(std::span<const SessionTokens> parts) {
  if (parts.empty()) return {};
  std::vector<SequenceRequest> requests;
  std::vector<TokenChooser> choosers;  // of parts
  choosers.reserve(parts.size());
  std::chrono::milliseconds wait{0};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto refuse = [&](const char* got, const char* wanted) {
      return fail(ErrorCode::kInvalidArgument, "prefill_together", "session " + std::to_string(i) + ": " + got, wanted);
    };
    if (parts[i].session == nullptr) return refuse("null", "a session");
    Impl& session = *parts[i].session->impl_;
    if (session.model != parts[0].session->impl_->model) return refuse("of another model", "sessions of one model");
    if (session.trace != nullptr) return refuse("one that is traced", "finish_trace() first, or a call of its own");
    LOWBIT_TRY_ASSIGN(Sampler likeliest, Sampler::make({.temperature = 0}));
    const TokenChooser& chooser =
        choosers.emplace_back(std::move(likeliest), parts[i].next != nullptr && session.chooses_tokens());
    requests.push_back({parts[i].tokens, &session.cache, choosers.back().wanted(),
                        chooser.by_device() ? std::span<float>() : session.logits});
    wait = std::max(wait, session.most_wait);
  }
  Impl& first = *parts[0].session->impl_;
  for (const SessionTokens& part : parts) part.session->impl_->has_logits = false;
  LOWBIT_TRY(first.with_pages(wait, [&] { return first.model->executor.forward(requests); }));
  Status status;
  for (size_t i = 0; i < parts.size(); ++i) {
    Impl& session = *parts[i].session->impl_;
    session.has_logits = parts[i].next == nullptr;
    session.history.insert(session.history.end(), parts[i].tokens.begin(), parts[i].tokens.end());
    if (parts[i].next == nullptr) continue;
    const auto token = choosers[i].token(session.logits);
    if (!token) status = tl::unexpected(token.error());
    *parts[i].next = token.value_or(-1);
  }
  return status;
}

}  // namespace lowbit
