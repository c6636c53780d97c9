#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/try.h"
#include "pipeline/session_impl.h"
#include "runtime/token_chooser.h"

namespace lowbit {

/// A call of prefill_together(), whose parts are of one model.
class SessionsTogether {
 public:
  explicit SessionsTogether(std::span<const SessionTokens> parts)
      : parts_(parts), first_(*parts[0].session->impl_), many_(parts[0].next.size()) {
    by_device_ = many_ > 0 && first_.chooses_tokens();
  }

  Status run() {
    for (const SessionTokens& part : parts_) {
      part.session->impl_->has_logits = false;
      wait_ = std::max(wait_, part.session->impl_->most_wait);
    }
    const size_t calls = by_device_ || many_ == 0 ? 1 : many_;  // one for each token, unless a device goes on by itself
    for (size_t call = 0; call < calls; ++call) {
      LOWBIT_TRY(start(call));
      LOWBIT_TRY(first_.with_pages(wait_, [&] { return first_.model->executor.forward(requests_); }));
      LOWBIT_TRY(finish(call));
    }
    return {};
  }

 private:
  Status start(size_t call) {
    requests_.clear();
    choosers_.clear();
    choosers_.reserve(parts_.size());  // requests refer to them
    for (const SessionTokens& part : parts_) {
      Session::Impl& session = *part.session->impl_;
      LOWBIT_TRY_ASSIGN(Sampler likeliest, Sampler::make({.temperature = 0}));
      TokenChooser& chooser =
          choosers_.emplace_back(std::move(likeliest), by_device_ ? first_.model->transformer.get() : nullptr);
      const auto tokens = call == 0 ? part.tokens : std::span<const TokenId>(part.next).subspan(call - 1, 1);
      requests_.push_back({tokens, &session.cache, chooser.wanted(many_),
                           by_device_ ? std::span<float>() : std::span<float>(session.logits)});
    }
    return {};
  }

  /// The sequences have grown by what was read.
  Status finish(size_t call) {
    Status status;
    for (size_t p = 0; p < parts_.size(); ++p) {
      Session::Impl& session = *parts_[p].session->impl_;
      session.history.insert(session.history.end(), requests_[p].tokens.begin(), requests_[p].tokens.end());
      session.has_logits = many_ == 0;
      const auto next = by_device_ ? parts_[p].next : parts_[p].next.subspan(std::min(call, many_), many_ > 0 ? 1 : 0);
      for (size_t i = 0; i < next.size() && status; ++i) {
        const auto token = choosers_[p].token(session.logits, i);
        if (!token) status = tl::unexpected(token.error());
        next[i] = token.value_or(-1);
        if (token && i + 1 < next.size()) session.history.push_back(*token);
      }
      LOWBIT_TRY(session.keep(static_cast<int64_t>(session.history.size())));  // behind a NaN
    }
    return status;
  }

  std::span<const SessionTokens> parts_;
  Session::Impl& first_;
  size_t many_;  // tokens that each session gets
  bool by_device_ = false;
  std::chrono::milliseconds wait_{0};
  std::vector<SequenceRequest> requests_;
  std::vector<TokenChooser> choosers_;  // of parts
};

Status Session::prefill_together(std::span<const SessionTokens> parts) {
  if (parts.empty()) return {};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto refuse = [&](const char* got, const char* wanted) {
      return fail(ErrorCode::kInvalidArgument, "prefill_together", "session " + std::to_string(i) + ": " + got, wanted);
    };
    if (parts[i].session == nullptr) return refuse("null", "a session");
    Impl& session = *parts[i].session->impl_;
    if (session.model != parts[0].session->impl_->model) return refuse("of another model", "sessions of one model");
    if (session.trace != nullptr) return refuse("one that is traced", "finish_trace() first, or a call of its own");
    if (parts[i].next.size() != parts[0].next.size()) return refuse("another number of tokens", "as many for all");
  }
  return SessionsTogether(parts).run();
}

}  // namespace lowbit
