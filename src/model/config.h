#pragma once
// What a Hugging Face config.json says about a decoder-only transformer, checked and with defaults
// filled in.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lowbit/error.h"
#include "ops/rope.h"

namespace lowbit {

class WeightSource;

/// The gate of the feed-forward part: y = act(gate) * up.
enum class HiddenAct { kSilu };

struct ModelConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions = 0;   // what the model was trained for
  int64_t sliding_window = 0;  // 0: none. Contexts up to it need no window
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  float rms_eps = 1e-6f;
  HiddenAct hidden_act = HiddenAct::kSilu;
  bool tied_head = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;                   // RMSNorm of each head of q and k, before the rotation (Qwen3)
  int64_t down_hadamard = 0;              // > 0: each so many inputs of down_proj pass a Hadamard transform first
  std::vector<int32_t> bos_ids, eos_ids;  // may be empty

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  /// The longest context that lowbit computes as the model means it.
  int64_t longest_context() const;
};

/// Reads config.json.
/// Errors, with the key's name: kCorrupt (not JSON), kInvalidArgument (a key that is missing, of a wrong type or out of bounds),
///         kUnsupported (a model_type, hidden_act, rope type or feature that lowbit lacks).
Result<ModelConfig> parse_model_config(std::string_view json);

/// The same of a source's config.json; errors name the source, too.
Result<ModelConfig> model_config_of(const WeightSource& source);

}  // namespace lowbit
