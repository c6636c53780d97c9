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

// ---- Two models on the same text ------------------------------------------------------------------

struct CompareOptions {
  int64_t context = 4096;  // tokens of a sequence, each begun afresh
  int64_t sequences = 1;   // from the start of the text
  int64_t buckets = 16;    // of positions
  int64_t examples = 8;    // positions with the largest divergence to show
  Progress progress;
};

/// Positions [first, last) of all sequences.
struct PositionBucket {
  int64_t first = 0, last = 0;
  double kld = 0, kld_error = 0;  // mean KL divergence and its standard error
  double top1 = 0;                // share of positions with the same likeliest token
  double ppl = 0, base_ppl = 0;
};

struct TokenShare {
  std::string text;
  double probability = 0;
};
/// A position where the models differ much.
struct DivergentPosition {
  int64_t position = 0;
  double kld = 0;
  std::string before, truth;            // the text before it and the token that follows
  std::vector<TokenShare> base, model;  // each one's three likeliest tokens
};

struct CompareReport {
  int64_t context = 0, sequences = 0, tokens = 0;
  double kld_mean = 0, kld_error = 0, top1 = 0, ppl = 0, base_ppl = 0;
  double kld_p50 = 0,
         kld_p99 = 0;  // quantiles over the positions: the least value that half (99 %) of them do not pass
  /// Least-squares change of the divergence per 1,000 positions: 0 for a model that does not drift.
  double slope = 0, slope_error = 0;
  std::vector<PositionBucket> buckets;
  /// Positions by divergence, ten bins per decade from 1e-6 on; smaller ones count in the first, larger ones in the
  /// last.
  std::vector<int64_t> histogram;
  std::vector<DivergentPosition> examples;  // the largest divergence first
  double seconds = 0;                       // of `model` alone
};
inline constexpr double kHistogramFirst = 1e-6;
inline constexpr int64_t kHistogramBins = 80, kHistogramPerDecade = 10;

/// KL(base || model) at every position. Errors: kInvalidArgument (a text shorter than one sequence, a context beyond
/// either model's, other vocabularies), kCancelled.
Result<CompareReport> compare_models(Model& model, Model& base, const std::string& text, const CompareOptions& options);

// ---- Two models that go on with the same text -----------------------------------------------------

struct AgreementOptions {
  int64_t prompts = 64;        // evenly spread over the text; fewer where it is short
  int64_t prompt_tokens = 64;  // of each
  int64_t tokens = 64;         // most that follow
  int64_t examples = 4;        // of the shortest agreements, to show
  Progress progress;
};

/// Where two greedy continuations part.
struct PartedContinuation {
  std::string before, agreed;  // the prompt's end, and what both wrote
  std::string model, base;     // each one's next token
};

struct AgreementReport {
  int64_t prompts = 0, prompt_tokens = 0, tokens = 0;
  /// Tokens that both models wrote alike before they first differ, of each prompt; `tokens` where they never do.
  std::vector<int64_t> lengths;
  double mean = 0, median = 0, never = 0;  // never: share of prompts where they do not differ
  std::vector<PartedContinuation> examples;
  double seconds = 0;
};

/// Each model goes on with its likeliest token, of equal ones the first. Errors: kInvalidArgument (a text shorter than
/// one prompt, more tokens than either model's context, other vocabularies), kCancelled.
Result<AgreementReport> compare_continuations(Model& model, Model& base, const std::string& text,
                                              const AgreementOptions& options);

// ---- Multiple choice -----------------------------------------------------------------------------

/// One way to go on: the log-likelihood of `continuation` after `context` is what counts. An empty context is the token
/// that starts a text, or where the tokenizer has none, the one that ends it.
struct Choice {
  std::string context, continuation;
};
struct ChoiceQuestion {
  /// One choice: the answer is right when each token of it is the likeliest one. Several: when the right one is the
  /// likeliest.
  std::vector<Choice> choices;
  int64_t gold = 0;  // index of the right one
};

/// One question per line of JSON:
///   {"query", "choices", "gold"}                   asked as "QUERY\nAnswer: CHOICE"; with an empty query the choices
///                                                  are whole texts
///   {"context_options", "continuation", "gold"}    one continuation, several contexts (WinoGrande)
///   {"context", "continuation"}                    exactly this continuation, spaces and all
///   {"text"}                                       its last word after all others (LAMBADA as published)
///   {"sentence_good", "sentence_bad"}              whole sentences (BLiMP)
/// Errors: kNotFound, kIo, kCorrupt (by line).
Result<std::vector<ChoiceQuestion>> read_choice_questions(const std::string& path);

/// Questions of one choice that a text has in itself: of the lines with at least 24 words, evenly spread, the first 24
/// words; the last of them, with the space before it, is to come out. Lines whose 24th word has anything but letters
/// are left out. At most `count`.
std::vector<ChoiceQuestion> continuation_questions(const std::string& text, int64_t count);

struct ChoiceOptions {
  int64_t questions = 0;  // the first so many; 0: all
  Progress progress;
};

struct ChoiceReport {
  int64_t questions = 0;
  /// Share of questions whose right choice has the largest log-likelihood; normalized: per byte of the continuation.
  /// Errors are standard errors of the share.
  double accuracy = 0, accuracy_error = 0;
  double normalized_accuracy = 0, normalized_accuracy_error = 0;
  /// Whether each question was answered rightly, and rightly by length.
  std::vector<bool> right, right_normalized;
  double seconds = 0;
};

/// Errors: kInvalidArgument (no questions, a question longer than the context), kCancelled, what the tokenizer and the
/// model say.
Result<ChoiceReport> multiple_choice(Model& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options);

/// The difference of two shares of the same questions. Its standard error is that of the mean of the differences
/// question by question: two models that mostly agree differ by much less chance than the errors of their shares say.
struct PairedDifference {
  double mean = 0, error = 0;             // model - base
  int64_t only_model = 0, only_base = 0;  // questions that one of them alone has right
};

/// Errors: kInvalidArgument (not the same number of questions, or none).
Result<PairedDifference> paired_difference(const std::vector<bool>& model, const std::vector<bool>& base);

}  // namespace lowbit
