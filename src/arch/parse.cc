// config.json -> ModelSpec: what means the same in all families. The family's file does the rest.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arch/decoder.h"
#include "arch/family.h"
#include "base/try.h"
#include "io/checkpoint.h"
#include "io/json_text.h"

namespace lowbit {
namespace {

constexpr int64_t kMaxBlocks = 4096;

Result<const Family*> read_family(const ConfigReader& config) {
  LOWBIT_TRY_ASSIGN(const std::string type, config.text("model_type"));
  // The first BitNet models (1bitLLM) say llama; what differs stands in code of their own. Run as llamas they say
  // nonsense.
  const nlohmann::json* classes = config.find("architectures");
  const bool first_bitnet =
      config.find("weight_bits") != nullptr ||
      (classes != nullptr && classes->is_array() &&
       std::ranges::any_of(*classes, [](const auto& name) { return name == "BitnetForCausalLM"; }));
  if (type == kLlama.model_type && first_bitnet)
    return fail(ErrorCode::kUnsupported, config.where("model_type"),
                "\"llama\" of a BitNet model of the first kind (1bitLLM)", "\"bitnet\"",
                "its GGUF file of the architecture bitnet is read; so are models that transformers runs as bitnet");
  if (const Family* family = family_of_model_type(type)) return family;
  return fail(ErrorCode::kUnsupported, config.where("model_type"), fmt::format("\"{}\"", type.substr(0, 60)),
              family_list());
}

Status read_sizes(const ConfigReader& config, DecoderSizes& s) {
  LOWBIT_TRY_ASSIGN(s.vocab, config.integer("vocab_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(s.hidden, config.integer("hidden_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(s.width, config.integer("intermediate_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(s.blocks, config.integer("num_hidden_layers", 1, kMaxBlocks));
  LOWBIT_TRY_ASSIGN(s.heads, config.integer("num_attention_heads", 1, 1 << 16));
  LOWBIT_TRY_ASSIGN(s.kv_heads, config.integer("num_key_value_heads", 1, 1 << 16, s.heads));
  // Qwen3's class default differs from hidden_size / heads; its files always say head_dim.
  LOWBIT_TRY_ASSIGN(s.head_dim, config.integer("head_dim", 2, 1 << 16, s.hidden / s.heads));
  LOWBIT_TRY_ASSIGN(s.max_positions, config.integer("max_position_embeddings", 1, kMaxExtent, 2048));
  if (s.heads % s.kv_heads != 0)
    return fail(ErrorCode::kInvalidArgument, config.where("num_key_value_heads"), fmt::format("{}", s.kv_heads),
                fmt::format("a divisor of num_attention_heads = {}", s.heads));
  if (config.find("head_dim") == nullptr && s.hidden % s.heads != 0)
    return fail(ErrorCode::kInvalidArgument, config.where("num_attention_heads"), fmt::format("{}", s.heads),
                fmt::format("a divisor of hidden_size = {}", s.hidden));
  if (s.head_dim < 2 || s.head_dim % 2 != 0)
    return fail(ErrorCode::kInvalidArgument, config.where("head_dim"), fmt::format("{}", s.head_dim),
                "an even number, since the rotation works on pairs");
  if (s.heads * s.head_dim > kMaxExtent)
    return fail(ErrorCode::kInvalidArgument, config.where("num_attention_heads"),
                fmt::format("{} heads of {}", s.heads, s.head_dim), fmt::format("at most {} elements", kMaxExtent));
  return {};
}

Status read_llama3(const ConfigReader& rope, RopeScaling& s) {
  s.kind = RopeScaling::Kind::kLlama3;
  LOWBIT_TRY_ASSIGN(s.low_freq_factor, rope.number("low_freq_factor", 1e-3, 1e6));
  LOWBIT_TRY_ASSIGN(s.high_freq_factor, rope.number("high_freq_factor", 1e-3, 1e6));
  LOWBIT_TRY_ASSIGN(s.original_max_positions, rope.integer("original_max_position_embeddings", 1, kMaxExtent));
  if (s.high_freq_factor <= s.low_freq_factor)
    return fail(ErrorCode::kInvalidArgument, rope.where("high_freq_factor"), fmt::format("{:g}", s.high_freq_factor),
                fmt::format("more than low_freq_factor = {:g}", s.low_freq_factor));
  return {};
}

/// rope_theta and rope_scaling, or both in rope_parameters as newer transformers write them.
Status read_rope(const ConfigReader& config, const FamilyDefaults& defaults, DecoderSizes& sizes) {
  sizes.rope.dims = sizes.head_dim;
  const char* holder = config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  LOWBIT_TRY_ASSIGN(const std::optional<ConfigReader> rope, config.object(holder));
  const ConfigReader& of_theta = rope && rope->find("rope_theta") != nullptr ? *rope : config;
  LOWBIT_TRY_ASSIGN(sizes.rope.theta, of_theta.number("rope_theta", 1, 1e12, defaults.rope_theta));
  LOWBIT_TRY_ASSIGN(const double rotary, config.number("partial_rotary_factor", 0, 1, 1.0));
  if (rotary != 1.0)
    return fail(ErrorCode::kUnsupported, config.where("partial_rotary_factor"), fmt::format("{:g}", rotary), "1");
  if (!rope) return {};
  const char* type_key = rope->find("rope_type") != nullptr ? "rope_type" : "type";
  LOWBIT_TRY_ASSIGN(const std::string type, rope->text(type_key, "default"));
  if (type == "default") return {};
  if (type != "linear" && type != "dynamic" && type != "llama3")
    return fail(ErrorCode::kUnsupported, config.where(type_key), fmt::format("\"{}\"", type),
                "default, linear, dynamic or llama3");
  RopeScaling& s = sizes.rope.scaling;
  LOWBIT_TRY_ASSIGN(s.factor, rope->number("factor", 1, 1e6));
  if (type == "llama3") return read_llama3(*rope, s);
  s.kind = type == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kDynamic;
  s.original_max_positions = sizes.max_positions;
  return {};
}

Result<Glu> read_glu(const ConfigReader& config, std::string_view fallback) {
  LOWBIT_TRY_ASSIGN(const std::string act, config.text("hidden_act", std::string(fallback)));
  if (act == "silu") return Glu::kSilu;
  if (act == "gelu_pytorch_tanh") return Glu::kGeluTanh;
  if (act == "relu2") return Glu::kSquaredRelu;
  return fail(ErrorCode::kUnsupported, config.where("hidden_act"), fmt::format("\"{}\"", act.substr(0, 60)),
              "silu, gelu_pytorch_tanh or relu2");
}

/// transformers' norms inside of ternary layers, all or none.
Status read_bitnet_norms(const ConfigReader& config, const ConfigReader& quantization, ModelSpec& spec) {
  LOWBIT_TRY_ASSIGN(const bool norms, quantization.flag("use_rms_norm", false));
  if (!norms) return {};
  LOWBIT_TRY_ASSIGN(const double eps, quantization.number("rms_norm_eps", 0, 1, 1e-6));
  LOWBIT_TRY_ASSIGN(const auto kept, quantization.texts("modules_to_not_convert"));
  for (int64_t i = 0; i < spec.block_count(); ++i)
    for (const LinearSpec* linear : linears_of(spec.blocks[static_cast<size_t>(i)]))
      if (const std::string weight = weight_name(i, linear->name);
          names_module(kept, weight.substr(0, weight.rfind('.'))))
        return fail(ErrorCode::kUnsupported, config.where("modules_to_not_convert"), weight,
                    "layers outside of the blocks, with use_rms_norm");
  set_linear_norms(spec, static_cast<float>(eps));
  return {};
}

/// Reads the operations that a quantization_config adds at run time (norms of linear layers, Hadamard transforms):
/// docs/checkpoint.md.
Status read_transforms(const ConfigReader& config, ModelSpec& spec) {
  const nlohmann::json* q = config.find("quantization_config");
  if (q == nullptr || !q->is_object()) return {};
  const ConfigReader quantization(*q);
  const std::string method = json_string(*q, "quant_method").value_or("");
  if (method == "bitnet") return read_bitnet_norms(config, quantization, spec);
  if (method != "lowbit") return {};
  LOWBIT_TRY_ASSIGN(const auto norms, quantization.object(kLinearNorms));
  if (norms) {
    LOWBIT_TRY_ASSIGN(const double eps, norms->number("eps", 0, 1));
    set_linear_norms(spec, static_cast<float>(eps));
  }
  const nlohmann::json* transforms = quantization.find(kOnlineHadamard);
  if (transforms == nullptr) return {};
  if (!transforms->is_object() || transforms->size() != 1 || !transforms->contains(kDownProjection))
    return fail(ErrorCode::kUnsupported, config.where(kOnlineHadamard), config.shown(*transforms),
                fmt::format("{{\"{}\": the size of a block}}", kDownProjection));
  LOWBIT_TRY_ASSIGN(const int64_t columns, ConfigReader(*transforms).integer(kDownProjection, 2, kMaxExtent));
  for (BlockSpec& block : spec.blocks) {
    if ((columns & (columns - 1)) != 0 || block.mlp.width % columns != 0)
      return fail(ErrorCode::kInvalidArgument, config.where(kOnlineHadamard), fmt::format("{}", columns),
                  fmt::format("a power of two that divides intermediate_size = {}", block.mlp.width));
    block.mlp.down.hadamard = columns;
  }
  return {};
}

}  // namespace

Result<ModelSpec> parse_model_spec(std::string_view config_json) {
  LOWBIT_TRY_ASSIGN(auto root, parse_json_object(config_json, "config.json"));
  const ConfigReader config(std::move(root));
  LOWBIT_TRY_ASSIGN(const Family* family, read_family(config));
  DecoderSizes sizes;
  LOWBIT_TRY(read_sizes(config, sizes));
  LOWBIT_TRY(read_rope(config, family->defaults, sizes));
  LOWBIT_TRY_ASSIGN(const double eps, config.number("rms_norm_eps", 0, 1, family->defaults.rms_norm_eps));
  sizes.eps = static_cast<float>(eps);
  LOWBIT_TRY_ASSIGN(sizes.glu, read_glu(config, family->defaults.hidden_act));
  LOWBIT_TRY_ASSIGN(sizes.tied_head, config.flag("tie_word_embeddings", false));
  ModelSpec spec = plain_decoder(sizes);
  spec.family = family->model_type;
  LOWBIT_TRY(family->describe(config, spec));
  LOWBIT_TRY(read_transforms(config, spec));
  LOWBIT_TRY_ASSIGN(spec.bos_ids, config.token_ids("bos_token_id", spec.vocab_size));
  LOWBIT_TRY_ASSIGN(spec.eos_ids, config.token_ids("eos_token_id", spec.vocab_size));
  return spec;
}

}  // namespace lowbit
