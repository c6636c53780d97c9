#include "pipeline/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <optional>
#include <utility>

#include "arch/names.h"
#include "base/clock.h"
#include "base/freed_memory.h"
#include "base/try.h"
#include "calibrate/layer_fit.h"
#include "calibrate/sensitivity.h"
#include "calibrate/text_room.h"
#include "calibrate/written_text.h"
#include "format/registry.h"
#include "model/model_spec.h"

namespace lowbit {
namespace {

/// From here on a layer fitted to its weights alone, without calibration, is likely to ruin a small
/// model (measured on SmolLM2-135M: 4 bits, error 0.008, raise the perplexity by 40 %; 3 bits,
/// 0.03, destroy it).
constexpr double kRuinousError = 0.02;
/// The limit for a calibrated layer's outputs (the same model: 3 bits, at most 0.022, raise the perplexity by half; 2
/// bits, up to 0.07, to the fivefold).
constexpr double kRuinousOutputError = 0.03;

double error_of(const LayerReport& layer) { return layer.output_error.value_or(layer.rel_error); }

std::string describe(const QTensor& w) {
  const std::string name = format_info(w.format).name;
  return is_dense(w.format) ? name : name + " " + scaling_name(w.scaling);
}

/// The part of a block's time that goes by before its layers are fitted, and before it is run again: for the progress
/// display.
constexpr double kMeasured = 0.35, kFitted = 0.75;
constexpr int64_t kStepsPerBlock = 100;
/// Tokens from which on `auto` calibrates asymmetrically: with fewer it would fit their noise.
constexpr int64_t kLeastAsymmetricTokens = 8192;

std::string layer_name(const std::string& tensor) {
  const size_t dot = tensor.rfind(".weight");
  return dot == std::string::npos ? tensor : tensor.substr(0, dot);
}

LayerReport report_layer(const std::string& name, const QTensor& w, const LayerFit& fit) {
  LayerReport layer{name,          describe(w),      w.n, w.k, w.total_bytes(), w.bits_per_weight(),
                    fit.rel_error, fit.output_error, ""};
  const double error = error_of(layer);
  if (error > (fit.output_error ? kRuinousOutputError : kRuinousError))
    layer.warning = fit.output_error
                        ? fmt::format("loses {:.1f} % of its output's energy on the calibration text", 100 * error)
                        : fmt::format(
                              "loses {:.1f} % of its energy; without calibration the model will "
                              "probably write garbage",
                              100 * error);
  return layer;
}

void summarize(QuantizeReport& r, int64_t all_bytes, int64_t all_elements) {
  int64_t bytes = 0, elements = 0, ruined = 0;
  double worst = 0;
  for (const LayerReport& layer : r.layers) {
    ruined += !layer.warning.empty();
    if (!layer.warning.empty()) worst = std::max(worst, error_of(layer));
    if (layer_role(layer.name + ".weight", 2) != LayerRole::kLinear) continue;
    bytes += layer.bytes;
    elements += layer.n * layer.k;
  }
  const auto bits = [](int64_t b, int64_t n) {
    return n == 0 ? 0.0 : 8.0 * static_cast<double>(b) / static_cast<double>(n);
  };
  r.bits_per_weight = bits(bytes, elements);
  r.bits_per_weight_total = bits(all_bytes, all_elements);
  if (ruined == 0) return;
  const std::string lost = fmt::format("{} of {} layers lose too much of their {}energy (worst {:.1f} %)", ruined,
                                       r.layers.size(), r.held_out ? "output's " : "", 100 * worst);
  // The perplexity of the whole was measured after calibration: what layers lose says where more bits would help.
  r.warnings.push_back(r.held_out
                           ? fmt::format("{}; measured, the perplexity is {:.3g} times the source's. More bits, a "
                                         "smaller --group, or --keep",
                                         lost, r.held_out->ratio())
                           : fmt::format("{}: expect garbage. --calib TEXT, more bits, a smaller --group, or "
                                         "--keep",
                                         lost));
}

/// Seconds since the last time it was asked, added to one of several sums.
class Stopwatch {
 public:
  void add_to(double& seconds) {
    seconds += seconds_since(start_);
    start_ = Clock::now();
  }

 private:
  Clock::time_point start_ = Clock::now();
};

/// How far a block is, for the progress display. Blocks that were taken over go by faster, so they count for
/// themselves.
class BlockProgress {
 public:
  BlockProgress(const Progress& callback, int64_t block, int64_t blocks, int64_t resumed_blocks, bool resumed)
      : callback_(&callback),
        what_(resumed ? "resuming" : "calibrating"),
        block_(resumed ? block : block - resumed_blocks),
        blocks_(resumed ? blocks : blocks - resumed_blocks) {}

  /// False: stop. `share`: of the block.
  bool show(double share) const {
    return !*callback_ || (*callback_)(what_, block_ * kStepsPerBlock + static_cast<int64_t>(share * kStepsPerBlock),
                                       blocks_ * kStepsPerBlock);
  }
  /// For what takes the block from `begin` to `end`.
  std::function<bool(double)> part(double begin, double end) const {
    return [*this, begin, end](double share) { return show(begin + share * (end - begin)); };
  }

 private:
  const Progress* callback_;
  const char* what_;
  int64_t block_, blocks_;
};

}  // namespace

Quantizer::Quantizer(const WeightSource& source, CheckpointWriter& writer, Recipe& recipe, const Engine& engine,
                     const QuantizeOptions& options, std::string target, nlohmann::json run)
    : source_(source),
      recipe_(recipe),
      engine_(engine),
      options_(options),
      conversion_(source, writer, options.progress, "quantizing"),
      target_(std::move(target)),
      run_(std::move(run)) {}

Status Quantizer::run() {
  if (options_.calibration.file.empty()) {
    for (const SourceTensor& t : source_.tensors()) LOWBIT_TRY(convert(t));
  } else {
    LOWBIT_TRY(run_guarded());
  }
  summarize(report, all_bytes_, all_elements_);
  return {};
}

Status Quantizer::run_guarded() {
  Status done;
  try {
    done = run_calibrated();
  } catch (const std::bad_alloc&) {  // of the standard library; what it held is free again
    done = fail(ErrorCode::kOutOfMemory, step_, "no memory left",
                fmt::format("twice the weights at 16 bits each, {} MB, or more of a small model",
                            2 * bytes_at_16_bits(source_) / 1000000),
                "close other programs, or fewer --calib-tokens");
  }
  if (!done && done.error().code == ErrorCode::kCancelled && state_ && state_->has_results())
    done.error().hint = fmt::format("the same command goes on where it stopped; {} holds what is done", state_->path());
  return done;
}

/// The linear layers of one block after another, each on the inputs that the quantized blocks before it give.
Status Quantizer::run_calibrated() {
  LOWBIT_TRY_ASSIGN(const bool asked_for_asymmetric, ask_whether_asymmetric());
  if (options_.calibration.file == CalibrationOptions::kSelf) LOWBIT_TRY(have_text_written());
  LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source_, options_.calibration, asymmetric_, engine_));
  if (!asked_for_asymmetric && text.tokens() < kLeastAsymmetricTokens) {
    asymmetric_ = false;
    text.drop_source();
  }
  calibration["text_sha256"] = text.text_sha256();
  calibration["tokens"] = text.tokens();
  if (!state_) {
    run_["calibration"] = calibration;
    run_["calibration"]["context"] = text.context();
    LOWBIT_TRY_ASSIGN(state_, CalibrationState::open(target_, run_, options_.overwrite));
  }
  if (options_.target_bpw > 0) LOWBIT_TRY(choose_formats());
  step_ = "calibrating";
  std::vector<Tensors> linears(static_cast<size_t>(text.blocks()));
  for (const SourceTensor& t : source_.tensors()) {
    const int64_t block = layer_role(t.name, t.shape.size()) == LayerRole::kLinear ? block_of(t.name) : -1;
    if (block >= 0 && block < text.blocks())
      linears[static_cast<size_t>(block)].push_back(&t);
    else
      LOWBIT_TRY(convert(t));
  }
  LOWBIT_TRY(text.held_out().start_quantized(embedding_and_head_.at(weight_name(names::kEmbedding))));
  for (int64_t block = 0; block < text.blocks(); ++block)
    LOWBIT_TRY(calibrate_block(text, block, linears[static_cast<size_t>(block)]));
  return check_held_out(text);
}

/// Formats of a budget are not chosen yet: some will have few values.
Result<bool> Quantizer::ask_whether_asymmetric() {
  bool must = false;
  for (const SourceTensor& t : source_.tensors()) {
    if (layer_role(t.name, t.shape.size()) != LayerRole::kLinear || block_of(t.name) < 0) continue;
    LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe_.spec_for(t.name, LayerRole::kLinear));
    must = must || asks_for_asymmetric(spec);
    asymmetric_ = asymmetric_ || is_asymmetric(spec) || (options_.target_bpw > 0 && !spec.keep && spec.fit == "auto");
  }
  return must;
}

/// Or takes over what an earlier run chose.
Status Quantizer::choose_formats() {
  Allocation chosen = parse_allocation_json(state_->load_json("formats"));
  if (chosen.specs.empty()) {
    step_ = "measuring sensitivity";
    LOWBIT_TRY_ASSIGN(chosen, allocate_formats(source_, recipe_, engine_, options_));
    give_back_freed_memory();
    LOWBIT_TRY(state_->save_json("formats", allocation_json(chosen)));
  }
  recipe_.set_specs(std::move(chosen.specs));
  report.choices = std::move(chosen.choices);
  report.embedding_head = std::move(chosen.embedding_head);
  for (std::vector<PartChoice>* const parts : {&report.choices, &report.embedding_head})
    for (PartChoice& part : *parts)
      for (std::string& layer : part.layers) layer = layer_name(layer);
  return {};
}

Status Quantizer::have_text_written() {
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(source_));
  CalibrationOptions& o = options_.calibration;
  o.context = std::min(o.context, spec.longest_context());
  if (o.tokens < o.context)
    return fail(ErrorCode::kInvalidArgument, "--calib-tokens", std::to_string(o.tokens),
                fmt::format("at least {}, one sequence", o.context));
  calibration["written_by"] = "the model itself";
  run_["calibration"] = calibration;
  run_["calibration"]["tokens"] = o.tokens;
  run_["calibration"]["context"] = o.context;
  LOWBIT_TRY_ASSIGN(state_, CalibrationState::open(target_, run_, options_.overwrite));
  for (const nlohmann::json& id : state_->load_json("text"))
    if (id.is_number_integer()) o.sequences.push_back(id.get<TokenId>());
  if (!o.sequences.empty()) return {};
  step_ = "writing text";
  WritingOptions writing;
  writing.tokens = o.tokens;
  writing.context = o.context;
  writing.seed = options_.seed;
  if (options_.progress)
    writing.progress = [this](int64_t done, int64_t total) { return options_.progress("writing text", done, total); };
  LOWBIT_TRY_ASSIGN(o.sequences, write_text(source_, engine_, writing));
  give_back_freed_memory();
  return state_->save_json("text", o.sequences);
}

/// A block on its way through.
struct Quantizer::BlockRun {
  Calibration& text;
  int64_t block;
  const Tensors& linears;
  FinishedBlock finished;
  BlockProgress progress;
  CalibrationTimes& times;
  Stopwatch stopwatch = {};
};

Status Quantizer::calibrate_block(Calibration& text, int64_t block, const Tensors& linears) {
  FinishedBlock finished;
  const bool resumed = state_->load(block, finished);
  report.resumed_blocks += resumed;
  BlockRun run{text,
               block,
               linears,
               std::move(finished),
               BlockProgress(options_.progress, block, text.blocks(), report.resumed_blocks, resumed),
               report.times.emplace(report.times.value_or(CalibrationTimes{}))};
  LOWBIT_TRY(text.begin(block));
  run.stopwatch.add_to(run.times.measure);
  if (resumed) {
    text.set_progress(run.progress.part(0, 1));
    for (const auto& [name, w] : run.finished.weights) LOWBIT_TRY(text.replace(name, w));
  } else {
    LOWBIT_TRY(measure_and_fit(run));
    LOWBIT_TRY(state_->save(block, run.finished));
    text.set_progress(run.progress.part(kFitted, 1));
  }
  for (const SourceTensor* t : linears) {
    const auto it = run.finished.weights.find(t->name);
    if (it == run.finished.weights.end())
      return fail(ErrorCode::kCorrupt, state_->path(), "no " + t->name, "the state of this calibration",
                  "remove that directory");
    LOWBIT_TRY(finish(*t, it->second, run.finished.fits[t->name]));
  }
  run.stopwatch.add_to(run.times.fit);
  LOWBIT_TRY(text.advance());
  run.stopwatch.add_to(run.times.advance);
  return {};
}

Status Quantizer::measure_and_fit(BlockRun& run) {
  run.text.set_progress(run.progress.part(0, kMeasured));
  if (!asymmetric_) {
    LOWBIT_TRY_ASSIGN(const HessianByWeight hessian, run.text.measure());
    return fit_layers(run, hessian, run.linears);
  }
  for (const InputSpec* input : inputs_of(run.text.spec().blocks[static_cast<size_t>(run.block)])) {
    give_back_freed_memory();  // what fits leave lies scattered: the next sums would come on top of it
    LOWBIT_TRY_ASSIGN(const HessianByWeight hessian, run.text.measure_input(input->role));
    Tensors readers;
    for (const SourceTensor* t : run.linears)
      if (hessian.contains(t->name)) readers.push_back(t);
    LOWBIT_TRY(fit_layers(run, hessian, readers));
  }
  return {};
}

Status Quantizer::fit_layers(BlockRun& run, const HessianByWeight& hessian, const Tensors& layers) {
  run.stopwatch.add_to(run.times.measure);
  LOWBIT_TRY_ASSIGN(const auto names, to_be_factored(layers));
  const FactoredInputs inputs(hessian, names.any_order, *engine_.pool, names.on_trellis);
  for (const SourceTensor* t : layers) {
    const double fitted = static_cast<double>(run.finished.weights.size()) / static_cast<double>(run.linears.size());
    if (!run.progress.show(kMeasured + (kFitted - kMeasured) * fitted))
      return fail(ErrorCode::kCancelled, "calibrating", "a request to stop");
    const QTensor* const loaded = run.text.tensor(t->name);
    LOWBIT_TRY_ASSIGN(const QTensor w, loaded != nullptr ? Result<QTensor>(*loaded) : source_.load(t->name));
    QTensor& q = run.finished.weights[t->name];
    LOWBIT_TRY_ASSIGN(q, quantize(*t, w, inputs.of(t->name), run.finished.fits[t->name]));
    LOWBIT_TRY(run.text.replace(t->name, q));
  }
  run.stopwatch.add_to(run.times.fit);
  return {};
}

Status Quantizer::check_held_out(Calibration& text) {
  const std::string own = weight_name(names::kHead);
  const std::string name = source_.has(own) ? own : weight_name(names::kEmbedding);
  const HeldOut& held_out = text.finish();  // before the head is there as well
  LOWBIT_TRY_ASSIGN(const QTensor head, source_.load(name));
  LOWBIT_TRY_ASSIGN(const HeldOutReport held,
                    held_out.finish(source_, head, embedding_and_head_.at(name), engine_.isa, *engine_.pool));
  report.held_out = held;
  calibration["held_back"]["tokens"] = held.tokens;
  calibration["held_back"]["ppl_ratio"] = held.ratio();
  calibration["held_back"]["same_token"] = held.same_token;
  const Verdict verdict = judge(held);
  if (!verdict.broken()) return {};
  if (!options_.accept_broken) {
    LOWBIT_TRY(state_->mark_refused());
    return fail(ErrorCode::kInvalidArgument, "quantize", verdict.what, verdict.wanted,
                fmt::format("more bits, a smaller --group, --keep for fragile layers, --target-bpw; or --force to "
                            "write it anyway, at once from {}",
                            state_->path()));
  }
  report.warnings.push_back("broken: " + verdict.what);
  return {};
}

Result<Quantizer::ToBeFactored> Quantizer::to_be_factored(const Tensors& linears) const {
  ToBeFactored names;
  for (const SourceTensor* t : linears) {
    LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe_.spec_for(t->name, LayerRole::kLinear));
    if (needs_factor(spec))
      (trellis_of(spec.format) != nullptr ? names.on_trellis : names.any_order).push_back(t->name);
  }
  return names;
}

Result<QTensor> Quantizer::quantize(const SourceTensor& t, const QTensor& w, const LayerInput& input, LayerFit& fit) {
  LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe_.spec_for(t.name, layer_role(t.name, t.shape.size())));
  if (!spec.keep)
    return fit_layer(t.name, w, spec, options_.seed, input, *engine_.pool, fit, [&] { source_.release(t.name); });
  return source_.lossless(t.name) ? Result<QTensor>(w) : to_bf16(w);
}

/// Into the checkpoint and the report.
Status Quantizer::finish(const SourceTensor& t, const QTensor& w, const LayerFit& fit) {
  const LayerRole role = layer_role(t.name, t.shape.size());
  all_bytes_ += w.total_bytes();
  all_elements_ += w.n * w.k;
  if (role != LayerRole::kOther) {
    report.layers.push_back(report_layer(layer_name(t.name), w, fit));
    if (!is_dense(w.format)) info.rel_error[layer_name(t.name)] = fit.rel_error;
  }
  if (!options_.calibration.file.empty() && (role == LayerRole::kEmbedding || role == LayerRole::kHead))
    embedding_and_head_[t.name] = w;
  return conversion_.add(t, w);
}

Status Quantizer::convert(const SourceTensor& t) {
  LOWBIT_TRY(conversion_.check_progress());
  LOWBIT_TRY_ASSIGN(const QTensor loaded, source_.load(t.name));
  LayerFit fit;
  LOWBIT_TRY_ASSIGN(const QTensor w, quantize(t, loaded, {}, fit));
  return finish(t, w, fit);
}

}  // namespace lowbit
