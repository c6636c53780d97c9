#include "model/config.h"

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

ModelConfig must_parse(const Json& json) {
  const auto config = parse_model_config(json.dump());
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message());
  return config.value_or(ModelConfig{});
}

void expect_error(const Json& json, ErrorCode code, const std::string& text) {
  const auto config = parse_model_config(json.dump());
  ASSERT_FALSE(config.has_value()) << json.dump();
  EXPECT_EQ(config.error().code, code) << config.error().message();
  EXPECT_NE(config.error().message().find(text), std::string::npos) << config.error().message();
}

TEST(ModelConfig, ReadsALlama) {
  const ModelConfig c = must_parse(smollm2());
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.kv_heads, 3);
  EXPECT_EQ(c.rope_theta, 100000);
  EXPECT_EQ(c.rms_eps, 1e-5f);
  EXPECT_TRUE(c.tied_head);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_EQ(c.bos_ids, std::vector<int32_t>{1});
  EXPECT_EQ(c.longest_context(), 8192);
}

TEST(ModelConfig, Defaults) {
  Json j = smollm2();
  for (const char* key : {"num_key_value_heads", "rope_theta", "tie_word_embeddings", "rms_norm_eps", "hidden_act",
                          "bos_token_id", "eos_token_id", "max_position_embeddings"})
    j.erase(key);
  const ModelConfig c = must_parse(j);
  EXPECT_EQ(c.kv_heads, 9);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.rms_eps, 1e-6f);
  EXPECT_FALSE(c.tied_head);
  EXPECT_EQ(c.max_positions, 2048);
  EXPECT_TRUE(c.bos_ids.empty() && c.eos_ids.empty());
}

TEST(ModelConfig, Families) {
  Json j = smollm2();
  j["attention_bias"] = true;
  j["eos_token_id"] = {2, 7, 9};
  ModelConfig c = must_parse(j);
  EXPECT_TRUE(c.qkv_bias && c.o_bias);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{2, 7, 9}));
  j = smollm2();
  j["model_type"] = "qwen2";
  j["sliding_window"] = 1024;
  c = must_parse(j);
  EXPECT_TRUE(c.qkv_bias && !c.o_bias && !c.qk_norm);
  EXPECT_EQ(c.longest_context(), 8192);  // use_sliding_window is off
  j["use_sliding_window"] = true;
  EXPECT_EQ(must_parse(j).longest_context(), 1024);
  j = smollm2();
  j["model_type"] = "qwen3";
  j["head_dim"] = 128;
  c = must_parse(j);
  EXPECT_TRUE(c.qk_norm && !c.qkv_bias);
  EXPECT_EQ(c.q_size(), 9 * 128);
  j = smollm2();
  j["model_type"] = "mistral";
  j["sliding_window"] = 4096;
  EXPECT_EQ(must_parse(j).longest_context(), 4096);
}

TEST(ModelConfig, RopeForms) {
  Json j = smollm2();
  j["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(must_parse(j).rope_scaling.kind, RopeScaling::Kind::kLinear);
  j["rope_scaling"] = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const ModelConfig c = must_parse(j);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(c.rope_scaling.factor, 32);
  EXPECT_EQ(c.rope_scaling.original_max_positions, 8192);
  j["rope_scaling"]["high_freq_factor"] = 1.0;
  expect_error(j, ErrorCode::kInvalidArgument, "high_freq_factor");
  j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  expect_error(j, ErrorCode::kUnsupported, "yarn");
  j["rope_scaling"] = 7;
  expect_error(j, ErrorCode::kInvalidArgument, "rope_scaling");
  j.erase("rope_scaling");
  j.erase("rope_theta");
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(must_parse(j).rope_theta, 5e5);
}

TEST(ModelConfig, RefusesByName) {
  Json j = smollm2();
  j["model_type"] = "gpt_neox";
  expect_error(j, ErrorCode::kUnsupported, "gpt_neox");
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

TEST(ModelConfig, TransformsOfALowbitCheckpoint) {
  const auto with = [](const Json& transforms, const char* method = "lowbit") {
    Json j = smollm2();
    j["quantization_config"] = {{"quant_method", method}, {"online_hadamard", transforms}};
    return j;
  };
  EXPECT_EQ(parse_model_config(smollm2().dump())->down_hadamard, 0);
  EXPECT_EQ(parse_model_config(with({{"mlp.down_proj", 512}}).dump())->down_hadamard, 512);  // of 1536
  EXPECT_EQ(parse_model_config(with({{"mlp.down_proj", 512}}, "gptq").dump())->down_hadamard, 0);
  EXPECT_EQ(parse_model_config(with(nullptr).dump())->down_hadamard, 0);
  for (const Json& block : {Json(1), Json(3), Json(1024), Json(8192), Json(-2), Json("512"), Json(2.5), Json(true)})
    expect_error(with({{"mlp.down_proj", block}}), ErrorCode::kInvalidArgument, "");
  // What is not known must not be left out.
  for (const Json& other : {Json({{"self_attn.o_proj", 64}}), Json({{"mlp.down_proj", 512}, {"self_attn.o_proj", 64}}),
                            Json::object(), Json(512)})
    expect_error(with(other), ErrorCode::kUnsupported, "online_hadamard");
}

TEST(ModelConfig, WrongTypesAndBoundsNameTheKey) {
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
    EXPECT_FALSE(parse_model_config(text).has_value()) << text;
}

}  // namespace
}  // namespace lowbit
