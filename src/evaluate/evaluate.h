#pragma once
// How much a model loses, on what is behind lowbit/evaluate.h: texts and questions in batches of sequences. Sequences
// have caches of their own, on the model's pages; logits are scored where they are computed, on the model's threads.
// Nothing depends on what runs together.

#include <span>
#include <string>
#include <vector>

#include "lowbit/evaluate.h"
#include "lowbit/long_context.h"
#include "runtime/shared_model.h"

namespace lowbit {

Result<PerplexityReport> perplexity(SharedModel& model, const std::string& text, const PerplexityOptions& options);
Result<CompareReport> compare_models(SharedModel& model, SharedModel& base, const std::string& text,
                                     const CompareOptions& options);
Result<AgreementReport> compare_continuations(SharedModel& model, SharedModel& base, const std::string& text,
                                              const AgreementOptions& options);
Result<LongContextReport> probe_long_context(SharedModel& model, SharedModel& base, const std::string& text,
                                             const LongContextOptions& options);
Result<ChoiceReport> multiple_choice(SharedModel& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options);

struct ChoiceScore {
  double log_probability = 0;  // of the continuation
  bool likeliest = false;      // each of its tokens is, of equal ones the first
};
/// Scores of all choices of all questions, one behind the other.
Result<std::vector<ChoiceScore>> score_choices(SharedModel& model, std::span<const ChoiceQuestion> questions,
                                               const Progress& progress);

/// How many sequences of `context` tokens run in a pass of `rows` rows: at least one, and no more than there are free
/// pages for.
int64_t sequences_together(const SharedModel& model, int64_t context, int64_t rows);

}  // namespace lowbit
