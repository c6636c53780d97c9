// lowbit/evaluate.h on what is behind a model. The model's own session is emptied, as its pages may be needed.

#include "evaluate/evaluate.h"
#include "pipeline/session_impl.h"

namespace lowbit {

Result<PerplexityReport> perplexity(Model& model, const std::string& text, const PerplexityOptions& options) {
  model.clear();
  return perplexity(shared_model_of(model), text, options);
}

Result<CompareReport> compare_models(Model& model, Model& base, const std::string& text,
                                     const CompareOptions& options) {
  model.clear();
  base.clear();
  return compare_models(shared_model_of(model), shared_model_of(base), text, options);
}

Result<AgreementReport> compare_continuations(Model& model, Model& base, const std::string& text,
                                              const AgreementOptions& options) {
  model.clear();
  base.clear();
  return compare_continuations(shared_model_of(model), shared_model_of(base), text, options);
}

Result<LongContextReport> probe_long_context(Model& model, Model& base, const std::string& text,
                                             const LongContextOptions& options) {
  model.clear();
  base.clear();
  return probe_long_context(shared_model_of(model), shared_model_of(base), text, options);
}

Result<ChoiceReport> multiple_choice(Model& model, const std::vector<ChoiceQuestion>& questions,
                                     const ChoiceOptions& options) {
  model.clear();
  return multiple_choice(shared_model_of(model), questions, options);
}

}  // namespace lowbit
