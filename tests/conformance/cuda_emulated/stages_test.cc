// Models on several devices, kernels on fibers: needs no GPU.

#include "tests/conformance/stage_checks.h"

#include "kernels/cuda_memory_api.h"

namespace lowbit {
namespace cuda {

extern int64_t bytes_left;  // of the device that is the host

}  // namespace cuda
namespace {

using namespace stage_checks;  // NOLINT

TEST(StagesOnFibers, GiveTheBitsOfTheCpu) {
  RandomModelSpec spec;
  spec.layers = 3;
  spec.tied = true;
  const std::vector<Placement> all = {{{0}, 0}, {{0}, 1}, {{0}, 9}, {{0, 0}}, {{0, 0}, 2}};
  check_placements(spec, all, "f16");
  spec.tied = false;
  spec.window = 40;
  spec.model_type = "mistral";
  check_placements(spec, {{{0}, 2}, {{0, 0, 0}}}, "f16");
  spec.model_type = "llama";
  spec.window = 0;
  check_placements(spec, {{{0}, 1}, {{0, 0}}}, "k4v2");
}

/// Takes the device's memory but for so many bytes.
class LittleMemory {
 public:
  explicit LittleMemory(int64_t bytes) : taken_(cuda::bytes_left - bytes) { cuda::bytes_left = bytes; }
  ~LittleMemory() { cuda::bytes_left += taken_; }

 private:
  int64_t taken_;
};

TEST(StagesOnFibers, AModelThatIsTooLargeSaysWhatFits) {
  RandomModelSpec spec;
  spec.layers = 8;
  spec.hidden = 128;
  spec.intermediate = 512;
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.batch = 1;
  options.context = 64;
  options.gpus = {0};
  const int64_t before = cuda::bytes_left;
  const int64_t whole = (*Transformer::load(source, options))->device_bytes();
  EXPECT_EQ(cuda::bytes_left, before);  // it has given back everything
  const LittleMemory little(whole * 6 / 10);
  const auto refused = Transformer::load(source, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  const std::string& hint = refused.error().hint;
  const size_t at = hint.find("--gpu-layers ");
  ASSERT_NE(at, std::string::npos) << hint;
  options.gpu_layers = hint[at + 13] - '0';
  EXPECT_TRUE(options.gpu_layers >= 2 && options.gpu_layers <= 5) << hint;
  const auto model = Transformer::load(source, options);
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_LT((*model)->device_bytes(), whole * 6 / 10);
}

/// A session that gets no memory has an error; the others go on, and it does when there is some again.
TEST(StagesOnFibers, MemoryThatRunsOutInTheMiddle) {
  const MemorySource source = make_random_model({});
  LoadOptions options;
  const auto cpu = *Transformer::load(source, options);
  options.gpus = {0};
  const auto model = *Transformer::load(source, options);
  Executor executor(*model);
  const auto vocab = static_cast<size_t>(model->spec().vocab_size);
  std::vector<float> got(vocab), wanted(vocab);
  const auto pages = *model->make_pool(8, 1);  // one of 64 positions at a time
  KvCache first(pages, 256), second(pages, 256), on_cpu = *cpu->make_cache();
  std::vector<int32_t> text(60);
  for (size_t i = 0; i < text.size(); ++i) text[i] = int32_t(i * 7 % vocab);
  ASSERT_TRUE(executor.forward(text, first, LogitsWanted::none(), {}));
  ASSERT_TRUE(cpu->forward(text, on_cpu, LogitsWanted::none(), {}));
  {
    const LittleMemory none(0);
    for (int32_t token = 0; token < 4; ++token) {
      const auto refused = executor.forward(text, second, LogitsWanted::last(), got);
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory) << refused.error().message();
      EXPECT_EQ(second.length(), 0);
      const auto status = executor.forward({&token, 1}, first, LogitsWanted::last(), got);
      ASSERT_TRUE(status) << status.error().message();
      ASSERT_TRUE(cpu->forward({&token, 1}, on_cpu, LogitsWanted::last(), wanted));
      EXPECT_TRUE(same_bits(got, wanted)) << token;
    }
    const int32_t next[] = {5};  // now it needs a page, too
    EXPECT_EQ(executor.forward(next, first, LogitsWanted::last(), got).error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(first.length(), 64);
  }
  const int32_t next[] = {5};
  EXPECT_TRUE(executor.forward(text, second, LogitsWanted::none(), {}));
  ASSERT_TRUE(executor.forward(next, first, LogitsWanted::last(), got));
  ASSERT_TRUE(cpu->forward(next, on_cpu, LogitsWanted::last(), wanted));
  EXPECT_TRUE(same_bits(got, wanted));
}

TEST(StagesOnFibers, WhatADeviceDoesNotDoIsLeftToTheSampler) {
  LoadOptions options;
  options.gpus = {0};
  const auto model = *Transformer::load(make_random_model({}), options);
  const auto by_device = [&](const SamplerOptions& o, std::optional<int64_t> top = {}, int tokens = 0) {
    TokenChooser chooser(*Sampler::make(o), model.get(), top);
    for (int i = 0; i < tokens; ++i) chooser.accept(1);
    return chooser.by_device();
  };
  const auto last = int32_t(model->spec().vocab_size) - 1;
  EXPECT_TRUE(by_device({.logit_bias = {{last, 1.0F}}}));
  EXPECT_FALSE(by_device({.logit_bias = {{last + 1, 1.0F}}}));  // an error
  EXPECT_TRUE(by_device({.repeat_penalty = 2, .repeat_window = 2000}, {}, kMostRecent));
  EXPECT_FALSE(by_device({.repeat_penalty = 2, .repeat_window = 2000}, {}, kMostRecent + 1));
  EXPECT_TRUE(by_device({}, kMostLikely));
  EXPECT_FALSE(by_device({}, kMostLikely + 1));
  EXPECT_FALSE(by_device({.repeat_penalty = 2}, 0));
  const LittleMemory none(0);
  EXPECT_FALSE(by_device({.token_mask = {7}}));
  EXPECT_TRUE(by_device({.repeat_penalty = 2}));
}

}  // namespace
}  // namespace lowbit
