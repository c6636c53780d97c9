#include "calibrate/embedding_head_sizes.h"

#include <string>
#include <utility>

#include "arch/names.h"
#include "base/try.h"
#include "calibrate/layer_fit.h"

namespace lowbit {
namespace {

/// Token embedding or head, and its format without a search.
struct VocabularyMatrix {
  std::string name;
  QuantizeSpec otherwise;
  bool is_embedding, is_head;  // a tied one is both
};

std::vector<VocabularyMatrix> vocabulary_matrices_of(const WeightSource& source, const QuantizeOptions& options) {
  const std::string embedding = weight_name(names::kEmbedding), head = weight_name(names::kHead);
  const bool tied = !source.has(head);
  std::vector<VocabularyMatrix> found = {{embedding, options.embedding, true, tied}};
  if (!tied) found.push_back({head, options.head, false, true});
  return found;
}

}  // namespace

Status choose_embedding_head(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                             const QuantizeOptions& options, BlockProbe& probe, double limit, Allocation& to) {
  if (options.embedding_head_candidates.empty()) return {};
  std::vector<QuantizeSpec> candidates = options.embedding_head_candidates;
  for (const VocabularyMatrix& matrix : vocabulary_matrices_of(source, options)) {
    if (recipe.names(matrix.name) || matrix.otherwise.keep) continue;
    LOWBIT_TRY_ASSIGN(const QTensor w, source.load(matrix.name));
    candidates.resize(options.embedding_head_candidates.size());
    candidates.push_back(matrix.otherwise);
    PartChoice choice;
    choice.layers = {matrix.name};
    for (const QuantizeSpec& spec : candidates) {
      LayerFit fit;
      LOWBIT_TRY_ASSIGN(const QTensor q, fit_layer(matrix.name, w, spec, options.seed, {}, *engine.pool, fit));
      LOWBIT_TRY_ASSIGN(const double divergence,
                        probe.divergence_with(matrix.is_embedding ? &q : nullptr, matrix.is_head ? &q : nullptr));
      if (!choice.chosen.format.empty()) choice.smaller = std::move(choice.chosen);
      choice.chosen = {size_name(spec), q.bits_per_weight(), divergence};
      to.specs[matrix.name] = spec;
      if (divergence <= limit) break;
    }
    source.release(matrix.name);
    to.embedding_head.push_back(std::move(choice));
  }
  return {};
}

}  // namespace lowbit
