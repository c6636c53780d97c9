#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/try.h"
#include "pipeline/session_impl.h"

namespace lowbit {

Status Session::prefill_together(std::span<const SessionTokens> parts) {
  if (parts.empty()) return {};
  std::vector<SequenceRequest> requests;
  std::chrono::milliseconds wait{0};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto refuse = [&](const char* got, const char* wanted) {
      return fail(ErrorCode::kInvalidArgument, "prefill_together", "session " + std::to_string(i) + ": " + got, wanted);
    };
    if (parts[i].session == nullptr) return refuse("null", "a session");
    Impl& session = *parts[i].session->impl_;
    if (session.model != parts[0].session->impl_->model) return refuse("of another model", "sessions of one model");
    if (session.trace != nullptr) return refuse("one that is traced", "finish_trace() first, or a call of its own");
    requests.push_back({parts[i].tokens, &session.cache, LogitsWanted::last(), session.logits});
    wait = std::max(wait, session.most_wait);
  }
  Impl& first = *parts[0].session->impl_;
  for (const SessionTokens& part : parts) part.session->impl_->has_logits = false;
  LOWBIT_TRY(first.with_pages(wait, [&] { return first.model->executor.forward(requests); }));
  for (const SessionTokens& part : parts) {
    Impl& session = *part.session->impl_;
    session.has_logits = true;
    session.history.insert(session.history.end(), part.tokens.begin(), part.tokens.end());
  }
  return {};
}

}  // namespace lowbit
