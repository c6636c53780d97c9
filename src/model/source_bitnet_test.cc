// BitNet's weights in all the forms they come in.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "arch/spec.h"
#include "base/float.h"
#include "base/rng.h"
#include "io/gguf_i2s.h"
#include "io/gguf_test_files.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "model/source_kinds.h"

namespace lowbit {
namespace {

using namespace testing_io;  // NOLINT

std::vector<float> reals(const QTensor& w) {
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  dequantize_rows(w, 0, w.n, out.data());
  return out;
}

struct Stored {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<float> floats;   // kF32
  std::vector<uint8_t> bytes;  // kU8
};

Result<std::unique_ptr<WeightSource>> open_model(const Scratch& dir, const std::string& quantization,
                                                 const std::vector<Stored>& tensors) {
  write_file(dir / "config.json",
             R"({"model_type":"bitnet","quantization_config":{"quant_method":"bitnet",)" + quantization + "}}");
  std::vector<SafetensorsDecl> entries;
  for (const Stored& t : tensors) entries.push_back({t.name, t.dtype, t.shape});
  auto writer = SafetensorsWriter::create(dir / "model.safetensors", entries, {});
  for (const Stored& t : tensors)
    EXPECT_TRUE((*writer)->append(t.dtype == DType::kF32 ? std::as_bytes(std::span(t.floats))
                                                         : std::as_bytes(std::span(t.bytes))));
  EXPECT_TRUE((*writer)->finish());
  return open_source(dir.path());
}

const std::string kQ = "model.layers.0.self_attn.q_proj.weight",
                  kOnline = R"("linear_class":"autobitlinear","quantization_mode":"online")";

TEST(BitNet, OnlineWeightsAreRoundedByTheirMean) {
  Scratch dir;
  // mean |w| = 2: w / s = 2, -0.5 (a tie, to even), 0.5, 0.75, -1.5 (to -2, then -1), 0.25, 0, 2.5
  const std::vector<float> w = {4, -1, 1, 1.5f, -3, 0.5f, 0, 5};
  const auto source = open_model(dir, kOnline + R"(,"modules_to_not_convert":["self_attn.k_proj"])",
                                 {{kQ, DType::kF32, {2, 4}, w, {}},
                                  {"lm_head.weight", DType::kF32, {2, 4}, w, {}},
                                  {"model.layers.0.input_layernorm.weight", DType::kF32, {8}, w, {}},
                                  {"model.layers.0.self_attn.k_proj.weight", DType::kF32, {2, 4}, w, {}}});
  ASSERT_TRUE(source) << source.error().message();
  const auto q = (*source)->load(kQ);
  ASSERT_TRUE(q) << q.error().message();
  EXPECT_EQ(q->format, FormatId::kTernary);
  EXPECT_EQ(reals(*q), (std::vector<float>{2, 0, 0, 2, -2, 0, 0, 2}));
  EXPECT_TRUE((*source)->lossless(kQ));
  for (const char* name :
       {"lm_head.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.k_proj.weight"})
    EXPECT_EQ(reals(*(*source)->load(name)), w) << name;
}

TEST(BitNet, TheScaleHasAFloor) {
  Scratch dir;
  const auto source = open_model(dir, kOnline, {{kQ, DType::kF32, {1, 4}, {1e-7f, 0, 0, 6e-6f}, {}}});
  const std::vector<float> got = reals(*(*source)->load(kQ));
  EXPECT_EQ(got[0], 0);
  EXPECT_FLOAT_EQ(got[3], 1e-5f);
}

TEST(BitNet, FormsThatContradictTheConfigAreRefused) {
  Scratch dir;
  const auto refused = [&](const std::string& quantization, const Stored& t, const char* part) {
    const auto source = open_model(dir, quantization, {t});
    ASSERT_TRUE(source) << source.error().message();
    const auto w = (*source)->load(t.name);
    ASSERT_FALSE(w) << part;
    EXPECT_EQ(w.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(w.error().message().find(part), std::string::npos) << w.error().message();
  };
  const Stored floats{kQ, DType::kF32, {4, 2}, std::vector<float>(8, 1.0f), {}};
  Stored broken = floats;
  broken.floats[5] = std::numeric_limits<float>::quiet_NaN();
  refused(kOnline, broken, "NaN");
  refused(R"("linear_class":"autobitlinear")", floats, "online");
  refused(kOnline, {kQ, DType::kU8, {1, 2}, {}, {0, 1}}, "offline");
  EXPECT_EQ(open_model(dir, R"("quantization_mode":"now")", {floats}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(open_model(dir, R"("modules_to_not_convert":[1])", {floats}).error().code, ErrorCode::kCorrupt);
}

TEST(BitNet, AScaleIsOneNumberAndThere) {
  Scratch dir;
  const Stored weight{kQ, DType::kU8, {1, 2}, {}, {0, 1}};
  const auto error_with = [&](const std::vector<Stored>& tensors) {
    const auto source = open_model(dir, R"("linear_class":"autobitlinear")", tensors);
    EXPECT_TRUE(source) << source.error().message();
    const auto w = (*source)->load(kQ);
    EXPECT_FALSE(w);
    return w ? Error{} : w.error();
  };
  EXPECT_EQ(error_with({weight}).code, ErrorCode::kNotFound);
  const Error two = error_with({weight, {kQ + "_scale", DType::kF32, {2}, {1, 2}, {}}});
  EXPECT_EQ(two.code, ErrorCode::kCorrupt);
  EXPECT_NE(two.message().find("_scale"), std::string::npos) << two.message();
  EXPECT_EQ(error_with({weight, {kQ + "_scale", DType::kU8, {1}, {}, {1}}}).code, ErrorCode::kCorrupt);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error_with({weight, {kQ + "_scale", DType::kF32, {1}, {inf}, {}}}).code, ErrorCode::kCorrupt);
}

TEST(BitNet, AutoBitLinearScalesTheBiasToo) {
  Scratch dir;
  const std::string bias = "model.layers.0.self_attn.q_proj.bias";
  for (const auto& [linear_class, want] : {std::pair("autobitlinear", 8.0f), {"bitlinear", 2.0f}}) {
    const auto source = open_model(dir, R"("linear_class":")" + std::string(linear_class) + '"',
                                   {{kQ, DType::kU8, {1, 2}, {}, {0, 1}},
                                    {kQ + "_scale", DType::kF32, {1}, {4.0f}, {}},
                                    {bias, DType::kF32, {4}, std::vector<float>(4, 2.0f), {}}});
    ASSERT_TRUE(source) << source.error().message();
    EXPECT_EQ(reals(*(*source)->load(bias)), std::vector<float>(4, want)) << linear_class;
  }
}

// ---- GGUF ----

/// I2_S bytes of codes [n, k] with the scale 0.5.
std::string i2s_bytes(const std::vector<int>& codes, int64_t k, I2sLayout layout) {
  std::string data(codes.size() / 4 + kI2sTailBytes, '\0');
  for (size_t e = 0; e < codes.size(); ++e) {
    size_t byte = 0, part = 0;
    if (layout == I2sLayout::kRows4) {
      const size_t row = e / size_t(k), column = e % size_t(k);
      byte = row / 4 * size_t(k) + column;
      part = row % 4;
    } else {
      const size_t bytes = layout == I2sLayout::kX86 ? 32 : 16, j = e % (4 * bytes);
      byte = e / (4 * bytes) * bytes + j % bytes;
      part = j / bytes;
    }
    data[byte] = static_cast<char>(data[byte] | codes[e] << (6 - 2 * part));
  }
  const float scale = 0.5f;
  std::memcpy(data.data() + codes.size() / 4, &scale, sizeof scale);
  return data;
}

GgufTestFile bitnet_file(const std::string& architecture) {
  GgufTestFile f;
  const auto u32 = [&](const std::string& key, uint32_t value) {
    f.kvs.push_back(gguf_u32(architecture + key, value));
  };
  f.kvs = {gguf_text("general.architecture", architecture)};
  u32(".embedding_length", 32);
  u32(".attention.head_count", 4);
  u32(".attention.head_count_kv", 2);
  u32(".feed_forward_length", 64);
  u32(".block_count", 1);
  u32(".context_length", 128);
  f.kvs.push_back(gguf_kv(architecture + ".rope.freq_base", GgufValueType::kF32, raw(500000.0f)));
  f.tensors.push_back({"token_embd.weight", {32, 8}, 0, std::string(4 * 32 * 8, '\1')});
  return f;
}

Result<std::unique_ptr<WeightSource>> open_bytes(const Scratch& dir, GgufTestFile f, const std::string& layout = "") {
  write_file(dir / "m.gguf", f.bytes());
  return open_source(dir / "m.gguf", layout);
}

TEST(BitNetGguf, ItsThreeArchitectures) {
  Scratch dir;
  for (const auto& [name, act] : {std::pair("bitnet-b1.58", "relu2"), {"bitnet-25", "relu2"}, {"bitnet", "silu"}}) {
    GgufTestFile f = bitnet_file(name);
    f.tensors.push_back({"blk.0.attn_sub_norm.weight", {32}, 0, std::string(4 * 32, '\1')});
    f.tensors.push_back({"blk.0.ffn_sub_norm.weight", {64}, 0, std::string(4 * 64, '\1')});
    const auto source = open_bytes(dir, f);
    ASSERT_TRUE(source) << source.error().message();
    EXPECT_TRUE((*source)->has("model.layers.0.self_attn.attn_sub_norm.weight"));
    EXPECT_TRUE((*source)->has("model.layers.0.mlp.ffn_sub_norm.weight"));
    const auto config = *parse_json_object((*source)->config_json(), "config");
    EXPECT_EQ(config["model_type"], "bitnet");
    EXPECT_EQ(config["hidden_act"], act);
    EXPECT_EQ(config["rope_theta"], 500000.0);
    EXPECT_EQ(config["tie_word_embeddings"], true);
    EXPECT_TRUE(parse_model_spec((*source)->config_json()));
  }
}

TEST(BitNetGguf, I2sInEachOrderButOnlyWhereItIsKnown) {
  Scratch dir;
  Rng rng(5);
  std::vector<int> codes(32 * 32);
  std::vector<float> want;
  for (int& code : codes) {
    code = static_cast<int>(rng.below(3));
    want.push_back(0.5f * static_cast<float>(code - 1));
  }
  for (const auto& [layout, name] :
       {std::pair(I2sLayout::kX86, "x86"), {I2sLayout::kArm, "arm"}, {I2sLayout::kRows4, "rows4"}}) {
    GgufTestFile f = bitnet_file("bitnet-b1.58");
    f.tensors.push_back({"blk.0.attn_q.weight", {32, 32}, 36, i2s_bytes(codes, 32, layout)});
    f.tensors.push_back({"blk.0.attn_norm.weight", {32}, 0, std::string(4 * 32, '\1')});  // lies behind its tail
    const auto asked = open_bytes(dir, f, name);
    ASSERT_TRUE(asked) << asked.error().message();
    const auto w = (*asked)->load(kQ);
    ASSERT_TRUE(w) << w.error().message();
    EXPECT_EQ(w->format, FormatId::kTernary);
    EXPECT_EQ(reals(*w), want) << name;
    EXPECT_TRUE((*asked)->lossless(kQ));
    const auto unknown = (*open_bytes(dir, f))->load(kQ);
    ASSERT_FALSE(unknown);
    EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(unknown.error().message().find("--i2s-layout"), std::string::npos) << unknown.error().message();
    f.kvs.push_back(gguf_text("lowbit.i2_s.layout", name));
    EXPECT_EQ(reals(*(*open_bytes(dir, f))->load(kQ)), want) << name;
    EXPECT_EQ((*open_bytes(dir, f, "other"))->load(kQ).error().code, ErrorCode::kInvalidArgument);
    f.tensors[1].data[7] = '\xff';
    EXPECT_EQ((*open_bytes(dir, f))->load(kQ).error().code, ErrorCode::kCorrupt) << "a code 3";
    f.tensors[1].data = std::string(f.tensors[1].data.size(), '\0');
    EXPECT_EQ((*open_bytes(dir, f))->load(kQ).error().code, ErrorCode::kCorrupt) << "a scale of 0";
  }
}

TEST(BitNetGguf, I2sOfLlamaHasItsRowsOfQInterleaved) {
  Scratch dir;
  std::vector<int> codes(32 * 32, 1);
  for (size_t c = 0; c < 32; ++c) codes[32 + c] = 2;  // row 1 of head 0: its pair (0, 1) is Hugging Face's (0, 4)
  GgufTestFile f = bitnet_file("llama");
  f.tensors.push_back({"blk.0.attn_q.weight", {32, 32}, 36, i2s_bytes(codes, 32, I2sLayout::kX86)});
  const auto w = (*open_bytes(dir, f, "x86"))->load(kQ);
  ASSERT_TRUE(w) << w.error().message();
  const std::vector<float> got = reals(*w);
  for (size_t r = 0; r < 32; ++r) EXPECT_EQ(got[32 * r], r == 4 ? 0.5f : 0.0f) << r;
}

TEST(BitNetGguf, OneScaleOfTq2BecomesOne) {
  Scratch dir;
  const auto block = [](uint8_t byte, float scale) {
    return std::string(64, static_cast<char>(byte)) + raw(f32_to_f16(scale));
  };
  const auto loaded = [&](const std::string& data) {
    GgufTestFile f = bitnet_file("bitnet-b1.58");
    f.tensors.push_back({"blk.0.ffn_down.weight", {256, uint64_t(data.size() / 66)}, 35, data});
    return *(*open_bytes(dir, f))->load("model.layers.0.mlp.down_proj.weight");
  };
  const QTensor one = loaded(block(0xaa, 0.25f) + block(0x55, 0) + block(0, 0.25f));
  EXPECT_EQ(one.scaling.k_block, Scaling::kAll);
  std::vector<float> want(256, 0.25f);
  want.resize(512, 0.0f);
  want.resize(768, -0.25f);
  EXPECT_EQ(reals(one), want);
  EXPECT_EQ(loaded(block(0xaa, 0.25f) + block(0, 0.5f)).scaling.k_block, 256);
}

TEST(BitNetGguf, TheSameOutputTwiceIsOne) {
  Scratch dir;
  GgufTestFile f = bitnet_file("bitnet-b1.58");
  const std::string embedding = f.tensors[0].data;
  f.tensors.push_back({"output.weight", {32, 8}, 0, embedding});
  const auto tied = [&](const GgufTestFile& file) {
    const auto source = open_bytes(dir, file);
    EXPECT_TRUE(source) << source.error().message();
    const bool flag = (*parse_json_object((*source)->config_json(), "config"))["tie_word_embeddings"];
    EXPECT_EQ((*source)->has("lm_head.weight"), !flag);
    return flag;
  };
  EXPECT_TRUE(tied(f)) << "the embedding once more";
  f.tensors.push_back({"output.weight", {32, 8}, 0, embedding});
  EXPECT_TRUE(tied(f)) << "and again";
  f.tensors[2].data[0] = 'x';
  const auto source = open_bytes(dir, f);
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(source.error().message().find("'output.weight' twice"), std::string::npos) << source.error().message();
  f.tensors.erase(f.tensors.begin() + 1);
  EXPECT_FALSE(tied(f)) << "a head of its own";
}

}  // namespace
}  // namespace lowbit
