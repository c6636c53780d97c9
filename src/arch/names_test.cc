#include "arch/names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "arch/family.h"

namespace lowbit {
namespace {

struct Pair {
  const char *hf, *gguf;
};
// Written down by hand, as transformers and llama.cpp have them.
const std::vector<Pair> kPlain = {{"model.layers.3.input_layernorm.weight", "blk.3.attn_norm.weight"},
                                  {"model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight"},
                                  {"model.layers.3.self_attn.k_proj.weight", "blk.3.attn_k.weight"},
                                  {"model.layers.3.self_attn.v_proj.weight", "blk.3.attn_v.weight"},
                                  {"model.layers.3.self_attn.o_proj.weight", "blk.3.attn_output.weight"},
                                  {"model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"},
                                  {"model.layers.3.mlp.gate_proj.weight", "blk.3.ffn_gate.weight"},
                                  {"model.layers.3.mlp.up_proj.weight", "blk.3.ffn_up.weight"},
                                  {"model.layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight"}};
const std::vector<Pair> kOutside = {{"model.embed_tokens.weight", "token_embd.weight"},
                                    {"model.norm.weight", "output_norm.weight"},
                                    {"lm_head.weight", "output.weight"}};
const std::vector<Pair> kHeadNorms = {{"model.layers.3.self_attn.q_norm.weight", "blk.3.attn_q_norm.weight"},
                                      {"model.layers.3.self_attn.k_norm.weight", "blk.3.attn_k_norm.weight"}};
const std::vector<Pair> kSubNorms = {{"model.layers.3.self_attn.attn_sub_norm.weight", "blk.3.attn_sub_norm.weight"},
                                     {"model.layers.3.mlp.ffn_sub_norm.weight", "blk.3.ffn_sub_norm.weight"}};

/// All tensors of block 3, by their names in both kinds of files.
std::vector<std::pair<std::string, std::string>> names_of_block(const ModelSpec& outline) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const LinearSpec* linear : linears_of(outline.blocks.front()))
    all.emplace_back(weight_name(3, linear->name), gguf_weight_name(3, linear->name));
  for (const NormSpec* norm : norms_of(outline.blocks.front()))
    all.emplace_back(weight_name(3, norm->name), gguf_weight_name(3, norm->name));
  std::ranges::sort(all);
  return all;
}

TEST(TensorNames, OfEveryFamily) {
  for (const Family* family : families()) {
    std::vector<Pair> expected = kPlain;
    if (family == &kQwen3) expected.insert(expected.end(), kHeadNorms.begin(), kHeadNorms.end());
    if (family == &kBitnet) expected.insert(expected.end(), kSubNorms.begin(), kSubNorms.end());
    std::vector<std::pair<std::string, std::string>> wanted;
    for (const Pair& pair : expected) wanted.emplace_back(pair.hf, pair.gguf);
    std::ranges::sort(wanted);
    const auto outline = outline_of(*family);
    ASSERT_TRUE(outline) << outline.error().message();
    EXPECT_EQ(names_of_block(*outline), wanted) << family->model_type;
    expected.insert(expected.end(), kOutside.begin(), kOutside.end());
    for (const Pair& pair : expected) EXPECT_EQ(name_of_gguf(*outline, pair.gguf), pair.hf) << family->model_type;
    EXPECT_EQ(name_of_gguf(*outline, "blk.3.attn_q.bias"), "model.layers.3.self_attn.q_proj.bias");
    EXPECT_EQ(bias_name(3, linears_of(outline->blocks.front()).back()->name), "model.layers.3.mlp.down_proj.bias");
    EXPECT_EQ(gguf_bias_name(3, linears_of(outline->blocks.front()).back()->name), "blk.3.ffn_down.bias");
    for (const char* other :
         {"", ".", "blk.3", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.3.attn_q", "blk.3.attn_q.scale",
          "blk.1234567.attn_q.weight", "blk.3.ffn_gate_inp.weight", "blk.-1.attn_q.weight", "attn_q.weight"})
      EXPECT_EQ(name_of_gguf(*outline, other), std::nullopt) << other;
  }
  EXPECT_EQ(name_of_gguf(*outline_of(kLlama), "blk.3.attn_q_norm.weight"), std::nullopt)
      << "no such norm in a llama: what it does must not be left out";
}

TEST(TensorNames, OutsideTheBlocks) {
  EXPECT_EQ(weight_name(names::kEmbedding), "model.embed_tokens.weight");
  EXPECT_EQ(weight_name(names::kHead), "lm_head.weight");
  EXPECT_EQ(weight_name(names::kFinalNorm), "model.norm.weight");
  EXPECT_EQ(gguf_weight_name(names::kHead), "output.weight");
}

TEST(TensorNames, KnowTheirBlockAndLayer) {
  EXPECT_EQ(block_of("model.layers.7.mlp.up_proj.weight"), 7);
  for (const char* name : {"lm_head.weight", "model.layers.", "model.layers.x.mlp.up_proj.weight", ""})
    EXPECT_EQ(block_of(name), -1) << name;
  const auto outline = outline_of(kLlama);
  const BlockSpec& block = outline->blocks.front();
  EXPECT_EQ(linear_of(block, "model.layers.7.mlp.up_proj.weight")->role, LinearRole::kUp);
  EXPECT_EQ(linear_of(block, "model.layers.11.self_attn.v_proj.bias")->role, LinearRole::kValue);
  for (const char* name : {"lm_head.weight", "model.layers.7.input_layernorm.weight", "model.layers.7", "",
                           "model.layers.7.other.mlp.up_proj.weight", "model.layers.7weight"})
    EXPECT_EQ(linear_of(block, name), nullptr) << name;
}

TEST(Families, AreFoundByTypeAndByGguf) {
  EXPECT_EQ(family_of_model_type("qwen3"), &kQwen3);
  EXPECT_EQ(family_of_model_type("gpt_neox"), nullptr);
  EXPECT_EQ(family_of_gguf("llama"), &kLlama);
  for (const char* name : {"bitnet-b1.58", "bitnet-25", "bitnet"}) EXPECT_EQ(family_of_gguf(name), &kBitnet);
  EXPECT_EQ(family_of_gguf("bit"), nullptr);
  EXPECT_EQ(family_of_gguf(""), nullptr);
  EXPECT_EQ(gguf_family_list(), "llama, qwen2, qwen3, bitnet-b1.58, bitnet-25 or bitnet");
}

}  // namespace
}  // namespace lowbit
