#include "arch/decoder.h"

#include <array>
#include <cmath>

#include "base/try.h"

namespace lowbit {
namespace {

BlockSpec plain_block(const DecoderSizes& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  BlockSpec block;
  AttentionSpec& a = block.attention;
  a.heads = s.heads;
  a.kv_heads = s.kv_heads;
  a.head_dim = s.head_dim;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
  a.rope = s.rope;
  a.qkv.role = InputRole::kAttention;
  a.qkv.norm = NormSpec{{"input_layernorm", "attn_norm"}, s.hidden, s.eps, 0};
  a.qkv.readers = {{{"self_attn.q_proj", "attn_q"}, LinearRole::kQuery, q, s.hidden},
                   {{"self_attn.k_proj", "attn_k"}, LinearRole::kKey, kv, s.hidden},
                   {{"self_attn.v_proj", "attn_v"}, LinearRole::kValue, kv, s.hidden}};
  a.output.role = InputRole::kOutput;
  a.output.readers = {{{"self_attn.o_proj", "attn_output"}, LinearRole::kOutput, s.hidden, q}};
  MlpSpec& m = block.mlp;
  m.width = s.width;
  m.glu = s.glu;
  m.gate_up.role = InputRole::kMlp;
  m.gate_up.norm = NormSpec{{"post_attention_layernorm", "ffn_norm"}, s.hidden, s.eps, 0};
  m.gate_up.readers = {{{"mlp.gate_proj", "ffn_gate"}, LinearRole::kGate, s.width, s.hidden},
                       {{"mlp.up_proj", "ffn_up"}, LinearRole::kUp, s.width, s.hidden}};
  m.down.role = InputRole::kDown;
  m.down.readers = {{{"mlp.down_proj", "ffn_down"}, LinearRole::kDown, s.hidden, s.width}};
  return block;
}

}  // namespace

ModelSpec plain_decoder(const DecoderSizes& s) {
  ModelSpec spec;
  spec.vocab_size = s.vocab;
  spec.hidden_size = s.hidden;
  spec.max_positions = s.max_positions;
  spec.final_norm = {names::kFinalNorm, s.hidden, s.eps, 0};
  spec.tied_head = s.tied_head;
  spec.head = {s.tied_head ? names::kEmbedding : names::kHead, LinearRole::kHead, s.vocab, s.hidden};
  spec.blocks.assign(static_cast<size_t>(s.blocks), plain_block(s));
  return spec;
}

void set_attention_bias(ModelSpec& spec, bool qkv, bool output) {
  for (BlockSpec& block : spec.blocks) {
    for (LinearSpec& linear : block.attention.qkv.readers) linear.bias = qkv;
    for (LinearSpec& linear : block.attention.output.readers) linear.bias = output;
  }
}

void set_mlp_bias(ModelSpec& spec, bool bias) {
  for (BlockSpec& block : spec.blocks)
    for (InputSpec* input : {&block.mlp.gate_up, &block.mlp.down})
      for (LinearSpec& linear : input->readers) linear.bias = bias;
}

void set_linear_norms(ModelSpec& spec, float eps) {
  constexpr std::array<std::string_view, static_cast<size_t>(LinearRole::kHead)> kNames = {
      "self_attn.q_proj.rms_norm", "self_attn.k_proj.rms_norm", "self_attn.v_proj.rms_norm",
      "self_attn.o_proj.rms_norm", "mlp.gate_proj.rms_norm",    "mlp.up_proj.rms_norm",
      "mlp.down_proj.rms_norm"};
  for (BlockSpec& block : spec.blocks) {
    AttentionSpec& a = block.attention;
    for (InputSpec* input : {&a.qkv, &a.output, &block.mlp.gate_up, &block.mlp.down})
      for (LinearSpec& linear : input->readers)
        linear.norm = NormSpec{{kNames[static_cast<size_t>(linear.role)], ""}, linear.k, eps, 0};
  }
}

void set_head_norms(ModelSpec& spec) {
  for (BlockSpec& block : spec.blocks) {
    AttentionSpec& a = block.attention;
    const float eps = a.qkv.norm->eps;
    a.q_norm = NormSpec{{"self_attn.q_norm", "attn_q_norm"}, a.head_dim, eps, 0};
    a.k_norm = NormSpec{{"self_attn.k_norm", "attn_k_norm"}, a.head_dim, eps, 0};
  }
}

Status set_windows(const ConfigReader& config, int64_t window, int64_t first, ModelSpec& spec) {
  if (window == 0) return {};
  LOWBIT_TRY_ASSIGN(const auto types, config.texts("layer_types"));
  if (!types.empty() && types.size() != spec.blocks.size())
    return fail(ErrorCode::kInvalidArgument, config.where("layer_types"), std::to_string(types.size()) + " layers",
                std::to_string(spec.blocks.size()) + ", as num_hidden_layers says");
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    bool windowed = static_cast<int64_t>(i) >= first;
    if (!types.empty()) {
      windowed = types[i] == "sliding_attention";
      if (!windowed && types[i] != "full_attention")
        return fail(ErrorCode::kUnsupported, config.where("layer_types"), "\"" + types[i].substr(0, 60) + "\"",
                    "sliding_attention or full_attention");
    }
    spec.blocks[i].attention.window = windowed ? window : 0;
  }
  return {};
}

}  // namespace lowbit
