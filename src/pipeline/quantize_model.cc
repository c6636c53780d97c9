#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/float.h"
#include "base/try.h"
#include "io/checkpoint.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "pipeline/calibration.h"
#include "pipeline/engine.h"
#include "pipeline/layer_fit.h"
#include "pipeline/recipe.h"
#include "pipeline/source_hash.h"

namespace lowbit {
namespace {

using Clock = std::chrono::steady_clock;

/// From here on a layer fitted to its weights alone, without calibration, is likely to ruin a small
/// model (measured on SmolLM2-135M: 4 bits, error 0.008, raise the perplexity by 40 %; 3 bits,
/// 0.03, destroy it).
constexpr double kRuinousError = 0.02;
/// The same of a calibrated layer's outputs (the same model: 3 bits, at most 0.022, raise the perplexity by half; 2 bits, up to
/// 0.07, to the fivefold).
constexpr double kRuinousOutputError = 0.03;

double error_of(const LayerReport& layer) { return layer.output_error.value_or(layer.rel_error); }

std::string describe(const QTensor& w) {
  const std::string name = format_info(w.format).name;
  return format_info(w.format).kind == ValueKind::kDense ? name : name + " " + scaling_name(w.scaling);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A kept tensor goes into the checkpoint as it is when its grid is lowbit's, else as bf16.
Result<QTensor> to_bf16(const QTensor& w) {
  QTensor out;
  out.format = FormatId::kBf16;
  out.n = w.n;
  out.k = w.k;
  LOWBIT_TRY_ASSIGN(out.codes, Buffer::allocate(2 * w.n * w.k, "bf16 weights"));
  std::vector<float> row(static_cast<size_t>(w.k));
  auto* to = out.codes.as<uint16_t>();
  for (int64_t r = 0; r < w.n; ++r) {
    dequantize_rows(w, r, 1, row.data());
    for (float v : row) *to++ = f32_to_bf16(v);
  }
  return out;
}

Status copy_side_files(const WeightSource& source, CheckpointWriter& writer) {
  LOWBIT_TRY(source.tokenizer_status());
  if (!source.tokenizer_json().empty()) LOWBIT_TRY(writer.add_file("tokenizer.json", source.tokenizer_json()));
  if (!source.tokenizer_config_json().empty())
    LOWBIT_TRY(writer.add_file("tokenizer_config.json", source.tokenizer_config_json()));
  if (!source.generation_config_json().empty())
    LOWBIT_TRY(writer.add_file("generation_config.json", source.generation_config_json()));
  return {};
}

/// Copies a source's tensors to a checkpoint, each changed on the way; counts the bytes for the progress display.
class Conversion {
 public:
  Conversion(const WeightSource& source, CheckpointWriter& writer, const Progress& progress, const char* stage)
      : source_(source), writer_(writer), progress_(progress), stage_(stage) {
    for (const SourceTensor& t : source.tensors()) total_ += t.stored_bytes;
  }

  /// Calls each(tensor, loaded), adds what it returns to the writer.
  template <class Each>
  Status convert(const SourceTensor& t, const Each& each) {
    LOWBIT_TRY(check_progress());
    LOWBIT_TRY_ASSIGN(const QTensor loaded, source_.load(t.name));
    LOWBIT_TRY_ASSIGN(const QTensor out, each(t, loaded));
    LOWBIT_TRY(writer_.add(t.name, out, t.shape));
    source_.release(t.name);
    done_ += t.stored_bytes;
    return {};
  }
  Status check_progress() const {
    if (progress_ && !progress_(stage_, done_, total_)) return fail(ErrorCode::kCancelled, stage_, "a request to stop");
    return {};
  }

 private:
  const WeightSource& source_;
  CheckpointWriter& writer_;
  const Progress& progress_;
  const char* stage_;
  int64_t done_ = 0, total_ = 0;
};

/// 7 for "model.layers.7.mlp.up_proj.weight", -1 for other names.
int64_t block_of(const std::string& tensor) {
  constexpr std::string_view kPrefix = "model.layers.";
  int64_t block = -1;
  if (!tensor.starts_with(kPrefix)) return -1;
  std::from_chars(tensor.data() + kPrefix.size(), tensor.data() + tensor.size(), block);
  return block;
}

std::string layer_name(const std::string& tensor) {
  const size_t dot = tensor.rfind(".weight");
  return dot == std::string::npos ? tensor : tensor.substr(0, dot);
}

LayerReport report_layer(const std::string& name, const QTensor& w, const LayerFit& fit) {
  LayerReport layer{name,          describe(w),      w.n, w.k, w.total_bytes(), w.bits_per_weight(),
                    fit.rel_error, fit.output_error, ""};
  const double error = error_of(layer);
  if (error > (fit.output_error ? kRuinousOutputError : kRuinousError))
    layer.warning = fit.output_error ? fmt::format(
                                           "loses {:.1f} % of its output's energy on the calibration text; "
                                           "the model will probably write garbage",
                                           100 * error)
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
  const bool calibrated =
      std::ranges::any_of(r.layers, [](const LayerReport& layer) { return layer.output_error.has_value(); });
  if (ruined > 0)
    r.warnings.push_back(
        fmt::format("{} of {} layers lose too much of their {}energy (worst {:.1f} %): expect garbage. {}", ruined,
                    r.layers.size(), calibrated ? "output's " : "", 100 * worst,
                    calibrated ? "More bits, or a smaller --group, or --keep"
                               : "--calib TEXT, more bits, a smaller --group, or --keep"));
}

/// One run of quantize_model.
class Quantizer {
 public:
  Quantizer(const WeightSource& source, CheckpointWriter& writer, const Recipe& recipe, const Engine& engine,
            const QuantizeOptions& options)
      : source_(source),
        recipe_(recipe),
        engine_(engine),
        options_(options),
        conversion_(source, writer, options.progress, "quantizing") {}

  Status run() {
    if (options_.calibration.file.empty()) {
      for (const SourceTensor& t : source_.tensors()) LOWBIT_TRY(quantize(t, nullptr, nullptr));
    } else {
      LOWBIT_TRY(run_calibrated());
    }
    summarize(report, all_bytes_, all_elements_);
    return {};
  }

  QuantizeReport report;
  CheckpointInfo info;
  nlohmann::json calibration;  // for config.json; null without a text

 private:
  /// The linear layers of one block after another, each on the inputs that the quantized blocks before it give.
  Status run_calibrated() {
    LOWBIT_TRY_ASSIGN(Calibration text, Calibration::start(source_, options_.calibration, engine_));
    calibration = {{"text_sha256", text.text_sha256()}, {"tokens", text.tokens()}};
    std::vector<std::vector<const SourceTensor*>> linears(static_cast<size_t>(text.blocks()));
    for (const SourceTensor& t : source_.tensors()) {
      const int64_t block = layer_role(t.name, t.shape.size()) == LayerRole::kLinear ? block_of(t.name) : -1;
      if (block >= 0 && block < text.blocks())
        linears[static_cast<size_t>(block)].push_back(&t);
      else
        LOWBIT_TRY(quantize(t, nullptr, nullptr));
    }
    for (int64_t block = 0; block < text.blocks(); ++block) {
      LOWBIT_TRY(conversion_.check_progress());
      LOWBIT_TRY_ASSIGN(const MomentsByWeight moments, text.measure(block));
      std::map<std::string, QTensor> quantized;
      for (const SourceTensor* t : linears[static_cast<size_t>(block)]) {
        const auto it = moments.find(t->name);
        LOWBIT_TRY(quantize(*t, it == moments.end() ? nullptr : it->second.get(), &quantized));
      }
      LOWBIT_TRY(text.advance(block, quantized));
    }
    return {};
  }

  Status quantize(const SourceTensor& tensor, const SecondMoments* moments, std::map<std::string, QTensor>* kept) {
    return conversion_.convert(tensor, [&](const SourceTensor& t, const QTensor& w) -> Result<QTensor> {
      const LayerRole role = layer_role(t.name, t.shape.size());
      LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe_.spec_for(t.name, role));
      LayerFit fit;
      Result<QTensor> out = !spec.keep ? fit_layer(t.name, w, spec, options_.seed, moments, *engine_.pool, fit)
                            : source_.lossless(t.name) ? Result<QTensor>(w)
                                                       : to_bf16(w);
      if (!out) return out;
      all_bytes_ += out->total_bytes();
      all_elements_ += out->n * out->k;
      if (role == LayerRole::kOther) return out;
      report.layers.push_back(report_layer(layer_name(t.name), *out, fit));
      if (!spec.keep) info.rel_error[layer_name(t.name)] = fit.rel_error;
      if (kept != nullptr) (*kept)[t.name] = *out;
      return out;
    });
  }

  const WeightSource& source_;
  const Recipe& recipe_;
  const Engine& engine_;
  const QuantizeOptions& options_;
  Conversion conversion_;
  int64_t all_bytes_ = 0, all_elements_ = 0;
};

}  // namespace

Result<QuantizeReport> quantize_model(const std::string& name, const std::string& target,
                                      const QuantizeOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const Engine engine, Engine::make(options.compute));
  LOWBIT_TRY_ASSIGN(const Recipe recipe, Recipe::make(options));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(auto writer,
                    CheckpointWriter::create(target, {.overwrite = options.overwrite, .lowbit_version = version()}));
  LOWBIT_TRY(copy_side_files(*source, *writer));
  Quantizer quantizer(*source, *writer, recipe, engine, options);
  LOWBIT_TRY(quantizer.run());
  LOWBIT_TRY_ASSIGN(const std::string hash, source_sha256(path, options.progress));
  nlohmann::json fit = {{"method", options.linear.fit}, {"seed", options.seed}, {"source_sha256", hash}};
  if (!quantizer.calibration.is_null()) fit["calibration"] = quantizer.calibration;
  quantizer.info.config_json = source->config_json();
  quantizer.info.fit_json = fit.dump();
  QuantizeReport report = std::move(quantizer.report);
  LOWBIT_TRY_ASSIGN(report.bytes, writer->finish(quantizer.info));
  report.seconds = seconds_since(start);
  return report;
}

Result<ImportReport> import_model(const std::string& name, const std::string& target, const ImportOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(auto writer,
                    CheckpointWriter::create(target, {.overwrite = options.overwrite, .lowbit_version = version()}));
  ImportReport report;
  Conversion conversion(*source, *writer, options.progress, "importing");
  LOWBIT_TRY(copy_side_files(*source, *writer));
  for (const SourceTensor& tensor : source->tensors())
    LOWBIT_TRY(conversion.convert(tensor, [&](const SourceTensor& t, const QTensor& w) -> Result<QTensor> {
      ++report.tensors;
      if (source->lossless(t.name)) return w;
      report.dequantized.push_back(t.name);
      return to_bf16(w);
    }));
  CheckpointInfo info;
  info.config_json = source->config_json();
  LOWBIT_TRY_ASSIGN(const std::string hash, source_sha256(path, options.progress));
  info.fit_json = nlohmann::json{{"method", "import"}, {"source_sha256", hash}}.dump();
  LOWBIT_TRY_ASSIGN(report.bytes, writer->finish(info));
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lowbit
