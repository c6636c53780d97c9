// Models on several devices against the CPU, bit for bit: one GPU takes the part of two, or there are two.

#include "tests/conformance/stage_checks.h"

#include "kernels/cuda_memory_api.h"
#include "tests/conformance/cuda/on_device.h"

namespace lowbit {
namespace {

using namespace stage_checks;  // NOLINT

TEST(CudaStages, GiveTheBitsOfTheCpu) {
  LOWBIT_NEEDS_GPU();
  const int other = cuda::devices().size() > 1 ? 1 : 0;
  RandomModelSpec spec;
  spec.layers = 5;
  for (const FormatId format : {FormatId::kF32, FormatId::kInt4, FormatId::kTernary}) {
    spec.format = format;
    spec.tied = !spec.tied;
    check_placements(spec, {{{0}}, {{0}, 0}, {{0}, 1}, {{0}, 4}, {{0, other}}, {{other, 0}}, {{0, other}, 3}}, "f16");
    check_placements(spec, {{{0}, 2}, {{0, other}}}, "k4v2");
  }
}

/// Sessions until the device has no page left: the last one has an error, the others go on, and it does when one has
/// ended. It takes all of the device's memory: other tests that run there meanwhile would get none.
TEST(CudaPrograms, MemoryThatRunsOutInTheMiddle) {
  LOWBIT_NEEDS_GPU();
  RandomModelSpec spec;
  spec.heads = spec.kv_heads = 8;
  spec.head_dim = 256;
  spec.layers = 8;  // a page has 4 MiB
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  const auto cpu = *Transformer::load(source, options);
  options.gpus = {0};
  const auto model = *Transformer::load(source, options);
  Executor executor(*model);
  const auto vocab = static_cast<size_t>(spec.vocab);
  std::vector<float> got(vocab), wanted(vocab);
  const auto pages = *model->make_pool(4096, 1);
  std::vector<KvCache> sessions;
  KvCache on_cpu = *cpu->make_cache();
  std::vector<int32_t> text(60);
  for (size_t i = 0; i < text.size(); ++i) text[i] = int32_t(i * 7 % vocab);
  ASSERT_TRUE(cpu->forward(text, on_cpu, LogitsWanted::last(), wanted));
  sessions.emplace_back(pages, 256);
  ASSERT_TRUE(executor.forward(text, sessions[0], LogitsWanted::last(), got));
  std::vector<Buffer> taken;  // all but some 100 MiB
  for (int64_t bytes = int64_t{64} << 30; bytes >= int64_t{32} << 20;)
    if (*cuda::free_memory() < bytes + (int64_t{100} << 20)) {
      bytes /= 2;
    } else if (auto buffer = cuda::allocate(bytes, "memory"); buffer) {
      taken.push_back(std::move(*buffer));
    } else {
      bytes /= 2;
    }
  Status status;
  while (status && sessions.size() < 200) {
    sessions.emplace_back(pages, 256);
    status = executor.forward(text, sessions.back(), LogitsWanted::last(), got);
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory) << status.error().message();
  EXPECT_EQ(sessions.back().length(), 0);
  ASSERT_GT(sessions.size(), 3U);
  for (int32_t token = 0; token < 4; ++token) {
    const auto goes_on = executor.forward({&token, 1}, sessions[0], LogitsWanted::last(), got);
    ASSERT_TRUE(goes_on) << goes_on.error().message();
    ASSERT_TRUE(cpu->forward({&token, 1}, on_cpu, LogitsWanted::last(), wanted));
    EXPECT_TRUE(same_bits(got, wanted)) << token;
  }
  sessions[1].clear();
  EXPECT_TRUE(executor.forward(text, sessions.back(), LogitsWanted::last(), got));
}

}  // namespace
}  // namespace lowbit
