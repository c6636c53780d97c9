#pragma once
// Names of the tensors outside the blocks, as in Hugging Face's llama family.

namespace lowbit {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kHead = "lm_head.weight";
inline constexpr const char* kFinalNorm = "model.norm.weight";

}  // namespace lowbit
