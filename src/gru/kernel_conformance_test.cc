// Every kernel against the reference, bit for bit: random networks of any widths, zero points and shifts.
#include "gru/test_networks.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

struct CellRun {
  std::vector<int32_t> ih, trace[7];
  std::vector<uint16_t> h;
  bool operator==(const CellRun&) const = default;
};

/// `steps` steps of `batch` sequences.
CellRun run_cell(const GruKernel& kernel, const GruSpec& s, const std::vector<uint16_t>& x, std::vector<uint16_t> h,
                 int64_t steps, int64_t batch) {
  CellRun run;
  Buffer packed = *Buffer::allocate(kernel.packed_bytes(s), "test");
  kernel.pack(s, packed.as<uint8_t>());
  Buffer scratch = *Buffer::allocate(kernel.scratch_bytes(s, steps * batch), "test");
  run.ih.resize(static_cast<size_t>(steps * batch * 3 * s.h));
  kernel.input(s, packed.as<uint8_t>(), x.data(), steps * batch, run.ih.data(), scratch.as<uint8_t>());
  run.trace[0].resize(static_cast<size_t>(batch * 3 * s.h));
  for (int i = 1; i < 7; ++i) run.trace[i].resize(static_cast<size_t>(batch * s.h));
  const GruTrace trace = {run.trace[0].data(), run.trace[1].data(), run.trace[2].data(), run.trace[3].data(),
                          run.trace[4].data(), run.trace[5].data(), run.trace[6].data()};
  for (int64_t t = 0; t < steps; ++t) {
    kernel.step(s, packed.as<uint8_t>(), run.ih.data() + t * batch * 3 * s.h, batch, h.data(), t % 2 ? nullptr : &trace,
                scratch.as<uint8_t>());
    run.h.insert(run.h.end(), h.begin(), h.end());
  }
  return run;
}

std::vector<uint16_t> random_codes(Rng& rng, int64_t n, const GruGrid& g) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  const bool extreme = rng.below(4) == 0;
  for (auto& q : out) {
    const auto span = static_cast<uint64_t>(g.hi - g.lo);
    q = static_cast<uint16_t>(extreme ? (rng.below(2) ? 0 : span) : rng.below(span + 1));
  }
  return out;
}

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
    if (rng.below(3) == 0) {  // the widths that networks have
      cell.w_format.bits = cell.r_format.bits = 8;
      for (auto* w : {&cell.w, &cell.r})
        for (auto& q : *w) q = static_cast<int16_t>(between(rng, -128, 127));
    }
    const auto plan = GruPlan::make(std::move(cell));
    if (!plan) continue;
    const GruSpec& s = (*plan)->spec();
    const int64_t steps = between(rng, 1, i % 50 == 0 ? 40 : 4), batch = between(rng, 1, i % 100 == 0 ? 70 : 5);
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

}  // namespace
}  // namespace lowbit
