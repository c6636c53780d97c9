// Text that a model writes on a device, which chooses the tokens: the kernels on fibers, so it needs no GPU.

#include "calibrate/written_text.h"

#include <gtest/gtest.h>

#include "calibrate/talking_source.h"

namespace lowbit {
namespace {

constexpr int64_t kTextContext = 40;  // more tokens than a call to the device chooses

std::vector<TokenId> written(int gpu, const WritingOptions& options) {
  const TalkingSource source(make_random_model({}));
  Compute compute;
  compute.device = "cpu";
  compute.threads = 1;
  auto engine = Engine::make(compute);
  EXPECT_TRUE(engine) << engine.error().message();
  engine->gpu = gpu;
  if (gpu >= 0) engine->gpus = {gpu};
  auto text = write_text(source, *engine, options);
  EXPECT_TRUE(text) << text.error().message();
  return text.value_or(std::vector<TokenId>());
}

TEST(WrittenTextOnFibers, IsTheCpus) {
  WritingOptions options;
  options.context = kTextContext;
  options.tokens = 6 * kTextContext;
  const auto on_cpu = written(-1, options), on_device = written(0, options);
  EXPECT_EQ(on_cpu.size(), static_cast<size_t>(options.tokens));
  EXPECT_EQ(on_cpu, on_device);
}

}  // namespace
}  // namespace lowbit
