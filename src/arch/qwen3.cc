#include "arch/family.h"
#include "arch/qwen_windows.h"

namespace lowbit {
namespace {

Status describe_qwen3(const ConfigReader& config, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const bool bias, config.flag("attention_bias", false));
  set_attention_bias(spec, bias, bias);
  set_head_norms(spec);
  return set_qwen_windows(config, spec);
}

}  // namespace

constinit const Family kQwen3 = {
    .model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .gguf = "qwen3", .describe = describe_qwen3};

}  // namespace lowbit
