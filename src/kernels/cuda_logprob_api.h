#pragma once
// The contract between backend/cuda/ and the kernels that say how likely tokens are. No CUDA types;
// kernels/cuda/block/logprobs.cu implements it, kernels/cuda_stub/ stands in for it.

#include <cstdint>

#include "kernels/cuda_sample_api.h"
#include "lowbit/error.h"

namespace lowbit::cuda {

struct LikelyToken {
  int32_t token = 0;
  float logit = 0;
};

/// The parts of a row's log-probabilities (docs/numerics.md#log-probabilities).
struct RowLogprobs {
  double sum = 0;                     // of exponentials
  float largest = 0, chosen = 0;      // logits
  LikelyToken top[kMostLikely] = {};  // as many as are wanted and the row has, the likeliest first
};

/// Of logits as the model gives them. Device memory; only enqueues work.
struct Logprobs {
  const float* logits = nullptr;  // [rows, vocab]
  const int32_t* wanted =
      nullptr;                // [rows]: how many of the likeliest, up to kMostLikely; negative: leaves the row out
  RowLogprobs* to = nullptr;  // [rows]
  int64_t rows = 0, vocab = 0;
  uint8_t* scratch = nullptr;  // logprob_scratch_bytes(rows, vocab), aligned to 256: zeros before the first call
  void* stream = nullptr;
};
/// All but the chosen logit, which needs `chosen` [rows]: those of tokens that were chosen from these logits.
Status sum_logprobs(const Logprobs& call);
Status report_chosen(const Logprobs& call, const ChosenToken* chosen);
int64_t logprob_scratch_bytes(int64_t rows, int64_t vocab);

}  // namespace lowbit::cuda
