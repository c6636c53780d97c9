#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/sha256.h"
#include "base/try.h"
#include "calibrate/hadamard_source.h"
#include "calibrate/layer_fit.h"
#include "calibrate/recipe.h"
#include "calibrate/rotated_source.h"
#include "calibrate/smoothed_source.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "lowbit/quantize.h"
#include "lowbit/version.h"
#include "model/source.h"
#include "pipeline/conversion.h"
#include "pipeline/presets.h"
#include "pipeline/quantizer.h"
#include "pipeline/source_hash.h"
#include "runtime/engine.h"

namespace lowbit {
namespace {

constexpr int64_t kLongestRecipe = int64_t{1} << 20;

nlohmann::json spec_json(const QuantizeSpec& s) {
  if (s.keep) return "keep";
  nlohmann::json json = {format_info(s.format).name, s.group, static_cast<int>(s.scale), s.zero, s.fit};
  if (s.group_rows > 1) json.push_back(s.group_rows);
  return json;
}

/// Whatever decides the bytes of a quantized model, the calibration text aside.
Result<nlohmann::json> describe_run(const QuantizeOptions& o, const std::string& source_sha256) {
  std::string recipe;
  if (!o.recipe_file.empty()) {
    LOWBIT_TRY_ASSIGN(recipe, read_text_file(o.recipe_file, kLongestRecipe));
  }
  Sha256 hash;
  hash.update(std::as_bytes(std::span(recipe)));
  nlohmann::json run;
  JsonEnd end_run(run);
  run["lowbit_version"] = version();
  run["source_sha256"] = source_sha256;
  run["linear"] = spec_json(o.linear);
  run["embedding"] = spec_json(o.embedding);
  run["head"] = spec_json(o.head);
  run["recipe_sha256"] = hash.finish();
  run["keep"] = o.keep;
  run["rotate"] = o.rotate;
  run["hadamard"] = o.hadamard;
  run["smooth"] = o.smooth;
  run["target_bpw"] = o.target_bpw;
  run["candidates"] = nlohmann::json::array();
  for (const QuantizeSpec& candidate : o.candidates) run["candidates"].push_back(spec_json(candidate));
  run["embedding_head_candidates"] = nlohmann::json::array();
  for (const QuantizeSpec& candidate : o.embedding_head_candidates)
    run["embedding_head_candidates"].push_back(spec_json(candidate));
  run["seed"] = o.seed;
  return end_run.take();
}

/// Refuses options that need a calibration text where there is none.
Status check_text(const QuantizeOptions& o) {
  const auto needs = [](std::string option, const char* what) {
    return fail(ErrorCode::kInvalidArgument, std::move(option), "no text", what, "--calib FILE, or --calib self");
  };
  if (o.smooth > 0 && o.calibration.file == CalibrationOptions::kSelf)
    return fail(ErrorCode::kUnsupported, "--smooth", "--calib self", "a text that is there before the model is changed",
                "--calib FILE");
  if (!o.calibration.file.empty()) return {};
  if (needs_hessian(o.linear)) return needs("--fit " + o.linear.fit, "a text to measure the layers' inputs on");
  if (o.smooth > 0) return needs("--smooth", "a text to measure activations on");
  if (o.target_bpw > 0) return needs("--target-bpw", "a text to measure each layer's part on");
  return {};
}

/// Of what the file stores for a linear layer: an online BitNet stores floats, and is ternary.
Result<double> share_in_model(const WeightSource& source, const SourceTensor& linear) {
  LOWBIT_TRY_ASSIGN(const QTensor w, source.load(linear.name));
  if (is_dense(w.format) || w.total_bytes() >= linear.stored_bytes) return 1;
  return static_cast<double>(w.total_bytes()) / static_cast<double>(linear.stored_bytes);
}

/// A preset of a model that is as small already would only lose.
Status check_larger(const WeightSource& source, const QuantizeOptions& o) {
  if (o.preset.empty()) return {};
  int64_t bytes = 0, elements = 0;
  const SourceTensor* first = nullptr;
  for (const SourceTensor& t : source.tensors()) {
    if (layer_role(t.name, t.shape.size()) != LayerRole::kLinear) continue;
    if (first == nullptr) first = &t;
    bytes += t.stored_bytes;
    elements += t.shape[0] * t.shape[1];
  }
  if (elements == 0) return {};
  LOWBIT_TRY_ASSIGN(const double share, share_in_model(source, *first));
  const double bits = 8.0 * share * static_cast<double>(bytes) / static_cast<double>(elements);
  if (bits > static_cast<double>(o.target_bpw)) return {};
  return fail(ErrorCode::kInvalidArgument, source.path(),
              fmt::format("{:.3g} bits per weight in its linear layers", bits),
              fmt::format("more than the {:g} of --preset {}", o.target_bpw, o.preset),
              "a smaller preset, the model that it was made from, or `lowbit import`, which changes no weight");
}

/// A GPU runs a calibration's blocks and nothing else.
Result<Engine> engine_for(const QuantizeOptions& options) {
  if (!options.calibration.file.empty()) return Engine::make(options.compute);
  LOWBIT_TRY_ASSIGN(const int gpu, wanted_gpu(options.compute));
  if (gpu >= 0)
    return fail(ErrorCode::kUnsupported, "--device", "cuda", "cpu",
                "without a text weights are fitted on the CPU; --calib FILE runs the model on the GPU");
  return Engine::make(options.compute);
}

}  // namespace

Result<QuantizeReport> quantize_model(const std::string& name, const std::string& target,
                                      const QuantizeOptions& given) {
  const auto start = Clock::now();
  QuantizeOptions options = given;
  for (QuantizeSpec* const spec : {&options.linear, &options.embedding, &options.head})
    if (spec->fit == "align") spec->fit = "asymmetric";  // its old name
  LOWBIT_TRY(apply_preset(options));
  if (options.calibration.tokens == 0) options.calibration.tokens = CalibrationOptions::kTokens;
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const Engine engine, engine_for(options));
  LOWBIT_TRY_ASSIGN(Recipe recipe, Recipe::make(options));
  LOWBIT_TRY(check_text(options));
  LOWBIT_TRY_ASSIGN(const auto stored, open_source(path));
  LOWBIT_TRY(check_larger(*stored, options));
  std::unique_ptr<WeightSource> rotated;
  if (options.rotate) {
    LOWBIT_TRY_ASSIGN(rotated, rotate_source(*stored, options.seed));
  }
  const WeightSource* source = rotated ? rotated.get() : stored.get();
  std::unique_ptr<WeightSource> transformed;
  if (options.hadamard) {
    LOWBIT_TRY_ASSIGN(transformed, hadamard_source(*source));
    source = transformed.get();
  }
  std::unique_ptr<WeightSource> smoothed;
  if (options.smooth > 0) {
    LOWBIT_TRY_ASSIGN(smoothed, smooth_source(*source, options, engine));
    source = smoothed.get();
  }
  LOWBIT_TRY_ASSIGN(auto writer, CheckpointWriter::create(target, {.overwrite = options.overwrite}));
  LOWBIT_TRY(copy_side_files(*source, *writer));
  LOWBIT_TRY_ASSIGN(const std::string hash, source_sha256(path, options.progress, *engine.pool));
  LOWBIT_TRY_ASSIGN(nlohmann::json run, describe_run(options, hash));
  Quantizer quantizer(*source, *writer, recipe, engine, options, target, std::move(run));
  LOWBIT_TRY(quantizer.run());
  nlohmann::json fit;
  const JsonEnd end_fit(fit);
  fit["method"] = options.linear.fit;
  fit["seed"] = options.seed;
  fit["source_sha256"] = hash;
  if (!quantizer.calibration.is_null()) fit["calibration"] = quantizer.calibration;
  if (options.rotate) fit["rotation"]["seed"] = options.seed;
  if (options.smooth > 0) fit["smooth"] = options.smooth;
  if (options.target_bpw > 0) fit["target_bpw"] = options.target_bpw;
  if (!options.preset.empty()) fit["preset"] = options.preset;
  quantizer.info.config_json = source->config_json();
  quantizer.info.fit_json = fit.dump();
  QuantizeReport report = std::move(quantizer.report);
  LOWBIT_TRY_ASSIGN(report.bytes, writer->finish(quantizer.info));
  quantizer.remove_state();
  if (source->tokenizer_json().empty())
    report.warnings.push_back(
        "no tokenizer: run, chat and ppl need tokenizer.json and tokenizer_config.json of the model in the checkpoint");
  report.seconds = seconds_since(start);
  return report;
}

Result<ImportReport> import_model(const std::string& name, const std::string& target, const ImportOptions& options) {
  const auto start = Clock::now();
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(name));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path, options.i2s_layout));
  LOWBIT_TRY_ASSIGN(auto writer, CheckpointWriter::create(target, {.overwrite = options.overwrite}));
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
  LOWBIT_TRY_ASSIGN(const int threads, choose_threads(options.compute.threads));
  ThreadPool pool(threads);
  LOWBIT_TRY_ASSIGN(const std::string hash, source_sha256(path, options.progress, pool));
  info.fit_json = nlohmann::json{{"method", "import"}, {"source_sha256", hash}}.dump();
  LOWBIT_TRY_ASSIGN(report.bytes, writer->finish(info));
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace lowbit
