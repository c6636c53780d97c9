#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/try.h"
#include "capi/errors.h"
#include "capi/sequence.h"

namespace lowbit::capi {
namespace {

Status null(const char* call, const char* wanted) { return fail(ErrorCode::kInvalidArgument, call, "NULL", wanted); }

Status hand_out(Session sequence, lb_session** session) {
  *session = std::make_unique<lb_session>(lb_session{std::move(sequence)}).release();
  return {};
}

Status open_session(const lb_model* model, lb_session** session) {
  if (session != nullptr) *session = nullptr;
  if (model == nullptr || session == nullptr) return null("lb_session_open", "a model and a place");
  return hand_out(model->model.session(), session);
}

Status fork_session(const lb_session* from, lb_session** session) {
  if (from == nullptr || session == nullptr) {
    if (session != nullptr) *session = nullptr;
    return null("lb_session_fork", "a session and a place");
  }
  Session fork = from->sequence.fork();
  *session = nullptr;
  return hand_out(std::move(fork), session);
}

Status wait_for_pages(lb_session* session, int64_t milliseconds) {
  if (session == nullptr) return null("lb_session_wait_for_pages", "a session");
  if (milliseconds < 0)
    return fail(ErrorCode::kInvalidArgument, "lb_session_wait_for_pages", std::to_string(milliseconds) + " ms",
                "0 or more");
  session->sequence.wait_for_pages(std::chrono::milliseconds(milliseconds));
  return {};
}

Status prefill_together(lb_session* const* session, const int32_t* const* tokens, const size_t* counts,
                        size_t sessions) {
  constexpr const char* kCall = "lb_session_prefill_together";
  if (sessions > 0 && (session == nullptr || tokens == nullptr || counts == nullptr))
    return null(kCall, "sessions, tokens and counts");
  LOWBIT_TRY(check_count(kCall, sessions, sizeof(void*)));
  std::vector<SessionTokens> parts;
  for (size_t i = 0; i < sessions; ++i) {
    if (tokens[i] == nullptr && counts[i] > 0) return null(kCall, "as many tokens as counted");
    LOWBIT_TRY(check_count(kCall, counts[i], sizeof(int32_t)));
    parts.push_back({sequence_of(session[i]), {tokens[i], counts[i]}});
  }
  return Session::prefill_together(parts);
}

Status save(const lb_session* session, const char* path) {
  if (session == nullptr || path == nullptr) return null("lb_session_save", "a session and a path");
  return session->sequence.save(path);
}

Status load(lb_session* session, const char* path) {
  if (session == nullptr || path == nullptr) return null("lb_session_load", "a session and a path");
  LOWBIT_TRY(session->sequence.load(path));
  return {};
}

Status tokens(const lb_session* session, int32_t* tokens, size_t capacity, size_t* count) {
  if (session == nullptr || count == nullptr || (tokens == nullptr && capacity > 0))
    return null("lb_session_tokens", "a session and places");
  hand_over(session->sequence.tokens(), tokens, capacity, count);
  return {};
}

}  // namespace
}  // namespace lowbit::capi

using lowbit::capi::guarded;
using lowbit::capi::sequence_of;

extern "C" {

lb_status lb_session_open(const lb_model* model, lb_session** session) {
  return guarded([&] { return lowbit::capi::open_session(model, session); });
}
lb_status lb_session_fork(const lb_session* from, lb_session** session) {
  return guarded([&] { return lowbit::capi::fork_session(from, session); });
}
void lb_session_close(lb_session* session) { delete session; }

int64_t lb_session_length(const lb_session* session) { return session == nullptr ? 0 : session->sequence.length(); }
lb_status lb_session_wait_for_pages(lb_session* session, int64_t milliseconds) {
  return guarded([&] { return lowbit::capi::wait_for_pages(session, milliseconds); });
}

lb_status lb_session_save(const lb_session* session, const char* path) {
  return guarded([&] { return lowbit::capi::save(session, path); });
}
lb_status lb_session_load(lb_session* session, const char* path) {
  return guarded([&] { return lowbit::capi::load(session, path); });
}
lb_status lb_session_tokens(const lb_session* session, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] { return lowbit::capi::tokens(session, tokens, capacity, count); });
}

lb_status lb_session_prefill(lb_session* session, const int32_t* tokens, size_t count) {
  return guarded([&] { return lowbit::capi::prefill("lb_session_prefill", sequence_of(session), tokens, count); });
}
lb_status lb_session_decode(lb_session* session, int32_t token) { return lb_session_prefill(session, &token, 1); }

lb_status lb_session_prefill_together(lb_session* const* session, const int32_t* const* tokens, const size_t* counts,
                                      size_t sessions) {
  return guarded([&] { return lowbit::capi::prefill_together(session, tokens, counts, sessions); });
}

lb_status lb_session_logits(const lb_session* session, const float** logits, size_t* count) {
  return guarded([&] { return lowbit::capi::logits("lb_session_logits", sequence_of(session), logits, count); });
}

lb_status lb_session_truncate(lb_session* session, int64_t length) {
  return guarded([&] { return lowbit::capi::truncate("lb_session_truncate", sequence_of(session), length); });
}

lb_status lb_session_generate(lb_session* session, const int32_t* prompt, size_t prompt_count,
                              const lb_generate_options* options, int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    return lowbit::capi::generate("lb_session_generate", sequence_of(session), {prompt, prompt_count}, options, tokens,
                                  capacity, count);
  });
}

}  // extern "C"
