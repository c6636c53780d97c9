#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/try.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "kernels/api.h"
#include "model/source.h"

namespace lowbit {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxExtent = int64_t{1} << 24;  // bounds every size, so that products of two fit easily
constexpr int64_t kMaxLayers = 4096;

std::string where(const char* key) { return fmt::format("config.json \"{}\"", key); }

/// The value as a short text for a message.
std::string shown(const Json& value) {
  std::string text = json_dump(value);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

/// The member, or null when it is absent or JSON null (Hugging Face writes both for "default").
const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<int64_t> read_int(const Json& object, const char* key, int64_t low, int64_t high,
                         std::optional<int64_t> fallback = {}) {
  const Json* value = find(object, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return fail(ErrorCode::kInvalidArgument, where(key), "nothing", fmt::format("an integer in {}..{}", low, high));
  }
  const auto number = json_int(object, key);
  if (!number || *number < low || *number > high)
    return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), fmt::format("an integer in {}..{}", low, high));
  return *number;
}

Result<double> read_number(const Json& object, const char* key, double low, double high,
                           std::optional<double> fallback = {}) {
  const Json* value = find(object, key);
  if (value == nullptr && fallback) return *fallback;
  const auto number = json_number(object, key);
  if (!number || !(*number >= low && *number <= high))
    return fail(ErrorCode::kInvalidArgument, where(key), value ? shown(*value) : "nothing",
                fmt::format("a number in {:g}..{:g}", low, high));
  return *number;
}

Result<bool> read_bool(const Json& object, const char* key, bool fallback) {
  const Json* value = find(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return fail(ErrorCode::kInvalidArgument, where(key), shown(*value), "true or false");
  return value->get<bool>();
}

Result<std::string> read_string(const Json& object, const char* key, std::optional<std::string> fallback = {}) {
  const Json* value = find(object, key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr || !value->is_string())
    return fail(ErrorCode::kInvalidArgument, where(key), value ? shown(*value) : "nothing", "a string");
  return value->get<std::string>();
}

/// An id or a list of ids.
Result<std::vector<int32_t>> read_ids(const Json& object, const char* key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const Json* value = find(object, key);
  if (value == nullptr) return ids;
  const auto bad = [&] {
    return fail(ErrorCode::kInvalidArgument, where(key), shown(*value),
                fmt::format("a token id below {} or a list of them", vocab_size));
  };
  const auto append = [&](const Json& id) {
    if (!id.is_number_integer()) return false;
    if (id.is_number_unsigned() && id.get<uint64_t>() >= uint64_t(vocab_size)) return false;
    const int64_t number = id.get<int64_t>();
    if (number < 0 || number >= vocab_size) return false;
    ids.push_back(int32_t(number));
    return true;
  };
  if (!value->is_array()) {
    if (!append(*value)) return bad();
    return ids;
  }
  if (value->size() > 1024) return bad();
  for (const Json& id : *value)
    if (!append(id)) return bad();
  return ids;
}

Status read_llama3(const Json& rope, ModelConfig& config) {
  RopeScaling& s = config.rope_scaling;
  s.kind = RopeScaling::Kind::kLlama3;
  LOWBIT_TRY_ASSIGN(s.low_freq_factor, read_number(rope, "low_freq_factor", 1e-3, 1e6));
  LOWBIT_TRY_ASSIGN(s.high_freq_factor, read_number(rope, "high_freq_factor", 1e-3, 1e6));
  LOWBIT_TRY_ASSIGN(s.original_max_positions, read_int(rope, "original_max_position_embeddings", 1, kMaxExtent));
  if (s.high_freq_factor <= s.low_freq_factor)
    return fail(ErrorCode::kInvalidArgument, where("high_freq_factor"), fmt::format("{:g}", s.high_freq_factor),
                fmt::format("more than low_freq_factor = {:g}", s.low_freq_factor));
  return {};
}

/// rope_theta and rope_scaling, or both in rope_parameters as newer transformers write them.
Status read_rope(const Json& root, ModelConfig& config) {
  const char* holder = find(root, "rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* rope = find(root, holder);
  if (rope != nullptr && !rope->is_object())
    return fail(ErrorCode::kInvalidArgument, where(holder), shown(*rope), "an object or null");
  const Json& theta_holder = rope != nullptr && find(*rope, "rope_theta") != nullptr ? *rope : root;
  LOWBIT_TRY_ASSIGN(config.rope_theta, read_number(theta_holder, "rope_theta", 1, 1e12, 10000.0));
  if (rope == nullptr) return {};
  const char* type_key = find(*rope, "rope_type") != nullptr ? "rope_type" : "type";
  LOWBIT_TRY_ASSIGN(const std::string type, read_string(*rope, type_key, "default"));
  if (type == "default") return {};
  if (type != "linear" && type != "dynamic" && type != "llama3")
    return fail(ErrorCode::kUnsupported, where(type_key), fmt::format("\"{}\"", type),
                "default, linear, dynamic or llama3");
  RopeScaling& s = config.rope_scaling;
  LOWBIT_TRY_ASSIGN(s.factor, read_number(*rope, "factor", 1, 1e6));
  if (type == "llama3") return read_llama3(*rope, config);
  s.kind = type == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kDynamic;
  s.original_max_positions = config.max_positions;
  return {};
}

/// What depends on the family; the rest of config.json means the same in all of them.
Status read_family(const Json& root, ModelConfig& config) {
  const std::string& type = config.model_type;
  if (type == "llama") {
    LOWBIT_TRY_ASSIGN(config.qkv_bias, read_bool(root, "attention_bias", false));
    config.o_bias = config.qkv_bias;
    LOWBIT_TRY_ASSIGN(config.mlp_bias, read_bool(root, "mlp_bias", false));
  } else if (type == "mistral") {
    LOWBIT_TRY_ASSIGN(config.sliding_window, read_int(root, "sliding_window", 1, kMaxExtent, 0));
  } else if (type == "qwen2" || type == "qwen3") {
    if (type == "qwen2") {
      config.qkv_bias = true;
    } else {
      LOWBIT_TRY_ASSIGN(config.qkv_bias, read_bool(root, "attention_bias", false));
      config.o_bias = config.qkv_bias;
      config.qk_norm = true;
    }
    LOWBIT_TRY_ASSIGN(const bool windowed, read_bool(root, "use_sliding_window", false));
    if (windowed) {
      LOWBIT_TRY_ASSIGN(config.sliding_window, read_int(root, "sliding_window", 1, kMaxExtent, 4096));
    }
  } else {
    return fail(ErrorCode::kUnsupported, where("model_type"), fmt::format("\"{}\"", type.substr(0, 60)),
                "llama, mistral, qwen2 or qwen3");
  }
  return {};
}

Status read_sizes(const Json& root, ModelConfig& config) {
  LOWBIT_TRY_ASSIGN(config.vocab_size, read_int(root, "vocab_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(config.hidden_size, read_int(root, "hidden_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(config.intermediate_size, read_int(root, "intermediate_size", 1, kMaxExtent));
  LOWBIT_TRY_ASSIGN(config.layers, read_int(root, "num_hidden_layers", 1, kMaxLayers));
  LOWBIT_TRY_ASSIGN(config.heads, read_int(root, "num_attention_heads", 1, 1 << 16));
  LOWBIT_TRY_ASSIGN(config.kv_heads, read_int(root, "num_key_value_heads", 1, 1 << 16, config.heads));
  // Qwen3's class default differs from hidden_size / heads; its files always say head_dim.
  LOWBIT_TRY_ASSIGN(config.head_dim, read_int(root, "head_dim", 2, 1 << 16, config.hidden_size / config.heads));
  LOWBIT_TRY_ASSIGN(config.max_positions, read_int(root, "max_position_embeddings", 1, kMaxExtent, 2048));
  if (config.heads % config.kv_heads != 0)
    return fail(ErrorCode::kInvalidArgument, where("num_key_value_heads"), fmt::format("{}", config.kv_heads),
                fmt::format("a divisor of num_attention_heads = {}", config.heads));
  if (find(root, "head_dim") == nullptr && config.hidden_size % config.heads != 0)
    return fail(ErrorCode::kInvalidArgument, where("num_attention_heads"), fmt::format("{}", config.heads),
                fmt::format("a divisor of hidden_size = {}", config.hidden_size));
  if (config.head_dim < 2 || config.head_dim % 2 != 0)
    return fail(ErrorCode::kInvalidArgument, where("head_dim"), fmt::format("{}", config.head_dim),
                "an even number, since the rotation works on pairs");
  if (config.q_size() > kMaxExtent)
    return fail(ErrorCode::kInvalidArgument, where("num_attention_heads"),
                fmt::format("{} heads of {}", config.heads, config.head_dim),
                fmt::format("at most {} elements", kMaxExtent));
  return {};
}

/// What a lowbit checkpoint computes beside its weights: docs/checkpoint.md.
Status read_transforms(const Json& root, ModelConfig& config) {
  const Json* q = json_object(root, "quantization_config");
  if (q == nullptr || json_string(*q, "quant_method") != "lowbit") return {};
  const Json* transforms = find(*q, kOnlineHadamard);
  if (transforms == nullptr) return {};
  if (!transforms->is_object() || transforms->size() != 1 || !transforms->contains(kDownProjection))
    return fail(ErrorCode::kUnsupported, where(kOnlineHadamard), shown(*transforms),
                fmt::format("{{\"{}\": the size of a block}}", kDownProjection));
  LOWBIT_TRY_ASSIGN(config.down_hadamard, read_int(*transforms, kDownProjection, 2, kLargestHadamard));
  const int64_t block = config.down_hadamard;
  if ((block & (block - 1)) != 0 || config.intermediate_size % block != 0)
    return fail(ErrorCode::kInvalidArgument, where(kOnlineHadamard), fmt::format("{}", block),
                fmt::format("a power of two that divides intermediate_size = {}", config.intermediate_size));
  return {};
}

}  // namespace

int64_t ModelConfig::longest_context() const {
  return sliding_window > 0 ? std::min(sliding_window, max_positions) : max_positions;
}

Result<ModelConfig> parse_model_config(std::string_view json) {
  LOWBIT_TRY_ASSIGN(const Json root, parse_json_object(json, "config.json"));
  ModelConfig config;
  LOWBIT_TRY_ASSIGN(config.model_type, read_string(root, "model_type"));
  LOWBIT_TRY(read_sizes(root, config));
  LOWBIT_TRY(read_family(root, config));
  LOWBIT_TRY(read_rope(root, config));
  LOWBIT_TRY(read_transforms(root, config));
  LOWBIT_TRY_ASSIGN(const double eps, read_number(root, "rms_norm_eps", 0, 1, 1e-6));
  config.rms_eps = float(eps);
  LOWBIT_TRY_ASSIGN(config.tied_head, read_bool(root, "tie_word_embeddings", false));
  LOWBIT_TRY_ASSIGN(const std::string act, read_string(root, "hidden_act", "silu"));
  if (act != "silu")
    return fail(ErrorCode::kUnsupported, where("hidden_act"), fmt::format("\"{}\"", act.substr(0, 60)), "silu");
  LOWBIT_TRY_ASSIGN(const double rotary, read_number(root, "partial_rotary_factor", 0, 1, 1.0));
  if (rotary != 1.0)
    return fail(ErrorCode::kUnsupported, where("partial_rotary_factor"), fmt::format("{:g}", rotary), "1");
  LOWBIT_TRY_ASSIGN(config.bos_ids, read_ids(root, "bos_token_id", config.vocab_size));
  LOWBIT_TRY_ASSIGN(config.eos_ids, read_ids(root, "eos_token_id", config.vocab_size));
  return config;
}

Result<ModelConfig> model_config_of(const WeightSource& source) {
  auto config = parse_model_config(source.config_json());
  if (!config) config.error().where = source.path() + ": " + config.error().where;
  return config;
}

}  // namespace lowbit
