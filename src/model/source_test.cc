#include "model/source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "arch/spec.h"
#include "io/checkpoint.h"
#include "io/gguf_test_files.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "lowbit/tokenizer.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

std::string data_path(const std::string& name) {
  const char* data = std::getenv("LOWBIT_DATA");
  return (data ? std::string(data) : LOWBIT_SOURCE_DIR "/../shared/data") + "/" + name;
}

std::vector<float> reals(const QTensor& w) {
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  dequantize_rows(w, 0, w.n, out.data());
  return out;
}

/// A one-layer llama with 2 heads of 4 (1 for keys), hidden 32, Q8_0 and F32 tensors.
GgufTestFile tiny_llama() {
  GgufTestFile f;
  f.kvs = {gguf_text("general.architecture", "llama"),
           gguf_u32("llama.embedding_length", 32),
           gguf_u32("llama.attention.head_count", 8),
           gguf_u32("llama.attention.head_count_kv", 4),
           gguf_u32("llama.feed_forward_length", 64),
           gguf_u32("llama.block_count", 1),
           gguf_u32("llama.context_length", 128),
           gguf_kv("llama.attention.layer_norm_rms_epsilon", GgufValueType::kF32, raw(1e-5f)),
           gguf_kv("llama.rope.freq_base", GgufValueType::kF32, raw(500000.0f))};
  const auto tensor = [&](const char* name, uint64_t k, uint64_t n) {
    std::string data;  // Q8_0, scale 1; row r of a tensor holds the value r everywhere
    for (uint64_t r = 0; r < n; ++r)
      for (uint64_t b = 0; b < k / 32; ++b) data += raw<uint16_t>(0x3c00) + std::string(32, static_cast<char>(r));
    f.tensors.push_back({name, {k, n}, 8, data});
  };
  tensor("token_embd.weight", 32, 16);
  tensor("blk.0.attn_q.weight", 32, 32);
  tensor("blk.0.attn_k.weight", 32, 16);
  tensor("blk.0.attn_v.weight", 32, 16);
  std::string bias;
  for (int i = 0; i < 32; ++i) bias += raw(static_cast<float>(i));
  f.tensors.push_back({"blk.0.attn_q.bias", {32}, 0, bias});
  return f;
}

Result<std::unique_ptr<WeightSource>> open_bytes(const Scratch& dir, GgufTestFile f) {
  write_file(dir / "m.gguf", f.bytes());
  return open_source(dir / "m.gguf");
}

TEST(GgufSource, RowsOfQAndKComeInHuggingFaceOrder) {
  Scratch dir;
  GgufTestFile file = tiny_llama();
  const auto s = open_bytes(dir, file);
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_STREQ((*s)->kind(), "gguf");
  const int order[4] = {0, 2, 1, 3};  // HF row r of a head lies in GGUF row order[r]
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    const auto w = (*s)->load(std::string("model.layers.0.self_attn.") + name + ".weight");
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->format, FormatId::kInt8);
    const auto values = reals(*w);
    for (int64_t r = 0; r < w->n; ++r)
      EXPECT_EQ(values[static_cast<size_t>(r * w->k)],
                static_cast<float>(name[0] == 'v' ? r : r / 4 * 4 + order[r % 4]))
          << name << " " << r;
  }
  const auto bias = (*s)->load("model.layers.0.self_attn.q_proj.bias");
  ASSERT_TRUE(bias);
  EXPECT_EQ(reals(*bias)[1], 2.0f);
  EXPECT_EQ((*s)->load("model.norm.weight").error().code, ErrorCode::kNotFound);
  file.kvs[0] = gguf_text("general.architecture", "qwen2");
  for (auto& kv : file.kvs)
    if (const size_t at = kv.find("llama."); at != std::string::npos)
      kv = raw<uint64_t>(*reinterpret_cast<const uint64_t*>(kv.data())) + "qwen2" + kv.substr(at + 5);
  const auto qwen = open_bytes(dir, file);
  ASSERT_TRUE(qwen) << qwen.error().message();
  EXPECT_EQ(reals(*(*qwen)->load("model.layers.0.self_attn.q_proj.weight"))[32], 1.0f)
      << "qwen2 files are in half-split order already";
}

TEST(GgufSource, ConfigComesFromMetadata) {
  Scratch dir;
  GgufTestFile file = tiny_llama();
  const auto config_of = [&](const GgufTestFile& f) {
    const auto s = open_bytes(dir, f);
    EXPECT_TRUE(s) << s.error().message();
    return s ? *parse_json_object((*s)->config_json(), "config") : nlohmann::json::object();
  };
  auto config = config_of(file);
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_EQ(config["num_key_value_heads"], 4);
  EXPECT_EQ(config["head_dim"], 4);
  EXPECT_EQ(config["vocab_size"], 16);
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
  EXPECT_EQ(config["rope_theta"], 500000.0);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["attention_bias"], true);
  EXPECT_FALSE(config.contains("rope_scaling"));
  GgufTestFile linear = file;
  linear.kvs.push_back(gguf_text("llama.rope.scaling.type", "linear"));
  linear.kvs.push_back(gguf_kv("llama.rope.scaling.factor", GgufValueType::kF32, raw(2.5f)));
  EXPECT_EQ(config_of(linear)["rope_scaling"], (nlohmann::json{{"rope_type", "linear"}, {"factor", 2.5}}));
  GgufTestFile windowed = file;
  windowed.kvs.push_back(gguf_u32("llama.attention.sliding_window", 64));
  config = config_of(windowed);
  EXPECT_EQ(config["model_type"], "mistral");
  const auto spec = parse_model_spec(config.dump());
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(spec->longest_context(), 64);
  config["model_type"] = "qwen2";  // as in its files: the metadata name no layers
  EXPECT_EQ(parse_model_spec(config.dump())->blocks.front().attention.window, 64);
}

TEST(GgufSource, ANormThatTheFamilyLacksIsAnError) {
  Scratch dir;
  GgufTestFile file = tiny_llama();
  file.tensors.push_back({"blk.0.attn_q_norm.weight", {4}, 0, std::string(16, '\0')});
  const auto source = open_bytes(dir, file);
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(source.error().message().find("attn_q_norm"), std::string::npos);
}

TEST(GgufSource, RopeFactorsBecomeLlama3Scaling) {
  Scratch dir;
  GgufTestFile file = tiny_llama();
  file.kvs.push_back(gguf_u32("llama.attention.key_length", 64));
  file.tensors.push_back({"rope_freqs.weight", {32}, 0, ""});
  for (const int original : {2048, 4096, 8192, 16384, 32768}) {
    // The factors that llama.cpp's converter writes for Llama 3.2 1B (head 64, theta 500000, factor 32; 8192), computed
    // here in another way.
    std::string factors;
    for (int i = 0; i < 32; ++i) {
      const double frequency = std::pow(500000.0, -i / 32.0), wavelength = 2 * M_PI / frequency;
      const double smooth = (original / wavelength - 1) / 3;
      factors += raw(static_cast<float>(wavelength < original / 4 ? 1.0
                                        : wavelength > original   ? 32.0
                                                                  : 1 / ((1 - smooth) / 32 + smooth)));
    }
    file.tensors.back().data = factors;
    const auto s = open_bytes(dir, file);
    ASSERT_TRUE(s) << s.error().message();
    const auto config = *parse_json_object((*s)->config_json(), "config");
    EXPECT_EQ(config["rope_scaling"]["rope_type"], "llama3");
    EXPECT_EQ(config["rope_scaling"]["factor"], 32.0);
    EXPECT_EQ(config["rope_scaling"]["original_max_position_embeddings"], original);
    EXPECT_FALSE((*s)->has("rope_freqs.weight"));
  }
  const float odd = 3.5f;
  std::memcpy(file.tensors.back().data.data() + 40, &odd, 4);
  EXPECT_EQ(open_bytes(dir, file).error().code, ErrorCode::kUnsupported);
}

TEST(GgufSource, WhatItCannotBeIsAnError) {
  Scratch dir;
  GgufTestFile other = tiny_llama();
  other.kvs[0] = gguf_text("general.architecture", "mamba");
  EXPECT_EQ(open_bytes(dir, other).error().code, ErrorCode::kUnsupported);
  GgufTestFile experts = tiny_llama();
  experts.tensors.push_back({"blk.0.ffn_gate_inp.weight", {32, 4}, 0, std::string(512, '\0')});
  EXPECT_NE(open_bytes(dir, experts).error().message().find("ffn_gate_inp"), std::string::npos);
  for (const size_t missing : {1u, 2u, 4u, 5u, 6u}) {
    GgufTestFile f = tiny_llama();
    f.kvs.erase(f.kvs.begin() + static_cast<int64_t>(missing));
    EXPECT_EQ(open_bytes(dir, f).error().code, ErrorCode::kNotFound) << missing;
  }
  for (const uint32_t heads : {0u, 3u, 33u, UINT32_MAX}) {
    GgufTestFile f = tiny_llama();
    f.kvs[2] = gguf_u32("llama.attention.head_count", heads);
    const auto s = open_bytes(dir, f);
    if (s) {
      EXPECT_FALSE((*s)->load("model.layers.0.self_attn.q_proj.weight")) << heads;
    }
  }
  EXPECT_EQ(open_source(dir / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(open_source(dir.path()).error().code, ErrorCode::kNotFound);
  write_file(dir / "x.bin", "hello");
  EXPECT_EQ(open_source(dir / "x.bin").error().code, ErrorCode::kUnsupported);
}

TEST(GgufSource, NumbersThatAreNoneAreErrorsAndNoDefaults) {
  Scratch dir;
  const auto error_of = [&](size_t key, const std::string& kv) {
    GgufTestFile f = tiny_llama();
    f.kvs[key] = kv;
    const auto s = open_bytes(dir, f);
    return s ? Error{ErrorCode::kCancelled, "", "", "", ""} : s.error();
  };
  constexpr size_t kEpsilon = 7, kBase = 8;
  for (const float v : {NAN, INFINITY, -INFINITY, -1.0f, 0.0f}) {
    for (const auto& [at, key] :
         {std::pair{kEpsilon, "llama.attention.layer_norm_rms_epsilon"}, {kBase, "llama.rope.freq_base"}}) {
      const Error e = error_of(at, gguf_kv(key, GgufValueType::kF32, raw(v)));
      EXPECT_EQ(e.code, ErrorCode::kCorrupt) << key << " " << v;
      EXPECT_NE(e.where.find(key), std::string::npos) << e.where;
    }
  }
  EXPECT_EQ(error_of(kBase, gguf_text("llama.rope.freq_base", "10000")).code, ErrorCode::kCorrupt) << "no number";
  for (const double v : {1e300, 1e19, -1.0, double{NAN}, 8192.5}) {
    GgufTestFile f = tiny_llama();
    f.kvs.push_back(gguf_text("llama.rope.scaling.type", "linear"));
    f.kvs.push_back(gguf_kv("llama.rope.scaling.factor", GgufValueType::kF32, raw(2.0f)));
    f.kvs.push_back(gguf_kv("llama.rope.scaling.original_context_length", GgufValueType::kF64, raw(v)));
    EXPECT_FALSE(open_bytes(dir, f)) << v;
  }
}

TEST(GgufSource, BlocksBeyondBlockCountAreNotLeftOut) {
  Scratch dir;
  for (const std::string name : {"blk.1.attn_q.bias", "blk.999999999.attn_q.bias", "blk.99999999999999999999.a"}) {
    GgufTestFile f = tiny_llama();
    f.tensors.push_back({name, {32}, 0, std::string(128, '\0')});
    const auto s = open_bytes(dir, f);
    ASSERT_FALSE(s) << name;
    EXPECT_EQ(s.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(s.error().message().find(name), std::string::npos) << s.error().message();
  }
  GgufTestFile f = tiny_llama();
  f.tensors.push_back({"blk.1.attn_q.bias", {32}, 0, std::string(128, '\0')});
  f.kvs[5] = gguf_u32("llama.block_count", 2);
  EXPECT_TRUE(open_bytes(dir, f));
}

TEST(ModelTexts, ABrokenGenerationConfigIsAnError) {
  Scratch dir;
  for (const char* text : {"", "{", "[]", "{\"a\":1,}", "7"}) {
    write_file(dir / "generation_config.json", text);
    const auto texts = read_model_texts(dir.path());
    ASSERT_FALSE(texts) << text;
    EXPECT_NE(texts.error().message().find("generation_config.json"), std::string::npos);
  }
  write_file(dir / "generation_config.json", "{\"eos_token_id\": 2}");
  EXPECT_TRUE(read_model_texts(dir.path()));
}

TEST(GgufSource, AnUnknownTokenizerDoesNotHideTheWeights) {
  Scratch dir;
  GgufTestFile f = tiny_llama();
  f.kvs.push_back(gguf_text("tokenizer.ggml.model", "a model of tomorrow"));
  f.kvs.push_back(gguf_kv("tokenizer.ggml.tokens", GgufValueType::kArray,
                          raw(GgufValueType::kString) + raw<uint64_t>(2) + gguf_string("a") + gguf_string("b")));
  const auto s = open_bytes(dir, f);
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_TRUE((*s)->load("model.embed_tokens.weight"));
  EXPECT_EQ((*s)->tokenizer_json(), "");
  ASSERT_FALSE((*s)->tokenizer_status());
  EXPECT_EQ((*s)->tokenizer_status().error().code, ErrorCode::kUnsupported);
}

TEST(TokenizerTexts, ChatTemplatesBesideTheModelCount) {
  Scratch dir;
  const auto chosen = [&] {
    const auto texts = read_tokenizer_texts(dir.path());
    if (!texts) return texts.error().message();
    return nlohmann::json::parse(texts->config).value("chat_template", "none");
  };
  write_file(dir / "tokenizer.json", "{}");
  write_file(dir / "tokenizer_config.json", R"({"chat_template": "in the config", "bos_token": "<s>"})");
  EXPECT_EQ(chosen(), "in the config");
  std::filesystem::create_directory(dir / "additional_chat_templates");
  write_file(dir / "additional_chat_templates/tool_use.jinja", "for tools");
  EXPECT_EQ(chosen(), "in the config");
  write_file(dir / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(chosen(), "for tools");
  write_file(dir / "tokenizer_config.json", R"({"chat_template": "in the config", "bos_token": "<s>"})");
  std::filesystem::create_directory(dir / "chat_templates");
  write_file(dir / "chat_templates/a.jinja", "first by name");
  EXPECT_EQ(chosen(), "in the config");
  write_file(dir / "chat_templates/default.jinja", "the default one");
  EXPECT_EQ(chosen(), "the default one");
  write_file(dir / "chat_template.jinja", "beside the model");
  EXPECT_EQ(chosen(), "beside the model");
  EXPECT_EQ(nlohmann::json::parse(read_tokenizer_texts(dir.path())->config)["bos_token"], "<s>");
  std::filesystem::remove(dir / "tokenizer_config.json");
  EXPECT_EQ(chosen(), "beside the model");
  write_file(dir / "tokenizer_config.json", "{ broken");
  EXPECT_EQ(read_tokenizer_texts(dir.path()).error().code, ErrorCode::kCorrupt);
}

TEST(TokenizerTexts, NeedNoModel) {
  Scratch dir;
  GgufTestFile f;
  std::string tokens = raw(GgufValueType::kString) + raw<uint64_t>(4);
  for (const char* token : {"<unk>", "<s>", "</s>", "a"}) tokens += gguf_string(token);
  f.kvs = {gguf_text("general.architecture", "an architecture of tomorrow"), gguf_text("tokenizer.ggml.model", "llama"),
           gguf_kv("tokenizer.ggml.tokens", GgufValueType::kArray, tokens),
           gguf_kv("tokenizer.ggml.scores", GgufValueType::kArray,
                   raw(GgufValueType::kF32) + raw<uint64_t>(4) + raw(0.0f) + raw(0.0f) + raw(0.0f) + raw(-1.0f)),
           gguf_kv("tokenizer.ggml.token_type", GgufValueType::kArray,
                   raw(GgufValueType::kI32) + raw<uint64_t>(4) + raw(2) + raw(3) + raw(3) + raw(1))};
  ASSERT_FALSE(open_bytes(dir, f));
  write_file(dir / "vocabulary.gguf", f.bytes());
  const auto texts = read_tokenizer_texts(dir / "vocabulary.gguf");
  ASSERT_TRUE(texts) << texts.error().message();
  EXPECT_NE(texts->tokenizer.find("<unk>"), std::string::npos);

  write_file(dir / "tokenizer.json", texts->tokenizer);
  EXPECT_EQ(read_tokenizer_texts(dir / "tokenizer.json")->tokenizer, texts->tokenizer);
  EXPECT_EQ(read_tokenizer_texts(dir.path())->tokenizer, texts->tokenizer);
  EXPECT_EQ(read_tokenizer_texts(dir / "absent").error().code, ErrorCode::kNotFound);
  write_file(dir / "text", "a text");
  EXPECT_EQ(read_tokenizer_texts(dir / "text").error().code, ErrorCode::kUnsupported);
}

TEST(HuggingFaceSource, BlockFp8KeepsItsGrid) {
  Scratch dir;
  Rng rng(1);
  write_file(dir / "config.json",
             R"({"model_type":"llama","quantization_config":{"quant_method":"fp8","weight_block_size":[2,4]}})");
  auto writer = SafetensorsWriter::create(
      dir / "model.safetensors",
      {{"a.weight_scale_inv", DType::kF32, {2, 2}}, {"b", DType::kI32, {1}}, {"a.weight", DType::kE4m3, {3, 5}}}, {});
  ASSERT_TRUE(writer);
  const float scales[4] = {0.5f, 1, 2, 4};
  const uint8_t one[15] = {0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38};
  ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(scales))));
  ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(scales)).first(4)));
  ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(one))));
  ASSERT_TRUE((*writer)->finish());
  const auto s = open_source(dir.path());
  ASSERT_TRUE(s) << s.error().message();
  const auto w = (*s)->load("a.weight");
  ASSERT_TRUE(w) << w.error().message();
  EXPECT_EQ(w->format, FormatId::kFp8);
  EXPECT_EQ(reals(*w), (std::vector<float>{.5, .5, .5, .5, 1, .5, .5, .5, .5, 1, 2, 2, 2, 2, 4}));
  EXPECT_FALSE((*s)->has("a.weight_scale_inv"));
  EXPECT_EQ((*s)->load("b").error().code, ErrorCode::kUnsupported);
  write_file(dir / "config.json", R"({"quantization_config":{"quant_method":"gptq"}})");
  EXPECT_EQ(open_source(dir.path()).error().code, ErrorCode::kUnsupported);
}

/// A directory with "a.weight": bitnet codes [2, 5], i.e. a ternary matrix [8, 5], and its scale.
void write_bitnet(const Scratch& dir, const std::string& linear_class, const std::vector<uint8_t>& codes, float scale) {
  write_file(dir / "config.json",
             R"({"model_type":"llama","quantization_config":{"quant_method":"bitnet","linear_class":")" + linear_class +
                 R"(","modules_to_not_convert":null}})");
  auto writer = SafetensorsWriter::create(dir / "model.safetensors",
                                          {{"a.weight_scale", DType::kF32, {1}}, {"a.weight", DType::kU8, {2, 5}}}, {});
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(&scale, 1))));
  ASSERT_TRUE((*writer)->append(std::as_bytes(std::span(codes))));
  ASSERT_TRUE((*writer)->finish());
}

TEST(HuggingFaceSource, BitnetPackingPutsRowBlocksInBitPairs) {
  Scratch dir;
  std::vector<uint8_t> codes(10);
  std::vector<float> want(40);
  for (size_t row = 0; row < 8; ++row)
    for (size_t c = 0; c < 5; ++c) {
      const uint8_t code = static_cast<uint8_t>((row + 2 * c + row * c) % 3);
      codes[row % 2 * 5 + c] = static_cast<uint8_t>(codes[row % 2 * 5 + c] | code << 2 * (row / 2));
      want[row * 5 + c] = static_cast<float>(code) - 1;
    }
  for (const auto& [linear_class, factor] : {std::pair("bitlinear", 0.25f), std::pair("autobitlinear", 4.0f)}) {
    write_bitnet(dir, linear_class, codes, 4.0f);
    const auto s = open_source(dir.path());
    ASSERT_TRUE(s) << s.error().message();
    ASSERT_EQ((*s)->tensors().size(), 1u);
    EXPECT_EQ((*s)->tensors()[0].shape, (Shape{8, 5}));
    EXPECT_TRUE((*s)->lossless("a.weight"));
    const auto w = (*s)->load("a.weight");
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->format, FormatId::kTernary);
    std::vector<float> scaled = want;
    for (float& v : scaled) v *= factor;
    EXPECT_EQ(reals(*w), scaled) << linear_class;
  }
  codes[7] |= 0x0c;  // row 3, column 2
  write_bitnet(dir, "bitlinear", codes, 4.0f);
  const std::string message = (*open_source(dir.path()))->load("a.weight").error().message();
  EXPECT_NE(message.find("row 3, column 2"), std::string::npos) << message;
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    write_bitnet(dir, "bitlinear", std::vector<uint8_t>(10), scale);
    EXPECT_EQ((*open_source(dir.path()))->load("a.weight").error().code, ErrorCode::kCorrupt) << scale;
  }
  write_bitnet(dir, "other", codes, 4.0f);
  EXPECT_EQ(open_source(dir.path()).error().code, ErrorCode::kUnsupported);
}

TEST(Sources, StoriesModelIsTheSameFromBothFilesAndAsACheckpoint) {
  const std::string directory = data_path("lm/stories260K");
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "no " << directory;
  const auto hf = open_source(directory), gguf = open_source(directory + "/stories260K-f32.gguf");
  ASSERT_TRUE(hf) << hf.error().message();
  ASSERT_TRUE(gguf) << gguf.error().message();
  Scratch dir;
  auto writer = CheckpointWriter::create(dir / "c");
  ASSERT_TRUE(writer);
  for (const auto& t : (*hf)->tensors()) ASSERT_TRUE((*writer)->add(t.name, *(*hf)->load(t.name), t.shape));
  ASSERT_TRUE((*writer)->add_file("tokenizer.json", (*gguf)->tokenizer_json()));
  ASSERT_TRUE((*writer)->finish({.config_json = (*hf)->config_json()}));
  const auto own = open_source(dir / "c");
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_STREQ((*own)->kind(), "lowbit");
  EXPECT_EQ((*own)->tokenizer_json(), (*gguf)->tokenizer_json());
  EXPECT_EQ((*gguf)->tensors().size(), (*hf)->tensors().size());
  EXPECT_EQ((*own)->tensors().size(), (*hf)->tensors().size());
  for (const auto& t : (*hf)->tensors()) {
    ASSERT_TRUE((*gguf)->has(t.name)) << t.name;
    EXPECT_TRUE((*gguf)->lossless(t.name));
    EXPECT_EQ(reals(*(*gguf)->load(t.name)), reals(*(*hf)->load(t.name))) << t.name;
    EXPECT_EQ(reals(*(*own)->load(t.name)), reals(*(*hf)->load(t.name))) << t.name;
    (*hf)->release(t.name);
  }
  const auto a = *parse_json_object((*hf)->config_json(), "hf"), b = *parse_json_object((*gguf)->config_json(), "gguf");
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings",
        "bos_token_id", "eos_token_id", "model_type", "architectures"})
    EXPECT_EQ(a[key], b[key]) << key;
  EXPECT_TRUE(spec_from_tokenizer_json((*gguf)->tokenizer_json(), (*gguf)->tokenizer_config_json()));
}

TEST(Sources, DefaultModel) {
  const char* path = std::getenv("LOWBIT_MODEL");
  if (path == nullptr) GTEST_SKIP() << "LOWBIT_MODEL is not set";
  const auto s = open_source(path);
  ASSERT_TRUE(s) << s.error().message();
  for (const auto& t : (*s)->tensors()) {
    const auto w = (*s)->load(t.name);
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->n * w->k, *element_count(t.shape));
    (*s)->release(t.name);
  }
}

}  // namespace
}  // namespace lowbit