#include "calibrate/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "base/try.h"
#include "calibrate/calibration.h"
#include "calibrate/layer_fit.h"
#include "kernels/registry.h"
#include "ops/log_softmax.h"
#include "ops/matmul.h"
#include "ops/norm.h"
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
constexpr int64_t kMomentTokens = 4096;  // for the errors of outputs
constexpr int64_t kProbeTokens = 256;    // for the KL divergence
constexpr int64_t kMostParts = 8;        // of a block, that run through the blocks behind it together
constexpr int64_t kLogitsAtOnce = 64;

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

/// Layers of a block with other weights, by role.
using ChangedLayers = std::map<LinearRole, QTensor>;

/// The source's blocks in memory, and what changing one of them does to the logits.
class Probe {
 public:
  /// `text` begins and lends its backend; it outlives the object.
  static Result<Probe> make(const WeightSource& source, const Engine& engine, Calibration& text) {
    Probe p(engine, text.backend(), text.spec());
    p.rows_ = std::min(kProbeTokens, text.context());
    LOWBIT_TRY_ASSIGN(const QTensor norm, source.load(weight_name(p.spec_.final_norm.name)));
    p.norm_.resize(static_cast<size_t>(norm.k));
    dequantize_rows(norm, 0, 1, p.norm_.data());
    LOWBIT_TRY_ASSIGN(const QTensor head, source.load(weight_name(p.spec_.head.name)));
    MatmulOptions options;
    options.activation = Activation::kF32;
    options.isa = engine.isa;
    LOWBIT_TRY_ASSIGN(p.head_, MatmulPlan::make(head, options, *engine.pool));
    for (int64_t b = 0; b < p.spec_.block_count(); ++b) {
      LOWBIT_TRY_ASSIGN(auto block, SourceBlock::load(source, p.spec_, b, p.backend_, *engine.pool));
      block->drop_tensors();  // all of them would take the model's room once more
      p.blocks_.push_back(block);
      p.programs_.emplace_back(std::move(block), p.backend_, *engine.pool);
    }
    LOWBIT_TRY_ASSIGN(p.room_, BatchRoom::make(p.backend_, p.blocks_, p.rows_, kMostParts, p.backend_.batch_size()));
    LOWBIT_TRY_ASSIGN(p.states_, HiddenStates::make(p.backend_, 1, p.rows_, p.spec_.hidden_size));
    LOWBIT_TRY_ASSIGN(p.part_, HiddenStates::make(p.backend_, 1, p.rows_, p.spec_.hidden_size));
    LOWBIT_TRY_ASSIGN(const std::vector<float> first, text.first_rows(p.rows_));
    LOWBIT_TRY(p.states_.write(0, first));
    LOWBIT_TRY(p.part_.copy_from(p.states_));
    for (BlockProgram& block : p.programs_) LOWBIT_TRY(p.part_.run(block, *p.room_, kBlockSteps));
    std::vector<float> last(first.size());
    LOWBIT_TRY(p.part_.read(0, last));
    p.base_.resize(static_cast<size_t>(p.rows_ * head.n));
    LOWBIT_TRY(p.each_logits(last, [&p](int64_t row, std::span<float> logits) {
      std::copy(logits.begin(), logits.end(), p.base_.begin() + row * static_cast<int64_t>(logits.size()));
    }));
    return p;
  }

  const std::shared_ptr<const SourceBlock>& block(int64_t index) const { return blocks_[static_cast<size_t>(index)]; }

  /// Mean KL divergence of the logits for each part of a block on its own, its layers being others than the source's.
  /// Blocks and, in a block, inputs of the parts come in the order in which they run: nothing that is before a part
  /// runs for it.
  Result<std::vector<double>> divergences(int64_t index, const std::vector<ChangedLayers>& parts) {
    const auto at = static_cast<size_t>(index);
    const auto count = static_cast<int64_t>(parts.size());
    LOWBIT_TRY_ASSIGN(HiddenStates changed, HiddenStates::make(backend_, count, rows_, spec_.hidden_size));
    std::vector<float> rows(static_cast<size_t>(rows_ * spec_.hidden_size));
    for (int64_t i = 0; i < count; ++i) {
      BlockProgram program(blocks_[at], backend_, *engine_.pool);
      int step = kBlockSteps;
      for (const InputSpec* input : inputs_of(blocks_[at]->block()))
        for (const LinearSpec& reader : input->readers) {
          const auto it = parts[static_cast<size_t>(i)].find(reader.role);
          if (it == parts[static_cast<size_t>(i)].end()) continue;
          LOWBIT_TRY(program.replace(reader, it->second));
          step = std::min(step, kInputSteps[static_cast<size_t>(input->role)]);
        }
      if (step > states_.step()) LOWBIT_TRY(states_.run(programs_[at], *room_, step));
      LOWBIT_TRY(part_.copy_from(states_));
      LOWBIT_TRY(part_.run(program, *room_, kBlockSteps));
      LOWBIT_TRY(part_.read(0, rows));
      LOWBIT_TRY(changed.write(i * rows_, rows));
    }
    LOWBIT_TRY(states_.run(programs_[at], *room_, kBlockSteps));
    for (size_t b = at + 1; b < blocks_.size(); ++b) LOWBIT_TRY(changed.run(programs_[b], *room_, kBlockSteps));
    std::vector<double> divergences;
    for (int64_t i = 0; i < count; ++i) {
      LOWBIT_TRY(changed.read(i * rows_, rows));
      LOWBIT_TRY_ASSIGN(const double divergence, divergence_of(rows));
      divergences.push_back(divergence);
    }
    return divergences;
  }

 private:
  Probe(const Engine& engine, Backend& backend, ModelSpec spec)
      : engine_(engine), backend_(backend), spec_(std::move(spec)) {}

  Result<double> divergence_of(const std::vector<float>& x) const {
    std::vector<double> parts(static_cast<size_t>(rows_));
    LOWBIT_TRY(each_logits(x, [&](int64_t row, std::span<float> logits) {
      parts[static_cast<size_t>(row)] =
          kl_divergence(std::span(base_).subspan(static_cast<size_t>(row) * logits.size(), logits.size()), logits);
    }));
    double sum = 0;
    for (const double part : parts) sum += part;
    return sum / static_cast<double>(rows_);
  }

  /// Calls use(row, log probabilities), from several threads.
  template <class Use>
  Status each_logits(const std::vector<float>& x, const Use& use) const {
    const int64_t width = spec_.hidden_size, vocab = head_.n();
    std::vector<float> rows(static_cast<size_t>(kLogitsAtOnce * width)),
        logits(static_cast<size_t>(kLogitsAtOnce * vocab));
    for (int64_t first = 0; first < rows_; first += kLogitsAtOnce) {
      const int64_t m = std::min(kLogitsAtOnce, rows_ - first);
      rms_norm_rows(vector_ops(engine_.isa), x.data() + first * width, width, norm_.data(), m, width,
                    spec_.final_norm.eps, rows.data(), width, *engine_.pool);
      ActivationRows prepared;
      LOWBIT_TRY(prepared.prepare(Activation::kF32, rows.data(), m, width, width, engine_.isa, *engine_.pool));
      LOWBIT_TRY(head_.run(prepared, nullptr, logits.data(), vocab, *engine_.pool));
      engine_.pool->parallel_for(m, 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const auto row = std::span(logits).subspan(static_cast<size_t>(i * vocab), static_cast<size_t>(vocab));
          log_softmax(row).apply(row);
          use(first + i, row);
        }
      });
    }
    return {};
  }

  const Engine& engine_;
  Backend& backend_;
  ModelSpec spec_;
  int64_t rows_ = 0;
  std::vector<float> norm_, base_;  // base_: [rows, vocab] log probabilities
  std::vector<std::shared_ptr<const SourceBlock>> blocks_;
  std::vector<BlockProgram> programs_;  // of them, as they are
  std::unique_ptr<BatchRoom> room_;
  HiddenStates states_;  // of the source, up to the part that was changed last
  HiddenStates part_;    // those of a part on their way out of its block
  MatmulPlan head_;
};

/// What layers can have that are fitted like `spec`. A trellis has scales of its rows and no offsets.
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
    few.tokens = std::min(few.tokens, kMomentTokens);
    LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source_, few, false, engine_));
    LOWBIT_TRY_ASSIGN(Probe probe, Probe::make(source_, engine_, text));
    for (int64_t block = 0; block < text.blocks(); ++block) LOWBIT_TRY(add_block(block, text, probe));
    return choose();
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

  Status add_block(int64_t block, Calibration& text, Probe& probe) {
    LOWBIT_TRY(text.begin(probe.block(block)));
    LOWBIT_TRY_ASSIGN(const MomentsByWeight moments, text.measure_and_advance());
    std::vector<std::string> names;
    for (const auto& [name, unused] : moments) names.push_back(name);
    const FactoredInputs inputs(moments, names, *engine_.pool);
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
      LayerFit fit;
      for (size_t f = 0; f < specs_.size(); ++f) {
        LOWBIT_TRY_ASSIGN(QTensor q, fit_alone(name, w, specs_[f], inputs, fit));
        c.error[f] += fit.output_error.value_or(0);
        c.bytes[f] += q.total_bytes();
        if (options_.candidates.empty() && specs_[f].format == kProbe) add_probe(c, layer->role, std::move(q), fit);
      }
      if (c.probed.contains(layer->role)) continue;
      QuantizeSpec spec = options_.linear;
      spec.format = kProbe;
      LOWBIT_TRY_ASSIGN(QTensor q, fit_alone(name, w, spec, inputs, fit));
      add_probe(c, layer->role, std::move(q), fit);
    }
    return c;
  }

  static void add_probe(Candidate& c, LinearRole role, QTensor q, const LayerFit& fit) {
    c.probed[role] = std::move(q);
    c.probe_error += fit.output_error.value_or(0);
  }

  /// With error feedback and no more: sizes are compared, not made best.
  Result<QTensor> fit_alone(const std::string& name, const QTensor& w, QuantizeSpec spec, const FactoredInputs& inputs,
                            LayerFit& fit) const {
    spec.fit = "gptq";
    return fit_layer(name, w, spec, options_.seed, inputs.of(name), *engine_.pool, fit);
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

  /// What was chosen, and the sizes next to it on the part's convex hull.
  PartChoice choice_of(const Part& part, size_t chosen) const {
    const auto size = [&](size_t f) {
      const QuantizeSpec& spec = specs_[f];
      return PartChoice::Size{
          fmt::format("{} {}", format_info(spec.format).name, scaling_name(scaling_of(spec))),
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

Result<Allocation> allocate_formats(const WeightSource& source, const Recipe& recipe, const Engine& engine,
                                    const QuantizeOptions& options) {
  return Allocator(source, recipe, engine, options).run();
}

}  // namespace lowbit
