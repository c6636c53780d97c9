// BitNet b1.58 (BitNetForCausalLM, in older files BitnetForCausalLM): squared ReLU, and a norm before each projection
// back to the stream.
#include <string_view>

#include "arch/decoder.h"
#include "arch/family.h"
#include "base/try.h"

namespace lowbit {
namespace {

Status describe_bitnet(const ConfigReader& config, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const bool bias, config.flag("attention_bias", false));
  set_attention_bias(spec, bias, bias);
  for (BlockSpec& block : spec.blocks) {
    AttentionSpec& a = block.attention;
    const float eps = a.qkv.norm->eps;
    a.output.norm = NormSpec{{"self_attn.attn_sub_norm", "attn_sub_norm"}, a.q_size(), eps, 0};
    block.mlp.down.norm = NormSpec{{"mlp.ffn_sub_norm", "ffn_sub_norm"}, block.mlp.width, eps, 0};
  }
  return {};
}

/// llama.cpp's fork for BitNet had the second name at first. The third is that of 1bitLLM's models of the first paper,
/// with SiLU.
constexpr std::string_view kOlderGguf[] = {"bitnet-25", "bitnet"};

}  // namespace

constinit const Family kBitnet = {.model_type = "bitnet",
                                  .class_name = "BitNetForCausalLM",
                                  .gguf = "bitnet-b1.58",
                                  .gguf_older = kOlderGguf,
                                  .defaults = {.rope_theta = 500000, .rms_norm_eps = 1e-5, .hidden_act = "relu2"},
                                  .describe = describe_bitnet};

}  // namespace lowbit
