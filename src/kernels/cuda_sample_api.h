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
/// tokens [rows] = what was chosen; 0 where nothing was. Device memory; only enqueues work.
Status feed_tokens(const ChosenToken* chosen, int64_t rows, int32_t* tokens, void* stream);

}  // namespace lowbit::cuda
