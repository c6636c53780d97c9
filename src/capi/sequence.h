#pragma once
// Calls on one sequence, shared by lb_model_* and lb_session_*.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lowbit/lowbit.h"
#include "lowbit/model.h"

/// A model, and the sequence that lb_model_prefill() and the like work on.
struct lb_model {
  lowbit::Model model;
  lowbit::Session sequence;
};

struct lb_session {
  lowbit::Session sequence;
};

namespace lowbit::capi {

/// The sequence of a handle; NULL stays NULL.
template <class Handle>
auto sequence_of(Handle* handle) {
  return handle == nullptr ? nullptr : &handle->sequence;
}

/// Copies as much of `from` as the caller's array holds, and reports the full count.
template <class From, class T>
void hand_over(const From& from, T* to, size_t capacity, size_t* count) {
  std::copy_n(from.data(), std::min(capacity, from.size()), to);
  *count = from.size();
}

// `call`: the function's name, for errors.
Status prefill(const std::string& call, Session* sequence, const int32_t* tokens, size_t count);
Status logits(const std::string& call, const Session* sequence, const float** logits, size_t* count);
Status truncate(const std::string& call, Session* sequence, int64_t length);
Status generate(const std::string& call, Session* sequence, std::span<const TokenId> prompt,
                const lb_generate_options* given, int32_t* tokens, size_t capacity, size_t* count);

}  // namespace lowbit::capi
