#include "pipeline/sensitivity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "base/try.h"
#include "kernels/registry.h"
#include "model/model_spec.h"
#include "ops/log_softmax.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "pipeline/calibration.h"
#include "pipeline/layer_fit.h"
#include "pipeline/overlay_source.h"
#include "quantize/allocation.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

constexpr std::array kFormats = {FormatId::kTernaryPacked, FormatId::kInt2Odd, FormatId::kInt3, FormatId::kInt4,
                                 FormatId::kInt8};
constexpr size_t kProbe = 2;             // int3: small enough for losses to add up, large enough to measure
constexpr int64_t kMomentTokens = 4096;  // for the errors of outputs
constexpr int64_t kProbeTokens = 256;    // for the KL divergence
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

/// The source's blocks in memory, and what changing one of them does to the logits.
class Probe {
 public:
  static Result<Probe> make(const WeightSource& source, const Engine& engine, std::vector<float> states) {
    Probe p(source, engine);
    LOWBIT_TRY_ASSIGN(p.spec_, executable_spec_of(source));
    p.rows_ = static_cast<int64_t>(states.size()) / p.spec_.hidden_size;
    p.inputs_.push_back(std::move(states));
    LOWBIT_TRY_ASSIGN(const QTensor norm, source.load(weight_name(p.spec_.final_norm.name)));
    p.norm_.resize(static_cast<size_t>(norm.k));
    dequantize_rows(norm, 0, 1, p.norm_.data());
    LOWBIT_TRY_ASSIGN(const QTensor head, source.load(weight_name(p.spec_.head.name)));
    MatmulOptions options;
    options.activation = Activation::kF32;
    options.isa = engine.isa;
    LOWBIT_TRY_ASSIGN(p.head_, MatmulPlan::make(head, options, *engine.pool));
    for (int64_t b = 0; b < p.spec_.block_count(); ++b) {
      LOWBIT_TRY_ASSIGN(auto block, p.load(source, b));
      std::vector<float> x = p.inputs_.back();
      LOWBIT_TRY(p.run(*block, x));
      p.inputs_.push_back(std::move(x));
      p.blocks_.push_back(std::move(block));
    }
    p.base_.resize(static_cast<size_t>(p.rows_ * head.n));
    LOWBIT_TRY(p.each_logits(p.inputs_.back(), [&p](int64_t row, std::span<float> logits) {
      std::copy(logits.begin(), logits.end(), p.base_.begin() + row * static_cast<int64_t>(logits.size()));
    }));
    return p;
  }

  /// Mean KL divergence of the logits with `weights` in place of the source's in `block`.
  Result<double> divergence(int64_t block, const std::map<std::string, QTensor>& weights) {
    const OverlaySource overlay(source_, weights);
    LOWBIT_TRY_ASSIGN(const auto changed, load(overlay, block));
    std::vector<float> x = inputs_[static_cast<size_t>(block)];
    LOWBIT_TRY(run(*changed, x));
    for (size_t b = static_cast<size_t>(block) + 1; b < blocks_.size(); ++b) LOWBIT_TRY(run(*blocks_[b], x));
    std::vector<double> parts(static_cast<size_t>(rows_));
    LOWBIT_TRY(each_logits(x, [&](int64_t row, std::span<float> logits) {
      parts[static_cast<size_t>(row)] =
          kl_divergence(std::span(base_).subspan(static_cast<size_t>(row) * logits.size(), logits.size()), logits);
    }));
    double sum = 0;
    for (const double part : parts) sum += part;
    return sum / static_cast<double>(rows_);
  }

 private:
  Probe(const WeightSource& source, const Engine& engine) : source_(source), engine_(engine) {}

  Result<std::unique_ptr<Transformer>> load(const WeightSource& source, int64_t block) const {
    LoadOptions load;
    load.x.activation = Activation::kF32;
    load.isa = engine_.isa;
    load.threads = engine_.threads;
    load.context = rows_;
    load.only_block = block;
    return Transformer::load(source, load);
  }
  Status run(Transformer& block, std::vector<float>& x) const {
    LOWBIT_TRY_ASSIGN(KvCache cache, block.make_cache());
    return block.run_block(x, cache);
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

  const WeightSource& source_;
  const Engine& engine_;
  ModelSpec spec_;
  int64_t rows_ = 0;
  std::vector<float> norm_, base_;          // base_: [rows, vocab] log probabilities
  std::vector<std::vector<float>> inputs_;  // of each block, and of the head
  std::vector<std::unique_ptr<Transformer>> blocks_;
  MatmulPlan head_;
};

/// Layers that get one format, and what each costs.
struct Part {
  std::vector<std::string> names;
  std::vector<SizeChoice> choices;  // of kFormats
};

class Allocator {
 public:
  Allocator(const WeightSource& source, const Recipe& recipe, const Engine& engine, const QuantizeOptions& options)
      : source_(source), recipe_(recipe), engine_(engine), options_(options) {}

  Result<std::map<std::string, FormatId>> run() {
    LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(source_));
    CalibrationOptions few = options_.calibration;
    few.tokens = std::min(few.tokens, kMomentTokens);
    LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source_, few, false, engine_));
    const int64_t rows = std::min(kProbeTokens, text.context());
    LOWBIT_TRY_ASSIGN(std::vector<float> states, text.first_rows(rows));
    LOWBIT_TRY_ASSIGN(Probe probe, Probe::make(source_, engine_, std::move(states)));
    for (int64_t block = 0; block < text.blocks(); ++block) {
      LOWBIT_TRY_ASSIGN(const MomentsByWeight moments, text.measure(block));
      std::vector<std::string> names;
      for (const auto& [name, unused] : moments) names.push_back(name);
      const FactoredInputs inputs(moments, names, *engine_.pool);
      const auto parts = parts_of(spec.blocks[static_cast<size_t>(block)]);
      const auto count = static_cast<int64_t>(parts.size());
      for (int64_t p = 0; p < count; ++p) {
        if (options_.progress && !options_.progress("measuring sensitivity", block * count + p, text.blocks() * count))
          return fail(ErrorCode::kCancelled, "measuring sensitivity", "a request to stop");
        LOWBIT_TRY(add_part(block, parts[static_cast<size_t>(p)], inputs, probe));
      }
      LOWBIT_TRY(text.advance(block, {}));
    }
    return choose();
  }

 private:
  Status add_part(int64_t block, const std::vector<const LinearSpec*>& layers, const FactoredInputs& inputs,
                  Probe& probe) {
    Part part;
    std::array<double, kFormats.size()> error{};
    std::array<int64_t, kFormats.size()> bytes{};
    std::map<std::string, QTensor> probed;
    for (const LinearSpec* layer : layers) {
      const std::string name = weight_name(block, layer->name);
      LOWBIT_TRY_ASSIGN(const QTensor w, source_.load(name));
      elements_ += w.n * w.k;
      if (recipe_.names(name)) {
        LOWBIT_TRY(add_fixed(name, w));
        continue;
      }
      part.names.push_back(name);
      for (size_t f = 0; f < kFormats.size(); ++f) {
        QuantizeSpec spec = options_.linear;
        spec.format = kFormats[f];
        spec.fit = "gptq";
        LayerFit fit;
        LOWBIT_TRY_ASSIGN(QTensor q, fit_layer(name, w, spec, options_.seed, inputs.of(name), *engine_.pool, fit));
        error[f] += fit.output_error.value_or(0);
        bytes[f] += q.total_bytes();
        if (f == kProbe) probed[name] = std::move(q);
      }
    }
    if (part.names.empty()) return {};
    LOWBIT_TRY_ASSIGN(const double divergence, probe.divergence(block, probed));
    for (size_t f = 0; f < kFormats.size(); ++f)
      part.choices.push_back(
          {bytes[f], error[kProbe] > 0 ? std::max(divergence, 0.0) * error[f] / error[kProbe] : 0.0});
    parts_.push_back(std::move(part));
    return {};
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

  Result<std::map<std::string, FormatId>> choose() const {
    std::vector<std::vector<SizeChoice>> choices;
    for (const Part& part : parts_) choices.push_back(part.choices);
    const auto budget =
        static_cast<int64_t>(static_cast<double>(options_.target_bpw) * static_cast<double>(elements_) / 8) -
        fixed_bytes_;
    LOWBIT_TRY_ASSIGN(const auto chosen, allocate_sizes(choices, budget));
    std::map<std::string, FormatId> formats;
    for (size_t p = 0; p < parts_.size(); ++p)
      for (const std::string& name : parts_[p].names) formats[name] = kFormats[chosen[p]];
    return formats;
  }

  const WeightSource& source_;
  const Recipe& recipe_;
  const Engine& engine_;
  const QuantizeOptions& options_;
  std::vector<Part> parts_;
  int64_t elements_ = 0, fixed_bytes_ = 0;
};

}  // namespace

Result<std::map<std::string, FormatId>> allocate_formats(const WeightSource& source, const Recipe& recipe,
                                                         const Engine& engine, const QuantizeOptions& options) {
  return Allocator(source, recipe, engine, options).run();
}

nlohmann::json formats_json(const std::map<std::string, FormatId>& formats) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, format] : formats) json[name] = format_info(format).name;
  return json;
}

std::map<std::string, FormatId> parse_formats_json(const nlohmann::json& json) {
  std::map<std::string, FormatId> formats;
  if (!json.is_object()) return {};
  for (const auto& [name, value] : json.items()) {
    const auto format = value.is_string() ? parse_format(value.get<std::string>())
                                          : Result<FormatId>(fail(ErrorCode::kCorrupt, name, "no format"));
    if (!format) return {};
    formats[name] = *format;
  }
  return formats;
}

}  // namespace lowbit
