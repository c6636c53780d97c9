#pragma once
// The contract between backend/cuda/ and the kernels that change logits before a token is chosen from them. No CUDA
// types; kernels/cuda/block/change_logits.cu implements it, kernels/cuda_stub/ stands in for it.

#include <cstdint>

#include "kernels/cuda_sample_api.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

/// Added to a token's logit; minus infinity: never that one.
struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

inline constexpr int64_t kMostLater = 64;

/// The changes that Sampler::sample() makes to the logits of a row before it chooses. Addresses are the device's.
struct RowChanges {
  const TokenBias* bias = nullptr;  // [biases], those of a token in the order in which they are added
  const uint32_t* mask = nullptr;   // [mask_words], bit i % 32 of word i / 32: token i may be chosen. Null: all may
  int32_t biases = 0, mask_words = 0;
  int32_t recent = 0, recents = 0;      // tokens that are penalized: ChangeLogits::recent[recent, recent + recents)
  int32_t first_later = 0, laters = 0;  // and those that passes [first_later, first_later + laters) have chosen
  float repeat = 1, frequency = 0, presence = 0;
};

/// In device memory; only enqueues work. Rows whose changes say nothing are left as they are.
struct ChangeLogits {
  float* logits = nullptr;              // [rows, vocab], in place
  const RowChanges* changes = nullptr;  // [rows]
  const int32_t* recent = nullptr;      // of all rows; of one up to kMostRecent
  const ChosenToken* before = nullptr;  // [passes, before_stride]: what passes before this one chose for these rows
  int64_t before_stride = 0, rows = 0, vocab = 0;
  void* stream = nullptr;
};
Status change_logits(const ChangeLogits& call);
/// Behind choose_tokens(): no token, and no NaN, where bias and mask leave none that has a logit above minus infinity.
Status refuse_forbidden(const ChangeLogits& call, ChosenToken* chosen);

}  // namespace lowbit::cuda
