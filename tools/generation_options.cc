#include "generation_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/quantize.h"
#include "option_values.h"
#include "progress_display.h"

namespace lowbit::cli {
namespace {

/// 123=-5.5 and 123=-inf.
std::pair<int32_t, float> parse_bias(const std::string& text) {
  const char *at = text.data(), *end = at + text.size();
  std::pair<int32_t, float> bias;
  const auto [equals, id_error] = std::from_chars(at, end, bias.first);
  if (id_error == std::errc() && bias.first >= 0 && equals != end && *equals == '=') {
    const auto [rest, error] = std::from_chars(equals + 1, end, bias.second);
    if (error == std::errc() && rest == end && bias.second < std::numeric_limits<float>::infinity()) return bias;
  }
  throw usage_error("--logit-bias", text, "ID=NUMBER, such as 42=-5 or 42=-inf", "`lowbit tokenize` prints ids");
}

std::vector<uint32_t> mask_of(const std::vector<int32_t>& ids) {
  std::vector<uint32_t> mask;
  if (ids.empty()) throw usage_error("--allow-tokens", "", "token ids");  // an empty mask would allow all of them
  for (const int32_t id : ids) {
    if (id < 0) throw usage_error("--allow-tokens", std::to_string(id), "token ids");
    mask.resize(std::max(mask.size(), static_cast<size_t>(id) / 32 + 1));
    mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  }
  return mask;
}

void add_penalty_options(Verb& verb, SamplerOptions& sampler) {
  add_number_option(verb, "--repeat-penalty", sampler.repeat_penalty, 0.01f, 100, "over 1: repeat less");
  add_number_option(verb, "--frequency-penalty", sampler.frequency_penalty, -100, 100,
                    "from a token's logit for each time that it is among the newest");
  add_number_option(verb, "--presence-penalty", sampler.presence_penalty, -100, 100, "the same, once");
  add_count_option(verb, "--repeat-window", sampler.repeat_window, {0, 1 << 20},
                   fmt::format("how many are the newest, for the penalties [{}]", sampler.repeat_window));
  verb.add_option_function(
          "--logit-bias",
          [&sampler](const std::vector<std::string>& all) {
            for (const std::string& each : all) sampler.logit_bias.push_back(parse_bias(each));
          },
          "add X to the logit of token ID; -inf: never that one; may be repeated")
      ->repeatable()
      ->type_name("ID=X");
  verb.add_option_function(
          "--allow-tokens",
          [&sampler](const std::string& ids) { sampler.token_mask = mask_of(parse_ids("--allow-tokens", ids)); },
          "choose among these ids alone")
      ->type_name("IDS");
}

}  // namespace

void add_generation_options(Verb& verb, GenerateOptions& options) {
  SamplerOptions& sampler = options.sampler;
  add_count_option(verb, "-n,--tokens", options.max_tokens, {0, int64_t{1} << 30},
                   fmt::format("most tokens to generate [{}]", options.max_tokens));
  add_number_option(verb, "--temp", sampler.temperature, 0, 100, "temperature; 0: always the likeliest token");
  add_count_option(verb, "--top-k", sampler.top_k, {0, 1 << 30},
                   fmt::format("sample from the k likeliest; 0: from all [{}]", sampler.top_k));
  add_number_option(verb, "--top-p", sampler.top_p, 0, 1, "sample from the likeliest that sum to p");
  add_number_option(verb, "--min-p", sampler.min_p, 0, 1, "leave out what is less likely than p times the likeliest");
  add_penalty_options(verb, sampler);
  add_seed_option(verb, sampler.seed);
  verb.add_option("--stop", options.stop, "end before this text; may be repeated")->repeatable()->type_name("TEXT");
}

void add_model_options(Verb& verb, ModelOptions& options) {
  add_count_option(verb, "-c,--context", options.context, {1, int64_t{1} << 30},
                   "positions of the KV cache [what the model was trained for, at most 4096]");
  add_activation_option(verb, options.activation);
  add_gpu_layers_option(verb, options.gpu_layers);
  add_exact_option(verb, options.exact);
  add_kv_options(verb, options);
}

Result<Model> open_model(Console& console, const std::string& name, const Compute& compute, ModelOptions options) {
  const auto path = resolve_model(name);
  if (!path) return tl::unexpected(path.error());
  ProgressDisplay progress(console);
  options.compute = with_gpu_found(compute);
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
