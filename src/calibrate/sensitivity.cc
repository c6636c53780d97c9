#include "calibrate/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <optional>
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
  /// A layer, its errors on some of its rows, and what it is probed with.
  struct Layer {
    std::string name;
    LinearRole role = LinearRole::kQuery;
    QTensor w, some;
    double energy = 0, before = 0, after = 0;  // of the outputs of these rows, and of the probe's errors, by feedback
    QTensor probed;
    std::vector<double> error;   // of the candidates
    std::vector<int64_t> bytes;  // likewise
  };
  /// A thread has one of them: a layer's rounding as its probe, the probe itself, then a candidate each.
  enum Task : size_t { kRounding, kProbed, kCandidates };

  Status add_block(int64_t block, Calibration& text, BlockProbe& probe) {
    const auto parts = parts_of(text.spec().blocks[static_cast<size_t>(block)]);
    const auto count = static_cast<int64_t>(parts.size());
    if (options_.progress && !options_.progress("measuring sensitivity", block * count, text.blocks() * count))
      return fail(ErrorCode::kCancelled, "measuring sensitivity", "a request to stop");
    LOWBIT_TRY(text.begin(probe.block(block)));
    LOWBIT_TRY_ASSIGN(const HessianByWeight hessian, text.measure_and_advance());
    std::vector<std::vector<Layer>> layers;
    for (const std::vector<const LinearSpec*>& part : parts) {
      LOWBIT_TRY_ASSIGN(std::vector<Layer> read, read_layers(block, part));
      if (!read.empty()) layers.push_back(std::move(read));
    }
    LOWBIT_TRY(compare_sizes(hessian, layers));
    std::vector<ChangedLayers> probed(layers.size());
    for (size_t p = 0; p < layers.size(); ++p)
      for (Layer& layer : layers[p]) probed[p][layer.role] = std::move(layer.probed);
    LOWBIT_TRY_ASSIGN(const std::vector<double> divergences, probe.divergences(block, probed));
    for (size_t p = 0; p < layers.size(); ++p) parts_.push_back(part_of(layers[p], std::max(divergences[p], 0.0)));
    for (const std::vector<Layer>& part : layers)
      for (const Layer& layer : part) source_.release(layer.name);
    return {};
  }

  /// Layers of a part, without those that a recipe names.
  Result<std::vector<Layer>> read_layers(int64_t block, const std::vector<const LinearSpec*>& part) {
    std::vector<Layer> layers;
    for (const LinearSpec* spec : part) {
      Layer layer;
      layer.name = weight_name(block, spec->name);
      layer.role = spec->role;
      LOWBIT_TRY_ASSIGN(layer.w, source_.load(layer.name));
      elements_ += layer.w.n * layer.w.k;
      if (recipe_.names(layer.name)) {
        LOWBIT_TRY(add_fixed(layer.name, layer.w));
        continue;
      }
      LOWBIT_TRY_ASSIGN(layer.some, sample_rows(layer.w));
      layer.error.resize(specs_.size());
      layer.bytes.resize(specs_.size());
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  /// Fills in what is found of the layers. There are too few rows of each to share among many threads, so a thread has
  /// a fit for itself; the longest of all, the inputs' factors, comes first.
  Status compare_sizes(const HessianByWeight& hessian, std::vector<std::vector<Layer>>& parts) const {
    std::vector<Layer*> layers;
    for (std::vector<Layer>& part : parts)
      for (Layer& layer : part) layers.push_back(&layer);
    std::ranges::stable_sort(layers, std::greater<>(),
                             [](const Layer* layer) { return layer->w.n * layer->w.k; });  // the longest first
    std::vector<std::string> names;
    for (const auto& [name, unused] : hessian) names.push_back(name);
    std::optional<FactoredInputs> inputs;
    // Large inputs by all threads, before the tasks: one alone would take a thread longer than the rest of its block.
    if (std::ranges::any_of(hessian, [](const auto& input) { return input.second->k > kMostColumnsOfAThread; }))
      inputs.emplace(hessian, names, *engine_.pool);
    const size_t tasks = kCandidates + specs_.size();
    LOWBIT_TRY(for_each_alone(1 + tasks * layers.size(), [&](size_t i, ThreadPool& alone) -> Status {
      if (i == 0) {
        if (!inputs) inputs.emplace(hessian, names, alone);
        return {};
      }
      Layer& layer = *layers[(i - 1) / tasks];
      return run_task((i - 1) % tasks, {hessian.at(layer.name).get()}, layer, alone);
    }));
    // Rows of large inputs are enough work for all threads.
    const auto is_large = [](const Layer* layer) { return layer->w.k > kMostColumnsOfAThread; };
    const std::span large(layers.begin(), std::stable_partition(layers.begin(), layers.end(), is_large));
    const std::span small = std::span(layers).subspan(large.size());
    for (Layer* layer : large) LOWBIT_TRY(feed_back(inputs->of(layer->name), *layer, *engine_.pool));
    return for_each_alone(small.size(), [&](size_t i, ThreadPool& alone) {
      return feed_back(inputs->of(small[i]->name), *small[i], alone);
    });
  }

  /// Calls use(i, a pool of its own thread) for [0, n), begun in this order by several threads. The first error in the
  /// order of i.
  Status for_each_alone(size_t n, const std::function<Status(size_t i, ThreadPool& alone)>& use) const {
    std::vector<Status> status(n);
    std::atomic<size_t> next{0};
    engine_.pool->parallel_for(std::min<int64_t>(engine_.pool->size(), static_cast<int64_t>(n)), 1,
                               [&](int64_t, int64_t, int) {
                                 ThreadPool alone(1);
                                 for (size_t i = next++; i < n; i = next++) status[i] = use(i, alone);
                               });
    for (Status& s : status) LOWBIT_TRY(s);
    return {};
  }

  Status run_task(size_t task, const LayerInput& input, Layer& layer, ThreadPool& alone) const {
    LayerFit fit;
    if (task == kRounding || task == kProbed) {
      const QTensor& of = task == kProbed ? layer.w : layer.some;
      LOWBIT_TRY_ASSIGN(QTensor q, fit_layer(layer.name, of, probe_spec("wls"), options_.seed, input, alone, fit));
      if (task == kProbed) {
        layer.probed = std::move(q);
        return {};
      }
      layer.energy = output_energy(layer.some, nullptr, *input.hessian);
      layer.before = output_energy(layer.some, &q, *input.hessian);
      return {};
    }
    const size_t f = task - kCandidates;
    QuantizeSpec spec = specs_[f];
    spec.fit = "wls";
    LOWBIT_TRY_ASSIGN(const QTensor q, fit_layer(layer.name, layer.some, spec, options_.seed, input, alone, fit));
    layer.error[f] = output_energy(layer.some, &q, *input.hessian);
    layer.bytes[f] = bytes_of_rows(q, layer.w.n);
    return {};
  }

  /// Feedback saves much the same share at every size, but not of every layer: it is measured once.
  Status feed_back(const LayerInput& input, Layer& layer, ThreadPool& alone) const {
    LayerFit fit;
    LOWBIT_TRY_ASSIGN(const QTensor q,
                      fit_layer(layer.name, layer.some, probe_spec("gptq"), options_.seed, input, alone, fit));
    layer.after = output_energy(layer.some, &q, *input.hessian);
    return {};
  }

  static QuantizeSpec probe_spec(const char* fit) {
    QuantizeSpec spec;
    spec.format = kProbe;
    spec.fit = fit;
    return spec;
  }

  /// The layers' sizes, each with its share of the divergence that their probes leave.
  Part part_of(const std::vector<Layer>& layers, double divergence) const {
    Part part;
    double probe_error = 0;
    std::vector<double> error(specs_.size());
    std::vector<int64_t> bytes(specs_.size());
    for (const Layer& layer : layers) {
      const double per_energy = layer.energy > 0 ? 1 / layer.energy : 0,
                   kept = layer.before > 0 ? layer.after / layer.before : 1;
      part.names.push_back(layer.name);
      part.elements += layer.w.n * layer.w.k;
      probe_error += per_energy * layer.before;
      for (size_t f = 0; f < specs_.size(); ++f) {
        error[f] += per_energy * kept * layer.error[f];
        bytes[f] += layer.bytes[f];
      }
    }
    for (size_t f = 0; f < specs_.size(); ++f)
      part.choices.push_back({bytes[f], probe_error > 0 ? divergence * error[f] / probe_error : 0.0});
    return part;
  }

  /// tr((W - Q) H (W - Q)^T); without q, tr(W H W^T).
  static double output_energy(const QTensor& w, const QTensor* q, const InputHessian& hessian) {
    std::vector<float> rows(static_cast<size_t>(w.n * w.k)), taken(static_cast<size_t>(w.k));
    dequantize_rows(w, 0, w.n, rows.data());
    for (int64_t i = 0; q != nullptr && i < w.n; ++i) {
      dequantize_rows(*q, i, 1, taken.data());
      for (size_t c = 0; c < taken.size(); ++c) rows[static_cast<size_t>(i * w.k) + c] -= taken[c];
    }
    return quadratic_form(hessian, rows.data(), w.n);
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
