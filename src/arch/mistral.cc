#include "arch/decoder.h"
#include "arch/family.h"
#include "base/try.h"

namespace lowbit {
namespace {

Status describe_mistral(const ConfigReader& config, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const int64_t window, config.integer("sliding_window", 1, kMaxExtent, 0));
  return set_windows(config, window, 0, spec);
}

}  // namespace

/// Its GGUF files say "llama".
constinit const Family kMistral = {
    .model_type = "mistral", .class_name = "MistralForCausalLM", .gguf = "", .describe = describe_mistral};

}  // namespace lowbit
