// Passes that fail in the middle, and what those behind them give. Kernels on fibers: needs no GPU.

#include <gtest/gtest.h>

#include <limits>

#include "model/random_model.h"
#include "runtime/program_checks.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace cuda {

extern int64_t waits_left;  // of the device that is the host: the next one fails

}  // namespace cuda
namespace {

using namespace program_checks;  // NOLINT

/// A pass that is timed waits behind each step. Fails behind each of them once: what that step has left to the next one
/// is no part of the pass that comes then.
void expect_right_passes_behind_failed_ones(FormatId format, std::span<const int32_t> tokens) {
  RandomModelSpec spec;
  spec.layers = 1;
  spec.format = format;
  const MemorySource source = make_random_model(spec);
  LoadOptions options;
  options.x.group = 32;
  const auto cpu = *Transformer::load(source, options);
  options.gpus = {0};
  const auto gpu = *Transformer::load(source, options);
  std::vector<float> want(size_t(cpu->spec().vocab_size)), got(want.size());
  auto on_cpu = *cpu->make_cache(), on_gpu = *gpu->make_cache();
  ASSERT_TRUE(cpu->forward(tokens, on_cpu, LogitsWanted::last(), want));
  Profile profile;
  int64_t failed = 0;
  for (bool fails = true; fails; ++failed) {
    gpu->set_profile(&profile);
    cuda::waits_left = failed;
    fails = !gpu->forward(tokens, on_gpu, LogitsWanted::last(), got);
    cuda::waits_left = std::numeric_limits<int64_t>::max();
    gpu->set_profile(nullptr);
    if (!fails) break;
    ASSERT_EQ(on_gpu.length(), 0);
    ASSERT_TRUE(gpu->forward(tokens, on_gpu, LogitsWanted::last(), got));
    ASSERT_TRUE(same_bits(got, want)) << "a failure behind " << failed << " steps";
    ASSERT_TRUE(on_gpu.truncate(0));
  }
  EXPECT_GT(failed, 5);  // the embedding, a block, the head
}

TEST(FailedPassesOnFibers, LeaveNothingToTheNext) {
  const std::vector<int32_t> tokens = {5, 3, 96, 0, 17, 17, 40, 2, 9, 11, 30, 31};
  for (const FormatId format : {FormatId::kF32, FormatId::kInt4})
    for (const size_t rows : {tokens.size(), size_t{1}})
      expect_right_passes_behind_failed_ones(format, std::span(tokens).first(rows));
}

}  // namespace
}  // namespace lowbit
