#include "pipeline/rotated_source.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/random_model.h"
#include "model/transformer.h"

namespace lowbit {
namespace {

std::vector<float> logits_of(const WeightSource& source, const std::vector<int32_t>& tokens, int64_t vocab) {
  LoadOptions options;
  options.activation = Activation::kF32;
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

}  // namespace
}  // namespace lowbit
