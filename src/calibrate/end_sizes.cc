#include "calibrate/end_sizes.h"

#include <string>
#include <utility>

#include "arch/names.h"
#include "base/try.h"
#include "calibrate/layer_fit.h"

namespace lowbit {
namespace {

/// An end of the model and what it would be stored as without a search.
struct End {
  std::string name;
  QuantizeSpec otherwise;
  bool is_embedding, is_head;  // a tied one is both
};

std::vector<End> ends_of(const WeightSource& source, const QuantizeOptions& options) {
  const std::string embedding = weight_name(names::kEmbedding), head = weight_name(names::kHead);
  const bool tied = !source.has(head);
  std::vector<End> ends = {{embedding, options.embedding, true, tied}};
  if (!tied) ends.push_back({head, options.head, false, true});
  return ends;
}

}  // namespace

Status choose_ends(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                   const QuantizeOptions& options, BlockProbe& probe, double limit, Allocation& to) {
  if (options.end_candidates.empty()) return {};
  std::vector<QuantizeSpec> candidates = options.end_candidates;
  for (const End& end : ends_of(source, options)) {
    if (recipe.names(end.name) || end.otherwise.keep) continue;
    LOWBIT_TRY_ASSIGN(const QTensor w, source.load(end.name));
    candidates.resize(options.end_candidates.size());
    candidates.push_back(end.otherwise);
    PartChoice choice;
    choice.layers = {end.name};
    for (const QuantizeSpec& spec : candidates) {
      LayerFit fit;
      LOWBIT_TRY_ASSIGN(const QTensor q, fit_layer(end.name, w, spec, options.seed, {}, *engine.pool, fit));
      LOWBIT_TRY_ASSIGN(const double divergence,
                        probe.divergence_with(end.is_embedding ? &q : nullptr, end.is_head ? &q : nullptr));
      if (!choice.chosen.format.empty()) choice.smaller = std::move(choice.chosen);
      choice.chosen = {size_name(spec), q.bits_per_weight(), divergence};
      to.specs[end.name] = spec;
      if (divergence <= limit) break;
    }
    to.ends.push_back(std::move(choice));
  }
  return {};
}

}  // namespace lowbit
