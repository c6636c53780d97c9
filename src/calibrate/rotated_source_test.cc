#include "calibrate/rotated_source.h"

#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/smoothed_source.h"
#include "model/random_model.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

std::vector<float> logits_of(const WeightSource& source, const std::vector<int32_t>& tokens, int64_t vocab) {
  LoadOptions options;
  options.x.activation = Activation::kF32;
  auto model = Transformer::load(source, options);
  EXPECT_TRUE(model) << model.error().message();
  if (!model) return {};
  auto cache = (*model)->make_cache();
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab));
  EXPECT_TRUE((*model)->forward(tokens, *cache, LogitsWanted::range(0, int64_t(tokens.size())), logits));
  return logits;
}

TEST(RotatedSource, IsTheSameFunction) {
  for (const bool tied : {false, true})
    for (const bool bias : {false, true}) {
      RandomModelSpec spec;
      spec.tied = tied;
      spec.attention_bias = spec.mlp_bias = bias;
      spec.hidden = 96;  // Hadamard 32 x orthogonal 3
      spec.heads = 6;
      spec.kv_heads = 3;
      const MemorySource source = make_random_model(spec);
      const auto rotated = rotate_source(source, 3);
      ASSERT_TRUE(rotated) << rotated.error().message();
      const std::vector<int32_t> tokens = {1, 5, 9, 42, 7, 7, 90, 3};
      const auto before = logits_of(source, tokens, spec.vocab), after = logits_of(**rotated, tokens, spec.vocab);
      ASSERT_EQ(before.size(), after.size());
      double error = 0, energy = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        error += std::pow(double(before[i]) - after[i], 2);
        energy += std::pow(double(before[i]), 2);
      }
      EXPECT_LT(error, 1e-6 * energy);  // the cache rounds keys and other values to f16
      EXPECT_NE(before, after);
      const auto plain = source.load("model.layers.0.self_attn.q_proj.weight"),
                 turned = (*rotated)->load("model.layers.0.self_attn.q_proj.weight");
      std::vector<float> a(static_cast<size_t>(plain->n * plain->k)), b = a;
      dequantize_rows(*plain, 0, plain->n, a.data());
      dequantize_rows(*turned, 0, turned->n, b.data());
      EXPECT_NE(a, b);
    }
}

/// The error names the tensor and says why.
void expect_refused(const ModelSpec& spec, const std::string& tensor, const std::string& why) {
  const auto status = check_rotatable(spec);
  ASSERT_FALSE(status) << tensor;
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(status.error().where, tensor);
  EXPECT_NE(status.error().message().find(why), std::string::npos) << status.error().message();
}

TEST(RotatedSource, WhatWouldBeAnotherFunctionIsRefused) {
  const RandomModelSpec random;
  const ModelSpec plain = *parse_model_spec(make_random_model(random).config);
  EXPECT_TRUE(check_rotatable(plain));
  const NormSpec norm{{"a_norm", "a_norm"}, random.hidden, 1e-5f, 0};
  ModelSpec spec = plain;
  spec.blocks[1].mlp.gate_up.norm->offset = 1;
  expect_refused(spec, "model.layers.1.post_attention_layernorm.weight", "1 is added");
  spec = plain;
  spec.final_norm.offset = 1;
  expect_refused(spec, "model.norm.weight", "1 is added");
  spec = plain;
  spec.blocks[1].attention.output.norm = norm;
  expect_refused(spec, "model.layers.1.a_norm.weight", "between attention and");
  spec = plain;
  spec.blocks[0].post_mlp = norm;
  expect_refused(spec, "model.layers.0.a_norm.weight", "added to the residual stream");
  spec = plain;
  spec.blocks[0].attention.output.hadamard = 16;
  expect_refused(spec, "model.layers.0.self_attn.o_proj.weight", "Hadamard");
  spec = plain;  // what is not rotated may have its norm
  spec.blocks[1].mlp.down.norm = NormSpec{{"b_norm", "b_norm"}, random.intermediate, 1e-5f, 0};
  EXPECT_TRUE(check_rotatable(spec));
}

TEST(RotatedSource, RefusesBitNetByName) {
  MemorySource source = make_random_model({});
  const std::string llama = R"("model_type": "llama")";
  source.config.replace(source.config.find(llama), llama.size(), R"("model_type": "bitnet")");
  const auto rotated = rotate_source(source, 3);
  ASSERT_FALSE(rotated);
  EXPECT_EQ(rotated.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(rotated.error().where, "model.layers.0.self_attn.attn_sub_norm.weight");
}

TEST(SmoothedSource, WhatWouldBeAnotherFunctionIsRefused) {
  const ModelSpec plain = *parse_model_spec(make_random_model({}).config);
  EXPECT_TRUE(check_smoothable(plain));
  ModelSpec spec = plain;
  spec.blocks[1].attention.qkv.norm->offset = 1;
  auto status = check_smoothable(spec);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(status.error().where, "model.layers.1.input_layernorm.weight");
  spec = plain;
  spec.blocks[1].mlp.down.hadamard = 32;  // no norm there: nothing to move
  EXPECT_TRUE(check_smoothable(spec));
  spec.blocks[1].mlp.down.norm = NormSpec{{"b_norm", "b_norm"}, 96, 1e-5f, 0};
  status = check_smoothable(spec);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, "model.layers.1.b_norm.weight");
}

}  // namespace
}  // namespace lowbit
