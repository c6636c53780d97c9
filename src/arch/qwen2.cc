#include "arch/family.h"
#include "arch/qwen_windows.h"

namespace lowbit {
namespace {

Status describe_qwen2(const ConfigReader& config, ModelSpec& spec) {
  set_attention_bias(spec, true, false);
  return set_qwen_windows(config, spec);
}

}  // namespace

constinit const Family kQwen2 = {
    .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .gguf = "qwen2", .describe = describe_qwen2};

}  // namespace lowbit
