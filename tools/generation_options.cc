#include "generation_options.h"

#include <fmt/format.h>

#include <fstream>
#include <string>

#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"

namespace lowbit::cli {

void add_generation_options(CLI::App& verb, GenerateOptions& options) {
  SamplerOptions& sampler = options.sampler;
  add_count_option(verb, "-n,--tokens", options.max_tokens, {0, int64_t{1} << 30},
                   fmt::format("most tokens to generate [{}]", options.max_tokens));
  add_number_option(verb, "--temp", sampler.temperature, 0, 100, "temperature; 0: always the likeliest token");
  add_count_option(verb, "--top-k", sampler.top_k, {0, 1 << 30},
                   fmt::format("sample from the k likeliest; 0: from all [{}]", sampler.top_k));
  add_number_option(verb, "--top-p", sampler.top_p, 0, 1, "sample from the likeliest that sum to p");
  add_number_option(verb, "--min-p", sampler.min_p, 0, 1, "leave out what is less likely than p times the likeliest");
  add_number_option(verb, "--repeat-penalty", sampler.repeat_penalty, 0.01f, 100, "over 1: repeat less");
  add_seed_option(verb, sampler.seed);
}

void add_model_options(CLI::App& verb, ModelOptions& options) {
  add_count_option(verb, "-c,--context", options.context, {1, int64_t{1} << 30},
                   "positions of the KV cache [what the model was trained for, at most 4096]");
  add_activation_option(verb, options.activation);
  add_kv_options(verb, options.kv, options.kv_residual);
}

Result<Model> open_model(Console& console, const std::string& name, const Compute& compute, ModelOptions options) {
  const auto path = resolve_model(name);
  if (!path) return tl::unexpected(path.error());
  ProgressDisplay progress(console);
  options.compute = compute;
  options.progress = progress.callback();
  auto model = Model::open(*path, options);
  if (model) warn_of(console, model->tokenizer());
  return model;
}

void warn_of(Console& console, const Tokenizer& tokenizer) {
  for (const std::string& warning : tokenizer.spec().warnings) console.warn(warning);
}

int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  const std::string key = "VmHWM:";
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key, 0) == 0) return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
  return 0;
}

}  // namespace lowbit::cli
