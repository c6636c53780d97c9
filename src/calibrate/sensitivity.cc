#include "calibrate/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/try.h"
#include "calibrate/block_probe.h"
#include "calibrate/calibration.h"
#include "calibrate/embedding_head_sizes.h"
#include "calibrate/layer_fit.h"
#include "calibrate/row_sample.h"
#include "quantize/allocation.h"

namespace lowbit {
namespace {

/// Of one size a codebook mostly loses less than integers, and a trellis less than a codebook: docs/quality.md. All are
/// measured, since layers differ.
constexpr std::array kFormats = {
    FormatId::kTernaryPacked, FormatId::kInt2Odd,  FormatId::kCodebook2, FormatId::kTrellis2,  FormatId::kInt3,
    FormatId::kCodebook3,     FormatId::kTrellis3, FormatId::kInt4,      FormatId::kCodebook4, FormatId::kInt8};
/// Small enough for losses to add up, large enough to measure.
constexpr FormatId kProbe = FormatId::kInt3;
constexpr int64_t kHessianTokens = 2048;  // for the errors of outputs
/// Embedding and head may cost this share of the divergence of all linear layers: too little to be seen beside it.
constexpr double kEmbeddingHeadShare = 0.05;
/// Divergences of parts add up below this; beyond, they are an order.
constexpr double kMostThatAddsUp = 0.5;

/// The layers of a block that get a format together: readers of one input, values apart.
std::vector<std::vector<const LinearSpec*>> parts_of(const BlockSpec& block) {
  std::vector<std::vector<const LinearSpec*>> parts;
  for (const InputSpec* input : inputs_of(block)) {
    std::vector<const LinearSpec*> together, values;
    for (const LinearSpec& reader : input->readers)
      (reader.role == LinearRole::kValue ? values : together).push_back(&reader);
    for (auto* part : {&together, &values})
      if (!part->empty()) parts.push_back(*part);
  }
  return parts;
}

/// Formats that layers may get which are fitted like `spec`. A trellis has scales of its rows and no offsets.
std::vector<QuantizeSpec> in_each_format(const QuantizeSpec& spec) {
  std::vector<QuantizeSpec> specs;
  for (const FormatId format : kFormats) {
    const bool on_trellis = format_info(format).expanded != format;
    if (on_trellis && (spec.zero || spec.group == QuantizeSpec::kTensor || spec.group_rows != 1)) continue;
    specs.push_back(spec);
    specs.back().format = format;
  }
  return specs;
}

/// Layers that get one size, and what each costs.
struct Part {
  std::vector<std::string> names;
  std::vector<SizeChoice> choices;  // of the candidates
  int64_t elements = 0;
};

class Allocator {
 public:
  Allocator(const WeightSource& source, const Recipe& recipe, const Engine& engine, const QuantizeOptions& options)
      : source_(source),
        recipe_(recipe),
        engine_(engine),
        options_(options),
        specs_(options.candidates.empty() ? in_each_format(options.linear) : options.candidates) {}

  Result<Allocation> run() {
    CalibrationOptions few = options_.calibration;
    few.tokens = std::min(few.tokens, kHessianTokens);
    LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source_, few, false, engine_));
    LOWBIT_TRY_ASSIGN(BlockProbe probe, BlockProbe::make(source_, engine_, text));
    for (int64_t block = 0; block < text.blocks(); ++block) LOWBIT_TRY(add_block(block, text, probe));
    LOWBIT_TRY_ASSIGN(Allocation chosen, choose());
    double divergence = 0;
    for (const PartChoice& part : chosen.choices) divergence += part.chosen.divergence;
    LOWBIT_TRY(choose_embedding_head(source_, recipe_, engine_, options_, probe,
                                     kEmbeddingHeadShare * std::min(divergence, kMostThatAddsUp), chosen));
    return chosen;
  }

 private:
  /// A part, and what is known of it before it is probed.
  struct Candidate {
    Part part;
    std::vector<double> error;   // of the candidates
    std::vector<int64_t> bytes;  // likewise
    double probe_error = 0;
    ChangedLayers probed;
  };

  Status add_block(int64_t block, Calibration& text, BlockProbe& probe) {
    LOWBIT_TRY(text.begin(probe.block(block)));
    LOWBIT_TRY_ASSIGN(const HessianByWeight hessian, text.measure_and_advance());
    std::vector<std::string> names;
    for (const auto& [name, unused] : hessian) names.push_back(name);
    const FactoredInputs inputs(hessian, names, *engine_.pool);
    const auto parts = parts_of(text.spec().blocks[static_cast<size_t>(block)]);
    const auto count = static_cast<int64_t>(parts.size());
    std::vector<Candidate> candidates;
    for (int64_t p = 0; p < count; ++p) {
      if (options_.progress && !options_.progress("measuring sensitivity", block * count + p, text.blocks() * count))
        return fail(ErrorCode::kCancelled, "measuring sensitivity", "a request to stop");
      LOWBIT_TRY_ASSIGN(Candidate candidate, fit_part(block, parts[static_cast<size_t>(p)], inputs));
      if (!candidate.part.names.empty()) candidates.push_back(std::move(candidate));
    }
    std::vector<ChangedLayers> probed;
    for (Candidate& c : candidates) probed.push_back(std::move(c.probed));
    LOWBIT_TRY_ASSIGN(const std::vector<double> divergences, probe.divergences(block, probed));
    for (size_t i = 0; i < candidates.size(); ++i) {
      Candidate& c = candidates[i];
      for (size_t f = 0; f < specs_.size(); ++f)
        c.part.choices.push_back(
            {c.bytes[f], c.probe_error > 0 ? std::max(divergences[i], 0.0) * c.error[f] / c.probe_error : 0.0});
      parts_.push_back(std::move(c.part));
    }
    return {};
  }

  Result<Candidate> fit_part(int64_t block, const std::vector<const LinearSpec*>& layers,
                             const FactoredInputs& inputs) {
    Candidate c;
    c.error.resize(specs_.size());
    c.bytes.resize(specs_.size());
    for (const LinearSpec* layer : layers) {
      const std::string name = weight_name(block, layer->name);
      LOWBIT_TRY_ASSIGN(const QTensor w, source_.load(name));
      elements_ += w.n * w.k;
      if (recipe_.names(name)) {
        LOWBIT_TRY(add_fixed(name, w));
        continue;
      }
      c.part.names.push_back(name);
      c.part.elements += w.n * w.k;
      LOWBIT_TRY(compare_sizes(name, layer->role, w, inputs, c));
    }
    return c;
  }

  /// Adds a layer's errors in each candidate, and what it is probed with. Feedback saves much the same share at every
  /// size, but not of every layer: it is measured once.
  Status compare_sizes(const std::string& name, LinearRole role, const QTensor& w, const FactoredInputs& inputs,
                       Candidate& c) const {
    const InputHessian& hessian = *inputs.of(name).hessian;
    LOWBIT_TRY_ASSIGN(const QTensor some, sample_rows(w));
    QuantizeSpec probe;
    probe.format = kProbe;
    probe.fit = "gptq";
    LayerFit fit;
    LOWBIT_TRY_ASSIGN(const QTensor fed_back,
                      fit_layer(name, some, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    const double energy = output_energy(some, nullptr, hessian), after = output_energy(some, &fed_back, hessian);
    probe.fit = "wls";
    LOWBIT_TRY_ASSIGN(const QTensor rounded,
                      fit_layer(name, some, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    const double before = output_energy(some, &rounded, hessian);
    const double per_energy = energy > 0 ? 1 / energy : 0, kept = before > 0 ? after / before : 1;
    c.probe_error += per_energy * before;
    LOWBIT_TRY_ASSIGN(c.probed[role], fit_layer(name, w, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    for (size_t f = 0; f < specs_.size(); ++f) {
      QuantizeSpec spec = specs_[f];
      spec.fit = "wls";
      LOWBIT_TRY_ASSIGN(const QTensor q,
                        fit_layer(name, some, spec, options_.seed, inputs.of(name), *engine_.pool, fit));
      c.error[f] += per_energy * kept * output_energy(some, &q, hessian);
      c.bytes[f] += bytes_of_rows(q, w.n);
    }
    return {};
  }

  /// tr((W - Q) H (W - Q)^T); without q, tr(W H W^T).
  double output_energy(const QTensor& w, const QTensor* q, const InputHessian& hessian) const {
    std::vector<double> rows(static_cast<size_t>(w.n));
    engine_.pool->parallel_for(w.n, 1, [&](int64_t begin, int64_t end, int) {
      std::vector<float> real(static_cast<size_t>(w.k)), taken(real.size());
      for (int64_t i = begin; i < end; ++i) {
        dequantize_rows(w, i, 1, real.data());
        if (q != nullptr) dequantize_rows(*q, i, 1, taken.data());
        for (size_t c = 0; c < real.size(); ++c) real[c] -= taken[c];
        rows[static_cast<size_t>(i)] = quadratic_form(hessian, real.data());
      }
    });
    return std::accumulate(rows.begin(), rows.end(), 0.0);
  }

  Status add_fixed(const std::string& name, const QTensor& w) {
    LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe_.spec_for(name, LayerRole::kLinear));
    if (spec.keep) {
      fixed_bytes_ += source_.lossless(name) ? w.total_bytes() : 2 * w.n * w.k;
      return {};
    }
    QuantizeSpec plain = spec;
    plain.fit = "absmax";  // the size is all that counts
    LayerFit fit;
    LOWBIT_TRY_ASSIGN(const QTensor q, fit_layer(name, w, plain, options_.seed, {}, *engine_.pool, fit));
    fixed_bytes_ += q.total_bytes();
    return {};
  }

  Result<Allocation> choose() const {
    std::vector<std::vector<SizeChoice>> choices;
    for (const Part& part : parts_) choices.push_back(part.choices);
    const auto budget =
        static_cast<int64_t>(static_cast<double>(options_.target_bpw) * static_cast<double>(elements_) / 8) -
        fixed_bytes_;
    LOWBIT_TRY_ASSIGN(const auto chosen, allocate_sizes(choices, budget));
    Allocation out;
    for (size_t p = 0; p < parts_.size(); ++p) {
      for (const std::string& name : parts_[p].names) out.specs[name] = specs_[chosen[p]];
      out.choices.push_back(choice_of(parts_[p], chosen[p]));
    }
    return out;
  }

  /// The chosen size, and the sizes next to it on the part's convex hull.
  PartChoice choice_of(const Part& part, size_t chosen) const {
    const auto size = [&](size_t f) {
      const QuantizeSpec& spec = specs_[f];
      return PartChoice::Size{
          size_name(spec),
          8.0 * static_cast<double>(part.choices[f].bytes) / static_cast<double>(std::max<int64_t>(part.elements, 1)),
          part.choices[f].loss};
    };
    PartChoice out;
    out.layers = part.names;
    out.chosen = size(chosen);
    const std::vector<size_t> hull = worthwhile_sizes(part.choices);
    const auto at = std::ranges::find(hull, chosen);
    if (at != hull.end() && at != hull.begin()) out.smaller = size(*(at - 1));
    if (at != hull.end() && at + 1 != hull.end()) out.larger = size(*(at + 1));
    return out;
  }

  const WeightSource& source_;
  const Recipe& recipe_;
  const Engine& engine_;
  const QuantizeOptions& options_;
  std::vector<QuantizeSpec> specs_;  // the candidates
  std::vector<Part> parts_;
  int64_t elements_ = 0, fixed_bytes_ = 0;
};

}  // namespace

std::string size_name(const QuantizeSpec& spec) {
  return fmt::format("{} {}", format_info(spec.format).name, scaling_name(scaling_of(spec)));
}

Result<Allocation> allocate_formats(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                                    const QuantizeOptions& options) {
  return Allocator(source, recipe, engine, options).run();
}

}  // namespace lowbit
