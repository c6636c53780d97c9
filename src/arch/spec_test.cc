#include "arch/spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lowbit {
namespace {

using Json = nlohmann::json;

Json smollm2() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 576},
          {"intermediate_size", 1536},
          {"num_hidden_layers", 30},
          {"num_attention_heads", 9},
          {"num_key_value_heads", 3},
          {"vocab_size", 49152},
          {"max_position_embeddings", 8192},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 100000},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"rope_scaling", nullptr}};
}

ModelSpec must_parse(const Json& json) {
  const auto spec = parse_model_spec(json.dump());
  EXPECT_TRUE(spec.has_value()) << (spec ? "" : spec.error().message());
  return spec.value_or(ModelSpec{});
}

void expect_error(const Json& json, ErrorCode code, const std::string& text) {
  const auto spec = parse_model_spec(json.dump());
  ASSERT_FALSE(spec.has_value()) << json.dump();
  EXPECT_EQ(spec.error().code, code) << spec.error().message();
  EXPECT_NE(spec.error().message().find(text), std::string::npos) << spec.error().message();
}

const AttentionSpec& attention_of(const ModelSpec& spec) { return spec.blocks.front().attention; }

/// Roles of the layers that have a bias.
std::vector<LinearRole> biased(const ModelSpec& spec) {
  std::vector<LinearRole> roles;
  for (const LinearSpec* linear : linears_of(spec.blocks.front()))
    if (linear->bias) roles.push_back(linear->role);
  return roles;
}

using Roles = std::vector<LinearRole>;
const Roles kQkv = {LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue};
const Roles kQkvo = {LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue, LinearRole::kOutput};

TEST(ParseModelSpec, ReadsALlama) {
  const ModelSpec c = must_parse(smollm2());
  EXPECT_EQ(c.family, "llama");
  ASSERT_EQ(c.block_count(), 30);
  for (const BlockSpec& block : c.blocks) EXPECT_EQ(block, c.blocks.front());
  const AttentionSpec& a = attention_of(c);
  EXPECT_EQ(a.head_dim, 64);
  EXPECT_EQ(a.kv_heads, 3);
  EXPECT_EQ(a.scale, 0.125f);
  EXPECT_EQ(a.window, 0);
  EXPECT_EQ(a.rope, (RopeSpec{64, 100000, {}}));
  EXPECT_EQ(a.qkv.norm->eps, 1e-5f);
  EXPECT_EQ(c.final_norm.eps, 1e-5f);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(weight_name(c.head.name), "model.embed_tokens.weight");
  EXPECT_EQ(biased(c), Roles{});
  EXPECT_FALSE(a.q_norm || a.k_norm || a.output.norm || c.blocks.front().mlp.down.norm);
  EXPECT_EQ(c.bos_ids, std::vector<int32_t>{1});
  EXPECT_EQ(c.longest_context(), 8192);
}

TEST(ParseModelSpec, SaysWhoReadsWhichInput) {
  const ModelSpec c = must_parse(smollm2());
  const BlockSpec& block = c.blocks.front();
  std::string inputs;
  for (const InputSpec* input : inputs_of(block)) {
    inputs += input->norm ? std::string(input->norm->name.hf) + ":" : std::string(":");
    for (const LinearSpec& linear : input->readers)
      inputs += fmt::format(" {} [{}, {}]", linear.name.hf, linear.n, linear.k);
    inputs += "\n";
  }
  EXPECT_EQ(inputs,
            "input_layernorm: self_attn.q_proj [576, 576] self_attn.k_proj [192, 576] self_attn.v_proj [192, 576]\n"
            ": self_attn.o_proj [576, 576]\n"
            "post_attention_layernorm: mlp.gate_proj [1536, 576] mlp.up_proj [1536, 576]\n"
            ": mlp.down_proj [576, 1536]\n");
  EXPECT_EQ(linears_of(block).size(), 7u);
  EXPECT_EQ(norms_of(block).size(), 2u);
}

TEST(ParseModelSpec, Defaults) {
  Json j = smollm2();
  for (const char* key : {"num_key_value_heads", "rope_theta", "tie_word_embeddings", "rms_norm_eps", "hidden_act",
                          "bos_token_id", "eos_token_id", "max_position_embeddings"})
    j.erase(key);
  const ModelSpec c = must_parse(j);
  EXPECT_EQ(attention_of(c).kv_heads, 9);
  EXPECT_EQ(attention_of(c).rope->theta, 10000);
  EXPECT_EQ(attention_of(c).qkv.norm->eps, 1e-6f);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(weight_name(c.head.name), "lm_head.weight");
  EXPECT_EQ(c.max_positions, 2048);
  EXPECT_TRUE(c.bos_ids.empty() && c.eos_ids.empty());
}

Json of_family(const char* family) {
  Json j = smollm2();
  j["model_type"] = family;
  return j;
}

TEST(ParseModelSpec, LlamaBiases) {
  Json j = smollm2();
  j["attention_bias"] = true;
  j["eos_token_id"] = {2, 7, 9};
  const ModelSpec c = must_parse(j);
  EXPECT_EQ(biased(c), kQkvo);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{2, 7, 9}));
  j["mlp_bias"] = true;
  EXPECT_EQ(biased(must_parse(j)).size(), 7u);
}

TEST(ParseModelSpec, Mistral) {
  Json j = of_family("mistral");
  EXPECT_EQ(must_parse(j).longest_context(), 8192);
  j["sliding_window"] = nullptr;
  EXPECT_EQ(must_parse(j).longest_context(), 8192);
  j["sliding_window"] = 4096;
  const ModelSpec c = must_parse(j);
  for (const BlockSpec& block : c.blocks) EXPECT_EQ(block.attention.window, 4096);
  EXPECT_EQ(c.longest_context(), 4096);
  EXPECT_EQ(biased(c), Roles{});
}

TEST(ParseModelSpec, Qwen2) {
  Json j = of_family("qwen2");
  j["sliding_window"] = 1024;
  ModelSpec c = must_parse(j);
  EXPECT_EQ(biased(c), kQkv);
  EXPECT_FALSE(attention_of(c).q_norm);
  EXPECT_EQ(c.longest_context(), 8192);  // use_sliding_window is off
  j["use_sliding_window"] = true;
  c = must_parse(j);
  EXPECT_EQ(c.longest_context(), 1024);
  // The class's max_window_layers is 28; blocks below it see everything.
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(c.blocks[i].attention.window, i < 28 ? 0 : 1024) << i;
  j["max_window_layers"] = 30;
  EXPECT_EQ(must_parse(j).longest_context(), 8192);
  j["max_window_layers"] = 0;
  EXPECT_EQ(must_parse(j).blocks.front().attention.window, 1024);
  j["max_window_layers"] = -1;
  expect_error(j, ErrorCode::kInvalidArgument, "max_window_layers");
}

TEST(ParseModelSpec, LayerTypesSayWhichLayersHaveWindows) {
  Json j = of_family("qwen3");
  j["num_hidden_layers"] = 3;
  j["use_sliding_window"] = true;
  j["sliding_window"] = 512;
  j["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  const ModelSpec c = must_parse(j);
  EXPECT_EQ(c.blocks[0].attention.window, 512);
  EXPECT_EQ(c.blocks[1].attention.window, 0);
  EXPECT_EQ(c.blocks[2].attention.window, 512);
  j["layer_types"][1] = "linear_attention";
  expect_error(j, ErrorCode::kUnsupported, "linear_attention");
  j["layer_types"] = {"full_attention"};
  expect_error(j, ErrorCode::kInvalidArgument, "layer_types");
  j["layer_types"] = {"full_attention", 1, 2};
  expect_error(j, ErrorCode::kInvalidArgument, "layer_types");
  j["layer_types"] = "full_attention";
  expect_error(j, ErrorCode::kInvalidArgument, "layer_types");
}

TEST(ParseModelSpec, Qwen3) {
  Json j = of_family("qwen3");
  j["head_dim"] = 128;
  ModelSpec c = must_parse(j);
  ASSERT_TRUE(attention_of(c).q_norm && attention_of(c).k_norm);
  EXPECT_EQ(attention_of(c).q_norm->size, 128);
  EXPECT_EQ(attention_of(c).q_norm->eps, 1e-5f);
  EXPECT_EQ(attention_of(c).q_size(), 9 * 128);
  EXPECT_EQ(biased(c), Roles{});
  j["attention_bias"] = true;
  EXPECT_EQ(biased(must_parse(j)), kQkvo);
}

TEST(ParseModelSpec, BitNet) {
  // microsoft/bitnet-b1.58-2B-4T.
  const Json j = {{"architectures", {"BitNetForCausalLM"}},
                  {"model_type", "bitnet"},
                  {"hidden_size", 2560},
                  {"intermediate_size", 6912},
                  {"num_hidden_layers", 30},
                  {"num_attention_heads", 20},
                  {"num_key_value_heads", 5},
                  {"vocab_size", 128256},
                  {"max_position_embeddings", 4096},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 500000.0},
                  {"hidden_act", "relu2"},
                  {"tie_word_embeddings", true},
                  {"bos_token_id", 128000},
                  {"eos_token_id", 128001}};
  const ModelSpec c = must_parse(j);
  const BlockSpec& block = c.blocks.front();
  EXPECT_EQ(block.attention.head_dim, 128);
  EXPECT_EQ(block.attention.rope->theta, 500000);
  EXPECT_EQ(block.mlp.glu, Glu::kSquaredRelu);
  EXPECT_EQ(block.attention.output.norm, (NormSpec{{"self_attn.attn_sub_norm", "attn_sub_norm"}, 2560, 1e-5f, 0}));
  EXPECT_EQ(block.mlp.down.norm, (NormSpec{{"mlp.ffn_sub_norm", "ffn_sub_norm"}, 6912, 1e-5f, 0}));
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ(biased(c), Roles{});
  Json defaults = j;  // BitNetConfig's own
  for (const char* key : {"rms_norm_eps", "rope_theta", "hidden_act"}) defaults.erase(key);
  EXPECT_EQ(must_parse(defaults), c);
}

TEST(ParseModelSpec, TheFirstBitNetsAreNoLlamas) {
  // 1bitLLM/bitnet_b1_58-3B.
  for (const bool by_class : {true, false}) {
    Json j = smollm2();
    if (by_class) j["architectures"] = {"BitnetForCausalLM"};
    if (!by_class) j["weight_bits"] = 1;
    const auto spec = parse_model_spec(j.dump());
    ASSERT_FALSE(spec);
    EXPECT_EQ(spec.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(spec.error().message().find("1bitLLM"), std::string::npos) << spec.error().message();
  }
}

TEST(ParseModelSpec, RopeForms) {
  Json j = smollm2();
  j["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(must_parse(j).blocks[0].attention.rope->scaling.kind, RopeScaling::Kind::kLinear);
  j["rope_scaling"] = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const ModelSpec c = must_parse(j);
  EXPECT_EQ(attention_of(c).rope->scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(attention_of(c).rope->scaling.factor, 32);
  EXPECT_EQ(attention_of(c).rope->scaling.original_max_positions, 8192);
  j["rope_scaling"]["high_freq_factor"] = 1.0;
  expect_error(j, ErrorCode::kInvalidArgument, "high_freq_factor");
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  expect_error(j, ErrorCode::kUnsupported, "yarn");
  j["rope_scaling"] = 7;
  expect_error(j, ErrorCode::kInvalidArgument, "rope_scaling");
  j.erase("rope_scaling");
  j.erase("rope_theta");
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(must_parse(j).blocks[0].attention.rope->theta, 5e5);
}

TEST(ParseModelSpec, RefusesByName) {
  Json j = smollm2();
  j["model_type"] = "gpt_neox";
  expect_error(j, ErrorCode::kUnsupported, "gpt_neox");
  expect_error(j, ErrorCode::kUnsupported, "llama, mistral, qwen2, qwen3 or bitnet");
  j = smollm2();
  j["hidden_act"] = "gelu";
  expect_error(j, ErrorCode::kUnsupported, "gelu");
  j = smollm2();
  j["partial_rotary_factor"] = 0.5;
  expect_error(j, ErrorCode::kUnsupported, "partial_rotary_factor");
  j = smollm2();
  j["num_key_value_heads"] = 2;
  expect_error(j, ErrorCode::kInvalidArgument, "num_key_value_heads");
  j = smollm2();
  j["bos_token_id"] = 49152;
  expect_error(j, ErrorCode::kInvalidArgument, "bos_token_id");
  j = smollm2();
  j["head_dim"] = 63;
  expect_error(j, ErrorCode::kInvalidArgument, "head_dim");
}

TEST(ParseModelSpec, TransformsOfALowbitCheckpoint) {
  const auto with = [](const Json& transforms, const char* method = "lowbit") {
    Json j = smollm2();
    j["quantization_config"] = {{"quant_method", method}, {"online_hadamard", transforms}};
    return j;
  };
  const auto hadamard = [](const Json& j) { return must_parse(j).blocks.back().mlp.down.hadamard; };
  EXPECT_EQ(hadamard(smollm2()), 0);
  EXPECT_EQ(hadamard(with({{"mlp.down_proj", 512}})), 512);  // of 1536
  EXPECT_EQ(hadamard(with({{"mlp.down_proj", 512}}, "gptq")), 0);
  EXPECT_EQ(hadamard(with(nullptr)), 0);
  for (const Json& block : {Json(1), Json(3), Json(1024), Json(8192), Json(-2), Json("512"), Json(2.5), Json(true)})
    expect_error(with({{"mlp.down_proj", block}}), ErrorCode::kInvalidArgument, "");
  // An unknown setting must be refused, not ignored.
  for (const Json& other : {Json({{"self_attn.o_proj", 64}}), Json({{"mlp.down_proj", 512}, {"self_attn.o_proj", 64}}),
                            Json::object(), Json(512)})
    expect_error(with(other), ErrorCode::kUnsupported, "online_hadamard");
}

TEST(ParseModelSpec, WrongTypesAndBoundsNameTheKey) {
  const Json bad_values[] = {"text", -1, 0, 1.5, 1e300, Json::array(), Json::object(), true, uint64_t(1) << 63};
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings", "head_dim"})
    for (const Json& value : bad_values) {
      Json j = smollm2();
      j[key] = value;
      expect_error(j, ErrorCode::kInvalidArgument, key);
    }
  for (const char* key : {"rms_norm_eps", "rope_theta"})
    for (const Json& value : {Json("text"), Json(-1), Json::array(), Json(true)}) {
      Json j = smollm2();
      j[key] = value;
      expect_error(j, ErrorCode::kInvalidArgument, key);
    }
  for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) {
    Json j = smollm2();
    j[key] = "yes";
    expect_error(j, ErrorCode::kInvalidArgument, key);
  }
  for (const char* key : {"hidden_size", "model_type", "vocab_size", "num_hidden_layers"}) {
    Json j = smollm2();
    j.erase(key);
    expect_error(j, ErrorCode::kInvalidArgument, key);
  }
  for (const char* text : {"", "{", "[]", "null", "{\"model_type\": \"llama\"", "\xff\xfe"})
    EXPECT_FALSE(parse_model_spec(text).has_value()) << text;
}

}  // namespace
}  // namespace lowbit
