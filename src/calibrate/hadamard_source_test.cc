#include "calibrate/hadamard_source.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "io/checkpoint.h"
#include "kernels/registry.h"
#include "model/random_model.h"
#include "ops/hadamard.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

std::vector<float> logits_of(const WeightSource& source, const LoadOptions& options, int64_t vocab) {
  const std::vector<int32_t> tokens = {1, 5, 9, 42, 7, 7, 90, 3};
  auto model = Transformer::load(source, options);
  EXPECT_TRUE(model) << model.error().message();
  if (!model) return {};
  auto cache = (*model)->make_cache();
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab));
  EXPECT_TRUE((*model)->forward(tokens, *cache, LogitsWanted::range(0, int64_t(tokens.size())), logits));
  return logits;
}

LoadOptions exact() {
  LoadOptions options;
  options.x.activation = Activation::kF32;
  return options;
}

/// sum (a - b)^2 / sum a^2
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double(a[i]) - b[i], 2);
    energy += std::pow(double(a[i]), 2);
  }
  return error / energy;
}

TEST(HadamardSource, IsTheSameFunction) {
  for (const int64_t intermediate : {48, 64, 96, 130})  // 3 x 16, 64, 3 x 32, 65 x 2
    for (const int64_t layers : {1, 2}) {
      RandomModelSpec spec;
      spec.intermediate = intermediate;
      spec.layers = layers;
      const MemorySource source = make_random_model(spec);
      const auto turned = hadamard_source(source);
      ASSERT_TRUE(turned) << turned.error().message();
      EXPECT_EQ(parse_model_spec((*turned)->config_json())->blocks[0].mlp.down.hadamard, intermediate & -intermediate);
      const auto before = logits_of(source, exact(), spec.vocab), after = logits_of(**turned, exact(), spec.vocab);
      // One layer: f32's rounding alone (u is 6e-8). Two: the second one's keys and values may fall to another f16.
      EXPECT_LT(distance(before, after), layers == 1 ? 1e-12 : 1e-7) << intermediate;
      EXPECT_NE(before, after);
      EXPECT_FALSE((*turned)->lossless("model.layers.0.mlp.down_proj.weight"));
      EXPECT_FALSE(hadamard_source(**turned)) << "twice";
    }
}

TEST(HadamardSource, NeedsItsTransformAtRunTime) {
  RandomModelSpec spec;
  const MemorySource source = make_random_model(spec);
  const auto turned = hadamard_source(source);
  ASSERT_TRUE(turned);
  MemorySource without = source;  // its weights, but not its manifest
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  auto w = (*turned)->load(name);
  ASSERT_TRUE(w);
  without.weights.insert_or_assign(name, *w);
  EXPECT_GT(distance(logits_of(source, exact(), spec.vocab), logits_of(without, exact(), spec.vocab)), 1e-4);
}

TEST(HadamardSource, EveryInstructionSetAndBatchGivesTheSameBits) {
  RandomModelSpec spec;
  spec.intermediate = 3 * 32;
  const MemorySource source = make_random_model(spec);
  const auto turned = hadamard_source(source);
  ASSERT_TRUE(turned);
  for (const Activation activation : {Activation::kF32, Activation::kInt8}) {
    LoadOptions reference;
    reference.x.activation = activation;
    reference.x.group = 32;
    reference.reference = true;
    const auto wanted = logits_of(**turned, reference, spec.vocab);
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAmx}) {
      if (!isa_available(isa)) continue;
      LoadOptions options;
      options.x.activation = activation;
      options.x.group = 32;
      options.isa = isa;
      options.threads = 2;
      options.batch = 3;
      EXPECT_EQ(wanted, logits_of(**turned, options, spec.vocab)) << isa_name(isa);
    }
  }
}

TEST(HadamardRows, AreOrthogonalAndTheirOwnInverse) {
  Rng rng(5);
  ThreadPool pool(2);
  for (const auto& [k, block] : {std::pair<int64_t, int64_t>{1536, 512}, {96, 32}, {24, 8}, {2, 2}, {8192, 4096}}) {
    EXPECT_EQ(hadamard_block(k), block);
    std::vector<float> x(static_cast<size_t>(3 * k));
    for (float& v : x) v = float(rng.normal());
    std::vector<float> y = x;
    hadamard_rows(vector_ops(Isa::kScalar), y.data(), 3, k, block, pool);
    EXPECT_GT(distance(x, y), 0.1);
    double before = 0, after = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      before += double(x[i]) * x[i];
      after += double(y[i]) * y[i];
    }
    EXPECT_NEAR(after / before, 1, 1e-5);
    hadamard_rows(vector_ops(Isa::kScalar), y.data(), 3, k, block, pool);
    EXPECT_LT(distance(x, y), 1e-11);
  }
  std::vector<float> one(8);
  one[0] = 4;  // an outlier is spread over its block alone
  hadamard_rows(vector_ops(Isa::kScalar), one.data(), 1, 8, 4, pool);
  EXPECT_EQ(one, (std::vector<float>{2, 2, 2, 2, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace lowbit
