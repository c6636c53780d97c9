#include "ops/time_matmul.h"

#include <gtest/gtest.h>

namespace lowbit {
namespace {

TEST(ReadBandwidth, IsTheMedianOfItsSweeps) {
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    const auto one = measure_read_bandwidth(pool, int64_t{8} << 20, 1);
    ASSERT_TRUE(one);
    EXPECT_EQ(one->median, one->least);
    EXPECT_EQ(one->median, one->most);
    const auto nine = measure_read_bandwidth(pool, int64_t{8} << 20);
    ASSERT_TRUE(nine);
    EXPECT_GT(nine->least, 0.01);
    EXPECT_LE(nine->least, nine->median);
    EXPECT_LE(nine->median, nine->most);
  }
}

TEST(ReadBandwidth, RefusesWhatNoMachineHas) {
  ThreadPool pool(1);
  const auto rate = measure_read_bandwidth(pool, int64_t{1} << 60);
  ASSERT_FALSE(rate);
  EXPECT_EQ(rate.error().code, ErrorCode::kOutOfMemory);
}

TEST(TimeMatmul, ChecksItsAnswerAndCountsTheWeightAsItLies) {
  ThreadPool pool(2);
  TimedMatmul o;
  o.n = 96;
  o.k = 512;
  o.group = 64;
  o.cold_bytes = int64_t{1} << 20;  // copies, whose answers are those of the first
  o.isa = Isa::kScalar;
  o.seconds = 0;
  const auto timing = time_matmul(o, pool);
  ASSERT_TRUE(timing) << timing.error().message();
  EXPECT_TRUE(timing->checked);
  EXPECT_EQ(timing->runs, 5);
  EXPECT_GE(timing->weight_bytes, 96 * 512 / 2 + 2 * 96 * 8);
  EXPECT_GT(timing->gops, 0);
}

TEST(MatmulPlan, ACopyGivesTheSameBits) {
  ThreadPool pool(2);
  for (FormatId format : {FormatId::kInt4, FormatId::kF16, FormatId::kCodebook4}) {
    TimedMatmul o;
    o.format = format;
    o.n = 40;
    o.k = 200;
    const auto w = random_weight(o, pool);
    ASSERT_TRUE(w);
    auto plan =
        MatmulPlan::make(*w, {format == FormatId::kInt4 ? Activation::kInt8 : Activation::kF32, best_isa()}, pool);
    ASSERT_TRUE(plan) << plan.error().message();
    std::vector<float> x(3 * 200), y(3 * 40), again(3 * 40);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 17) - 8;
    ActivationRows rows;
    ASSERT_TRUE(rows.prepare(plan->activation(), x.data(), 3, 200, 200, best_isa(), pool));
    ASSERT_TRUE(plan->run(rows, nullptr, y.data(), 40, pool));
    const auto copy = plan->copy(pool);
    ASSERT_TRUE(copy);
    EXPECT_EQ(copy->kernel_name(), plan->kernel_name());
    *plan = {};
    ASSERT_TRUE(copy->run(rows, nullptr, again.data(), 40, pool));
    EXPECT_EQ(y, again);
  }
}

}  // namespace
}  // namespace lowbit
