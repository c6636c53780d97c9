// The toy family of docs/adding-a-model.md: its spec, and a forward pass against the plain double-precision loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/random_model.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

RandomModelSpec acorn() {
  RandomModelSpec spec;
  spec.model_type = "acorn";
  spec.attention_bias = true;  // the tensors are there; config.json does not say so, see below
  spec.vocab = 41;
  return spec;
}

/// A source whose config.json leaves the biases to the family's default.
MemorySource source_of(const RandomModelSpec& spec) {
  MemorySource source = make_random_model(spec);
  const std::string key = "\"attention_bias\": true, ";
  const size_t at = source.config.find(key);
  EXPECT_NE(at, std::string::npos);
  if (at != std::string::npos) source.config.erase(at, key.size());
  return source;
}

TEST(RecipeModel, DefaultsAreTheFamilys) {
  const auto spec = parse_model_spec(source_of(acorn()).config);
  ASSERT_TRUE(spec.has_value()) << spec.error().message();
  const BlockSpec& block = spec->blocks.back();
  for (const InputSpec* input : inputs_of(block))
    for (const LinearSpec& linear : input->readers)
      EXPECT_EQ(linear.bias, input == &block.attention.qkv || input == &block.attention.output) << linear.name.hf;
  auto unknown = acorn();
  unknown.model_type = "walnut";
  const auto refused = parse_model_spec(make_random_model(unknown).config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("acorn"), std::string::npos) << refused.error().message();
}

TEST(RecipeModel, ForwardEqualsTheDoubleReference) {
  const RandomModelSpec spec = acorn();
  const MemorySource source = source_of(spec);
  LoadOptions options;
  options.x.activation = Activation::kF32;
  const auto model = Transformer::load(source, options);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  const std::vector<int32_t> tokens = {7, 0, 40, 12, 3, 3, 29};
  std::vector<float> logits(tokens.size() * size_t(spec.vocab));
  auto cache = (*model)->make_cache();
  ASSERT_TRUE(cache.has_value());
  const auto done = (*model)->forward(tokens, *cache, LogitsWanted::range(0, int64_t(tokens.size())), logits);
  ASSERT_TRUE(done.has_value()) << done.error().message();
  const std::vector<double> want = naive_forward(source, spec, tokens);
  ASSERT_EQ(want.size(), logits.size());
  double error = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error = std::max(error, std::fabs(double(logits[i]) - want[i]));
    largest = std::max(largest, std::fabs(want[i]));
  }
  EXPECT_LT(error, 1e-4 * largest);
  EXPECT_GT(largest, 0.1);
}

}  // namespace
}  // namespace lowbit
