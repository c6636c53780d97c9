#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/float.h"
#include "base/try.h"
#include "io/checkpoint.h"
#include "lowbit/quantize.h"
#include "model/source.h"
#include "pipeline/engine.h"
#include "pipeline/recipe.h"
#include "pipeline/source_hash.h"
#include "quantize/fit.h"

namespace lowbit {
namespace {

using Clock = std::chrono::steady_clock;

/// From here on a layer fitted to its weights alone, without calibration, is likely to ruin a small
/// model (measured on SmolLM2-135M: 4 bits, error 0.008, raise the perplexity by 40 %; 3 bits,
/// 0.03, destroy it).
constexpr double kRuinousError = 0.02;

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

Result<QTensor> quantize_tensor(const std::string& name, const QTensor& source, const QuantizeSpec& spec, uint64_t seed,
                                ThreadPool& pool, FitReport& report) {
  FitOptions fit;
  fit.format = spec.format;
  fit.scaling = scaling_of(spec);
  fit.seed = seed;
  LOWBIT_TRY_ASSIGN(fit.method, parse_fit_method(spec.fit));
  const RowReader rows = [&](int64_t first, int64_t count, float* out) -> Status {
    dequantize_rows(source, first, count, out);
    return {};
  };
  auto w = fit_and_pack(rows, source.n, source.k, fit, nullptr, pool, &report);
  if (!w) w.error().where = name + ": " + w.error().where;
  return w;
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

/// What one pass over a source's tensors needs.
struct Conversion {
  const WeightSource& source;
  CheckpointWriter& writer;
  const Progress& progress;
  const char* stage;

  /// Calls each(tensor, loaded) for every tensor, adds what it returns to the writer.
  template <class Each>
  Status run(const Each& each) const {
    const auto& tensors = source.tensors();
    const int64_t total = std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                                          [](int64_t sum, const SourceTensor& t) { return sum + t.stored_bytes; });
    int64_t done = 0;
    for (const SourceTensor& t : tensors) {
      if (progress && !progress(stage, done, total)) return fail(ErrorCode::kCancelled, stage, "a request to stop");
      LOWBIT_TRY_ASSIGN(const QTensor loaded, source.load(t.name));
      LOWBIT_TRY_ASSIGN(const QTensor out, each(t, loaded));
      LOWBIT_TRY(writer.add(t.name, out, t.shape));
      source.release(t.name);
      done += t.stored_bytes;
    }
    if (progress) (void)progress(stage, total, total);
    return {};
  }
};

std::string layer_name(const std::string& tensor) {
  const size_t dot = tensor.rfind(".weight");
  return dot == std::string::npos ? tensor : tensor.substr(0, dot);
}

LayerReport report_layer(const std::string& name, const QTensor& w, bool quantized, const FitReport& fit) {
  LayerReport layer{name, describe(w), w.n, w.k, w.total_bytes(), w.bits_per_weight(), quantized ? fit.rel_error : 0.0,
                    ""};
  if (layer.rel_error > kRuinousError)
    layer.warning =
        fmt::format("loses {:.1f} % of its energy; without calibration the model will probably write garbage",
                    100 * layer.rel_error);
  return layer;
}

void summarize(QuantizeReport& r, int64_t all_bytes, int64_t all_elements) {
  int64_t bytes = 0, elements = 0, ruined = 0;
  double worst = 0;
  for (const LayerReport& layer : r.layers) {
    ruined += !layer.warning.empty();
    worst = std::max(worst, layer.rel_error);
    if (layer_role(layer.name + ".weight", 2) != LayerRole::kLinear) continue;
    bytes += layer.bytes;
    elements += layer.n * layer.k;
  }
  const auto bits = [](int64_t b, int64_t n) {
    return n == 0 ? 0.0 : 8.0 * static_cast<double>(b) / static_cast<double>(n);
  };
  r.bits_per_weight = bits(bytes, elements);
  r.bits_per_weight_total = bits(all_bytes, all_elements);
  if (ruined > 0)
    r.warnings.push_back(
        fmt::format("{} of {} layers lose more than {:.0f} % of their energy (worst {:.1f} %): "
                    "expect garbage. More bits, or a smaller --group, or --keep",
                    ruined, r.layers.size(), 100 * kRuinousError, 100 * worst));
}

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

  QuantizeReport report;
  CheckpointInfo info;
  int64_t all_bytes = 0, all_elements = 0;
  const Conversion conversion{*source, *writer, options.progress, "quantizing"};
  LOWBIT_TRY(copy_side_files(*source, *writer));
  LOWBIT_TRY(conversion.run([&](const SourceTensor& t, const QTensor& w) -> Result<QTensor> {
    const LayerRole role = layer_role(t.name, t.shape.size());
    LOWBIT_TRY_ASSIGN(const QuantizeSpec spec, recipe.spec_for(t.name, role));
    FitReport fit;
    Result<QTensor> out = !spec.keep                 ? quantize_tensor(t.name, w, spec, options.seed, *engine.pool, fit)
                          : source->lossless(t.name) ? Result<QTensor>(w)
                                                     : to_bf16(w);
    if (!out) return out;
    all_bytes += out->total_bytes();
    all_elements += out->n * out->k;
    if (role == LayerRole::kOther) return out;
    report.layers.push_back(report_layer(layer_name(t.name), *out, !spec.keep, fit));
    if (!spec.keep) info.rel_error[layer_name(t.name)] = fit.rel_error;
    return out;
  }));
  info.config_json = source->config_json();
  LOWBIT_TRY_ASSIGN(const std::string hash, source_sha256(path, options.progress));
  info.fit_json =
      nlohmann::json{{"method", options.linear.fit}, {"seed", options.seed}, {"source_sha256", hash}}.dump();
  LOWBIT_TRY_ASSIGN(report.bytes, writer->finish(info));
  summarize(report, all_bytes, all_elements);
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
  const Conversion conversion{*source, *writer, options.progress, "importing"};
  LOWBIT_TRY(copy_side_files(*source, *writer));
  LOWBIT_TRY(conversion.run([&](const SourceTensor& t, const QTensor& w) -> Result<QTensor> {
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
