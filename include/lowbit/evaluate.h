#pragma once
// How much a model loses: perplexity by llama.cpp's method, KL divergence and top-1 agreement
// against saved logits.

#include <cstdint>
#include <string>
#include <vector>

#include "lowbit/compute.h"
#include "lowbit/error.h"
#include "lowbit/model.h"

namespace lowbit {

enum class PerplexityMethod {
  kLlamaCpp,  // chunks of n_ctx, BOS first where the vocabulary wants it, the second half of each
              // chunk is scored
  kGptq,      // chunks of n_ctx, no BOS, every position but the first is scored
};

struct PerplexityOptions {
  int64_t context = 512;
  int64_t chunks = 0;  // 0: all
  PerplexityMethod method = PerplexityMethod::kLlamaCpp;
  std::string save_logits;  // write the base file of llama.cpp's --kl-divergence-base
  std::string against;      // and compare with one
  std::function<void(int64_t chunk, double ppl)> on_chunk;
  Progress progress;
};

struct PerplexityReport {
  double ppl = 0, ppl_error = 0;
  int64_t tokens = 0;  // scored
  int64_t chunks = 0;
  double seconds = 0, tok_s = 0;
  // With `against`:
  bool compared = false;
  double base_ppl = 0;
  double kld_mean = 0, kld_p50 = 0, kld_p90 = 0, kld_p99 = 0, kld_max = 0;
  double top1 = 0;         // share of positions with the same most likely token
  double delta_p_rms = 0;  // RMS change of the true token's probability
};

/// Errors: kInvalidArgument (fewer than 2 * context tokens, a context the model cannot hold),
/// kCorrupt (`against` was made from other text, context or vocabulary), kIo.
Result<PerplexityReport> perplexity(Model& model, const std::string& text, const PerplexityOptions& options);

// ---- Multiple choice -----------------------------------------------------------------------------

/// One way to go on: the log-likelihood of `continuation` after `context` is what counts.
struct Choice {
  std::string context, continuation;
};
struct ChoiceQuestion {
  std::vector<Choice> choices;  // at least two
  int64_t gold = 0;             // index of the right one
};

/// One question per line of JSON: {"query", "choices", "gold"} (asked as "QUERY\nAnswer: CHOICE") or {"context_options",
/// "continuation", "gold"}. Errors: kNotFound, kIo, kCorrupt (by line).
Result<std::vector<ChoiceQuestion>> read_choice_questions(const std::string& path);

struct ChoiceOptions {
  int64_t questions = 0;  // the first so many; 0: all
  Progress progress;
};

struct ChoiceReport {
  int64_t questions = 0;
  /// Share of questions whose right choice has the largest log-likelihood; normalized: per byte of the continuation. Errors are
  /// standard errors of the share.
  double accuracy = 0, accuracy_error = 0;
  double normalized_accuracy = 0, normalized_accuracy_error = 0;
  double seconds = 0;
};

/// Errors: kInvalidArgument (no questions, a question longer than the context), kCancelled, what the tokenizer and the model say.
Result<ChoiceReport> multiple_choice(Model& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options);

}  // namespace lowbit
