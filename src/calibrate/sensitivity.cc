#include "calibrate/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
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
constexpr int64_t kMomentTokens = 2048;  // for the errors of outputs
constexpr int64_t kProbeTokens = 256;    // for the KL divergence
constexpr int64_t kLogitsAtOnce = 64;
/// Rows of a layer that candidates are compared on: one of sixteen, and enough for an error that means something. Rows are fitted on
/// their own, so a share of them costs that share.
constexpr int64_t kSampledShare = 16, kLeastSampled = 64;

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
    LOWBIT_TRY_ASSIGN(p.room_, BatchRoom::make(p.backend_, p.blocks_, p.rows_, 1, p.backend_.batch_size()));
    LOWBIT_TRY_ASSIGN(p.states_, HiddenStates::make(p.backend_, 1, p.rows_, p.spec_.hidden_size));
    LOWBIT_TRY_ASSIGN(p.part_, HiddenStates::make(p.backend_, 1, p.rows_, p.spec_.hidden_size));
    LOWBIT_TRY_ASSIGN(p.together_, HiddenStates::make(p.backend_, 1, p.rows_, p.spec_.hidden_size));
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

  /// Mean KL divergence of the logits that each part of a block costs, its layers being others than the source's. It is measured for all
  /// parts together, and each has the share of it that it has of the errors at the block's end: a block behind sees those alone.
  /// Blocks and, in a block, inputs of the parts come in the order in which they run.
  Result<std::vector<double>> divergences(int64_t index, const std::vector<ChangedLayers>& parts) {
    const auto at = static_cast<size_t>(index);
    BlockProgram all(blocks_[at], backend_, *engine_.pool);
    for (const ChangedLayers& part : parts) LOWBIT_TRY(replace(all, blocks_[at]->block(), part));
    LOWBIT_TRY(together_.copy_from(states_));
    LOWBIT_TRY(together_.run(all, *room_, kBlockSteps));
    for (size_t b = at + 1; b < blocks_.size(); ++b) LOWBIT_TRY(together_.run(programs_[b], *room_, kBlockSteps));
    std::vector<std::vector<float>> ends;
    for (const ChangedLayers& part : parts) {
      BlockProgram program(blocks_[at], backend_, *engine_.pool);
      LOWBIT_TRY(replace(program, blocks_[at]->block(), part));
      const int step = first_step(blocks_[at]->block(), part);
      if (step > states_.step()) LOWBIT_TRY(states_.run(programs_[at], *room_, step));
      LOWBIT_TRY(part_.copy_from(states_));
      LOWBIT_TRY(part_.run(program, *room_, kBlockSteps));
      LOWBIT_TRY(part_.read(0, ends.emplace_back(static_cast<size_t>(rows_ * spec_.hidden_size))));
    }
    LOWBIT_TRY(states_.run(programs_[at], *room_, kBlockSteps));
    std::vector<float> rows(static_cast<size_t>(rows_ * spec_.hidden_size));
    LOWBIT_TRY(states_.read(0, rows));
    std::vector<double> shares;
    for (const std::vector<float>& end : ends) shares.push_back(error_of(end, rows));
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    LOWBIT_TRY(together_.read(0, rows));
    LOWBIT_TRY_ASSIGN(const double divergence, divergence_of(rows));
    for (double& share : shares) share = sum > 0 ? divergence * share / sum : 0;
    return shares;
  }

 private:
  Probe(const Engine& engine, Backend& backend, ModelSpec spec)
      : engine_(engine), backend_(backend), spec_(std::move(spec)) {}

  /// `part` in place of the source's layers.
  static Status replace(BlockProgram& program, const BlockSpec& block, const ChangedLayers& part) {
    for (const LinearSpec* reader : linears_of(block))
      if (const auto it = part.find(reader->role); it != part.end()) LOWBIT_TRY(program.replace(*reader, it->second));
    return {};
  }

  /// The step of the block that reads the first of them.
  static int first_step(const BlockSpec& block, const ChangedLayers& part) {
    int step = kBlockSteps;
    for (const InputSpec* input : inputs_of(block))
      for (const LinearSpec& reader : input->readers)
        if (part.contains(reader.role)) step = std::min(step, kInputSteps[static_cast<size_t>(input->role)]);
    return step;
  }

  /// Sum over rows of |x - y|^2 / |y|^2: what a norm behind them sees of it.
  double error_of(const std::vector<float>& x, const std::vector<float>& y) const {
    double sum = 0;
    for (int64_t row = 0; row < rows_; ++row) {
      double error = 0, energy = 0;
      for (auto i = static_cast<size_t>(row * spec_.hidden_size);
           i < static_cast<size_t>((row + 1) * spec_.hidden_size); ++i) {
        const double d = double(x[i]) - y[i];
        error += d * d;
        energy += double(y[i]) * y[i];
      }
      if (energy > 0) sum += error / energy;
    }
    return sum;
  }

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
  HiddenStates states_;    // of the source, up to the part that was changed last
  HiddenStates part_;      // those of a part on their way out of its block
  HiddenStates together_;  // those of all parts on their way to the logits
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

/// Rows of a layer, evenly spread over it, as f32.
Result<QTensor> sampled_rows(const QTensor& w) {
  QTensor some;
  some.n = std::min(w.n, std::max(kLeastSampled, w.n / kSampledShare));
  some.k = w.k;
  LOWBIT_TRY_ASSIGN(some.codes,
                    Buffer::allocate(some.n * some.k * static_cast<int64_t>(sizeof(float)), "sampled rows"));
  for (int64_t i = 0; i < some.n; ++i) dequantize_rows(w, i * w.n / some.n, 1, some.codes.as<float>() + i * some.k);
  return some;
}

/// Bytes of n rows, given some of them quantized.
int64_t bytes_of_all(const QTensor& some, int64_t n) {
  const auto table = static_cast<int64_t>(some.codebook.size() * sizeof(float));
  return table + (some.total_bytes() - table) * n / some.n;
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
      LOWBIT_TRY(compare_sizes(name, layer->role, w, inputs, c));
    }
    return c;
  }

  /// Adds a layer's errors in each candidate, and what it is probed with. Feedback saves much the same share at every size, but not of
  /// every layer: it is measured once.
  Status compare_sizes(const std::string& name, LinearRole role, const QTensor& w, const FactoredInputs& inputs,
                       Candidate& c) const {
    const SecondMoments& moments = *inputs.of(name).moments;
    LOWBIT_TRY_ASSIGN(const QTensor some, sampled_rows(w));
    QuantizeSpec probe;
    probe.format = kProbe;
    probe.fit = "gptq";
    LayerFit fit;
    LOWBIT_TRY_ASSIGN(const QTensor fed_back,
                      fit_layer(name, some, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    const double energy = output_energy(some, nullptr, moments), after = output_energy(some, &fed_back, moments);
    probe.fit = "wls";
    LOWBIT_TRY_ASSIGN(const QTensor rounded,
                      fit_layer(name, some, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    const double before = output_energy(some, &rounded, moments);
    const double unit = energy > 0 ? 1 / energy : 0, kept = before > 0 ? after / before : 1;
    c.probe_error += unit * before;
    LOWBIT_TRY_ASSIGN(c.probed[role], fit_layer(name, w, probe, options_.seed, inputs.of(name), *engine_.pool, fit));
    for (size_t f = 0; f < specs_.size(); ++f) {
      QuantizeSpec spec = specs_[f];
      spec.fit = "wls";
      LOWBIT_TRY_ASSIGN(const QTensor q,
                        fit_layer(name, some, spec, options_.seed, inputs.of(name), *engine_.pool, fit));
      c.error[f] += unit * kept * output_energy(some, &q, moments);
      c.bytes[f] += bytes_of_all(q, w.n);
    }
    return {};
  }

  /// tr((W - Q) H (W - Q)^T); without q, tr(W H W^T).
  double output_energy(const QTensor& w, const QTensor* q, const SecondMoments& moments) const {
    std::vector<double> rows(static_cast<size_t>(w.n));
    engine_.pool->parallel_for(w.n, 1, [&](int64_t begin, int64_t end, int) {
      std::vector<float> real(static_cast<size_t>(w.k)), taken(real.size());
      for (int64_t i = begin; i < end; ++i) {
        dequantize_rows(w, i, 1, real.data());
        if (q != nullptr) dequantize_rows(*q, i, 1, taken.data());
        for (size_t c = 0; c < real.size(); ++c) real[c] -= taken[c];
        rows[static_cast<size_t>(i)] = quadratic_form(moments, real.data());
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
