#include "arch/decoder.h"
#include "arch/family.h"
#include "base/try.h"

namespace lowbit {
namespace {

Status describe_llama(const ConfigReader& config, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const bool attention_bias, config.flag("attention_bias", false));
  LOWBIT_TRY_ASSIGN(const bool mlp_bias, config.flag("mlp_bias", false));
  set_attention_bias(spec, attention_bias, attention_bias);
  set_mlp_bias(spec, mlp_bias);
  return {};
}

}  // namespace

constinit const Family kLlama = {.model_type = "llama",
                                 .class_name = "LlamaForCausalLM",
                                 .gguf = "llama",
                                 .gguf_interleaved = true,
                                 .describe = describe_llama};

}  // namespace lowbit
