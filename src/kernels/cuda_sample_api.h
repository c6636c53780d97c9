#pragma once
// The contract between backend/cuda/ and the kernels that choose tokens. No CUDA types; kernels/cuda/block/sample.cu
// implements it, kernels/cuda_stub/ stands in for it.

#include <cstdint>

#include "kernels/token_rule.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

/// The chosen token; or -1, and the first token whose logit is NaN.
struct ChosenToken {
  int32_t token = -1, nan = -1;
};

/// For each row of logits the token that Sampler::sample() chooses by the same rule. Device memory; only enqueues work.
struct ChooseTokens {
  const float* logits = nullptr;     // [rows, vocab], vocab <= 2^23
  const TokenRule* rules = nullptr;  // [rows]; one with a negative temperature leaves its row out
  ChosenToken* chosen = nullptr;     // [rows]
  int64_t rows = 0, vocab = 0;
  bool draws = false;          // some rule has a temperature above zero
  uint8_t* scratch = nullptr;  // choose_scratch_bytes(rows), aligned to 256: zeros before the first call
  void* stream = nullptr;
};
Status choose_tokens(const ChooseTokens& call);
int64_t choose_scratch_bytes(int64_t rows);

/// In front of each pass that chooses tokens, one launch: copies between host and device take longer than what they
/// move. All passes of a call have the same arguments, so that a recording holds it.
struct FeedTokens {
  int32_t* pass = nullptr;              // of the lists: the pass before, -1 in front of the first. Becomes this pass
  const ChosenToken* chosen = nullptr;  // [rows], by the pass before
  int64_t rows = 0;
  int32_t* tokens = nullptr;    // [rows], of the lists = chosen; 0 where nothing was
  ChosenToken* kept = nullptr;  // [passes, rows_apart] = chosen, at the pass before; pinned memory of the host
  int64_t rows_apart = 0;
  uint8_t* lists = nullptr;             // = those of this pass, `bytes` of them, which begin at multiples of 16
  const uint8_t* host_lists = nullptr;  // [passes, lists_apart]: pinned memory of the host
  int64_t bytes = 0, lists_apart = 0;
  void* stream = nullptr;
};
/// Only enqueues work. In front of the first pass, whose lists and tokens are there, nothing but *pass changes.
Status feed_tokens(const FeedTokens& call);

}  // namespace lowbit::cuda
