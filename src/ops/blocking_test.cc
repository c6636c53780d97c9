#include "ops/blocking.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

#include "base/rng.h"
#include "kernels/registry.h"
#include "ops/matmul.h"
#include "ops/time_matmul.h"

namespace lowbit {
namespace {

TEST(Blocking, EveryKernelHasATableEntry) {
  for (const MatmulKernel* kernel : all_matmul_kernels()) EXPECT_GT(default_blocking(kernel->name).cache_bytes, 0);
  EXPECT_NE(&default_blocking("matmul_int4_a8__avx2_16x6"), &default_blocking("matmul_int4_a8__avx512_32x8"));
  EXPECT_EQ(&default_blocking("matmul_int4_a8_g64__amx_2x2"), &default_blocking("matmul_int2_a8__amx_2x2"));
}

TEST(BlockingTuner, KeepsTheFastestOfEachShape) {
  BlockingTuner tuner;
  const Blocking start;
  const BlockingTuner::Shape shape{&start, 10, 20, 1}, other{&start, 10, 20, 2};
  const auto wanted = BlockingTuner::candidate(start, 2);
  const auto work = [&](const Blocking& b) -> Status {
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::microseconds(b.chunks_per_thread == wanted.chunks_per_thread ? 50 : 2000);
    while (std::chrono::steady_clock::now() < until) {
    }
    return {};
  };
  for (int i = 0; i < BlockingTuner::kTurns; ++i) {
    EXPECT_EQ(tuner.chosen(shape), nullptr);
    ASSERT_TRUE(tuner.run(shape, start, work));
  }
  ASSERT_NE(tuner.chosen(shape), nullptr);
  EXPECT_EQ(tuner.chosen(shape)->chunks_per_thread, wanted.chunks_per_thread);
  EXPECT_EQ(tuner.chosen(other), nullptr);
  int64_t used = 0;
  ASSERT_TRUE(tuner.run(shape, start, [&](const Blocking& b) -> Status {
    used = b.chunks_per_thread;
    return {};
  }));
  EXPECT_EQ(used, wanted.chunks_per_thread);
}

TEST(BlockingTuner, ChangesNoBit) {
  ThreadPool pool(3);
  TimedMatmul spec;
  spec.group = 64;
  spec.n = 300;
  spec.k = 512;
  const QTensor w = *random_weight(spec, pool);
  const auto plan = MatmulPlan::make(w, {Activation::kInt8, best_isa(), false, 32}, pool);
  ASSERT_TRUE(plan.has_value());
  Rng rng(1);
  for (const int64_t m : {1, 300}) {
    std::vector<float> x(size_t(m * spec.k)), want(size_t(m * spec.n)), got(want.size());
    for (float& v : x) v = float(rng.normal());
    ActivationRows rows;
    ASSERT_TRUE(rows.prepare(Activation::kInt8, x.data(), m, spec.k, spec.k, best_isa(), pool));
    ASSERT_TRUE(plan->run(rows, nullptr, want.data(), spec.n, pool));
    BlockingTuner tuner;
    for (int i = 0; i <= BlockingTuner::kTurns; ++i) {
      std::fill(got.begin(), got.end(), -1.0f);
      const std::array<MatmulCall, 1> calls = {{{&*plan, nullptr, got.data(), spec.n}}};
      ASSERT_TRUE(run_matmuls(calls, rows, pool, &tuner));
      ASSERT_EQ(want, got) << "turn " << i;
    }
  }
}

}  // namespace
}  // namespace lowbit
