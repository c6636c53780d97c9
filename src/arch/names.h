#pragma once
// Names of tensors in Hugging Face and in GGUF files. A name here is a stem: ".weight" or ".bias" follows, in a block
// its number comes before.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lowbit {

/// Refers to text that lives as long as the program.
struct TensorName {
  std::string_view hf, gguf;
  bool operator==(const TensorName&) const = default;
};

namespace names {  // the same in all families
inline constexpr TensorName kEmbedding = {"model.embed_tokens", "token_embd"};
inline constexpr TensorName kFinalNorm = {"model.norm", "output_norm"};
inline constexpr TensorName kHead = {"lm_head", "output"};
inline constexpr TensorName kBlocks = {"model.layers.", "blk."};  // a block's number comes next
}  // namespace names

/// "lm_head.weight"; "model.layers.3.self_attn.q_proj.weight".
std::string weight_name(const TensorName& name);
std::string weight_name(int64_t block, const TensorName& name);
std::string bias_name(int64_t block, const TensorName& name);
/// Names in GGUF files: "output.weight", "blk.3.attn_q.weight", "blk.3.attn_q.bias".
std::string gguf_weight_name(const TensorName& name);
std::string gguf_weight_name(int64_t block, const TensorName& name);
std::string gguf_bias_name(int64_t block, const TensorName& name);

/// Whether one of `keys` (a config's modules_to_not_convert) names the module: all of its name, or its first or last
/// parts.
bool names_module(std::span<const std::string> keys, std::string_view module);

/// 7 for "model.layers.7.mlp.up_proj.weight", -1 for names outside the blocks.
int64_t block_of(std::string_view tensor);

}  // namespace lowbit
