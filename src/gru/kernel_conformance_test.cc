// Every kernel against the reference, bit for bit: random networks of any widths, zero points and shifts.
#include "gru/test_networks.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

TEST(GruConformance, EveryKernelGivesTheBitsOfTheReference) {
  const auto kernels = runnable_gru_kernels();
  if (kernels.size() < 2) GTEST_SKIP() << "this machine runs the reference only";
  Rng rng(20260101);
  const char* asked = std::getenv("LOWBIT_GRU_NETWORKS");
  const int wanted = asked != nullptr ? std::atoi(asked) : 20000;
  int compared = 0, wide = 0, narrow = 0;
  for (int i = 0; compared < wanted && i < 4 * wanted; ++i) {
    const int size = i % 8 == 0 ? 90 : 20;
    GruCell cell = random_cell(rng, between(rng, 1, size), between(rng, 1, size));
    if (rng.below(3) == 0) make_few_bits(rng, cell, 8);  // the widths that networks have
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    const int64_t steps = between(rng, 1, i % 50 == 0 ? 40 : 4), batch = between(rng, 1, i % 20 == 0 ? 70 : 5);
    const auto x = random_codes(rng, steps * batch * s.c, s.grid[kSlotX]),
               h = random_codes(rng, batch * s.h, s.grid[kSlotH]);
    const CellRun reference = run_cell(kRefGru, s, x, h, steps, batch);
    for (const GruKernel* kernel : kernels) {
      if (kernel == &kRefGru) continue;
      const CellRun got = run_cell(*kernel, s, x, h, steps, batch);
      ASSERT_EQ(got.ih, reference.ih) << kernel->name << " network " << i;
      ASSERT_EQ(got.h, reference.h) << kernel->name << " network " << i;
      ASSERT_TRUE(got == reference) << kernel->name << " network " << i << ": trace";
    }
    ++compared;
    (s.elements32 ? narrow : wide)++;
  }
  EXPECT_EQ(compared, wanted);
  EXPECT_GT(narrow, wanted / 5);
  EXPECT_GT(wide, wanted / 20);
}

/// Weights that stay packed are more than a megabyte as bytes.
TEST(GruConformance, LargeCellsOfFewBits) {
  const auto kernels = runnable_gru_kernels();
  Rng rng(20260103);
  for (int i = 0; i < 24; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 40), between(rng, 592, 700));
    make_few_bits(rng, cell, 1 + i % 4);
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    const int64_t batch = std::array{1, 2, 5, 19, 33}[rng.below(5)];
    const auto x = random_codes(rng, batch * s.c, s.grid[kSlotX]), h = random_codes(rng, batch * s.h, s.grid[kSlotH]);
    const CellRun reference = run_cell(kRefGru, s, x, h, 1, batch);
    for (const GruKernel* kernel : kernels) {
      if (kernel == &kRefGru) continue;
      ASSERT_TRUE(run_cell(*kernel, s, x, h, 1, batch) == reference) << kernel->name << " network " << i;
    }
  }
}

}  // namespace
}  // namespace lowbit
