// Decoding allocates nothing: after a few steps of a whole model no step calls malloc, across pages of the KV cache and
// behind them, sampling included. A program of its own, since it replaces malloc.

#include <gtest/gtest.h>

#include <vector>

#include "base/cpu.h"
#include "base/test_allocations.h"
#include "model/random_model.h"
#include "runtime/sampler.h"
#include "runtime/transformer.h"

#ifdef LOWBIT_COUNTS_ALLOCATIONS

namespace lowbit {
namespace {

struct Variant {
  const char* name;
  RandomModelSpec spec;
  Activation activation;
  int64_t activation_group;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  RandomModelSpec s;
  s.layers = 3;  // odd: the buffers that layers swap are not the same in each step
  s.max_positions = 512;
  all.push_back({"f32 weights", s, Activation::kF32, 0});
  s.format = FormatId::kInt4;
  all.push_back({"int4, scales of x per 32", s, Activation::kInt8, 32});
  all.push_back({"int4, scales of x per row", s, Activation::kInt8, 0});
  s.format = FormatId::kTernaryPacked;
  s.model_type = "qwen3";
  s.tied = true;
  all.push_back({"ternary-packed, tied, norms of heads", s, Activation::kInt8, 32});
  s.group = 24;
  s.attention_bias = s.mlp_bias = true;
  all.push_back({"groups of 24", s, Activation::kInt8, 32});
  s.format = FormatId::kFp8;
  s.group = Scaling::kAll;
  all.push_back({"fp8 by fp8", s, Activation::kFp8, 128});
  return all;
}

TEST(Allocations, NoneInDecoding) {
  for (const Variant& variant : variants())
    for (const int threads : {1, 3}) {
      const MemorySource source = make_random_model(variant.spec);
      LoadOptions options;
      options.x.activation = variant.activation;
      options.x.group = variant.activation_group;
      options.isa = best_isa();
      options.threads = threads;
      auto model = Transformer::load(source, options);
      ASSERT_TRUE(model.has_value()) << model.error().message();
      auto cache = (*model)->make_cache();
      SamplerOptions sampling;
      sampling.repeat_penalty = 1.1f;
      auto sampler = Sampler::make(sampling);
      ASSERT_TRUE(cache.has_value() && sampler.has_value());
      std::vector<float> logits(static_cast<size_t>((*model)->spec().vocab_size));
      bool good = true;
      const auto step = [&] {
        const auto token = sampler->sample(logits);
        good = good && token.has_value();
        const int32_t id = token ? *token : 0;
        sampler->accept(id);
        good = good && (*model)->forward({&id, 1}, *cache, LogitsWanted::last(), logits).has_value();
      };
      const int64_t before_first = allocations.load();
      for (int i = 0; i < 5; ++i) step();
      const int64_t before = allocations.load();
      EXPECT_GT(before, before_first) << variant.name;  // the counter counts: workspaces grew
      for (int i = 0; i < 500; ++i) step();             // eight pages of keys and values
      EXPECT_EQ(allocations.load(), before) << variant.name << ", " << threads << " threads";
      EXPECT_TRUE(good) << variant.name;
      EXPECT_EQ(cache->length(), 505);
    }
}

}  // namespace
}  // namespace lowbit

#endif
