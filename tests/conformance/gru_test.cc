// The GRU's matrix unit kernel on emulated tiles against the reference, bit for bit.

#include "gru/test_networks.h"
#include "tests/conformance/amx_emulated/table.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

#if defined(LOWBIT_HAS_EMULATED_AMX)
void compare(const GruSpec& s, Rng& rng, int64_t steps, int64_t batch, int which) {
  const auto x = random_codes(rng, steps * batch * s.c, s.grid[kSlotX]),
             h = random_codes(rng, batch * s.h, s.grid[kSlotH]);
  ASSERT_TRUE(run_cell(kAmxEmulatedGru, s, x, h, steps, batch) == run_cell(kRefGru, s, x, h, steps, batch))
      << "network " << which << " N " << batch << " C " << s.c << " H " << s.h;
}

TEST(GruConformance, EmulatedTilesGiveTheBitsOfTheReference) {
  if (!isa_available(Isa::kAvx512)) GTEST_SKIP() << "needs AVX-512";
  Rng rng(20260102);
  int compared = 0;
  for (int i = 0; compared < 1200 && i < 5000; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 80), between(rng, 1, 80));
    if (rng.below(2) == 0) make_few_bits(rng, cell, between(rng, 1, 8));
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    compare((*plan)->spec(), rng, between(rng, 1, 3), between(rng, 1, 70), i);
    if (HasFatalFailure()) return;
    ++compared;
  }
  EXPECT_EQ(compared, 1200);
}

TEST(GruConformance, EmulatedTilesUnpackFewBits) {
  if (!isa_available(Isa::kAvx512)) GTEST_SKIP() << "needs AVX-512";
  Rng rng(20260104);
  for (int i = 0; i < 8; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 40), between(rng, 592, 650));
    make_few_bits(rng, cell, 1 + i % 4);
    const auto plan = GruPlan::make(std::move(cell));
    if (plan) compare((*plan)->spec(), rng, 1, between(rng, 16, 40), i);
    if (HasFatalFailure()) return;
  }
}
#endif

}  // namespace
}  // namespace lowbit
