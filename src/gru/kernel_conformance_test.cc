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

/// A cell of 8-bit numbers, whose input and recurrent products kernels may interleave: a quantized network's, or of
/// random numbers.
Result<std::shared_ptr<const GruPlan>> bytes_plan(Rng& rng, int64_t c, int64_t h) {
  if (rng.below(2) == 0) {
    const GruNetwork net = random_network(rng, 1, false, c, h);
    const auto x = normals(rng, 6 * c, 1);
    const GruInput in = input_of(x, 6, 1);
    const auto model = GruModel::quantize(net, *GruRanges::measure(net, std::span(&in, 1)), *gru_preset("seed8"));
    if (!model) return tl::unexpected(model.error());
    return model->impl().cells[0];
  }
  GruCell cell = random_cell(rng, c, h);
  make_few_bits(rng, cell, between(rng, 2, 8));
  for (const GruTensor t : {GruTensor::kX, GruTensor::kH}) cell[t].format.bits = std::min(cell[t].format.bits, 8);
  return GruPlan::make(std::move(cell));
}

/// step_ahead() of one sequence against the reference's steps, shares of any number.
void compare_ahead(const GruKernel& kernel, const GruSpec& s, Rng& rng, int64_t& compared) {
  Buffer packed = *Buffer::allocate(kernel.packed_bytes(s), "test");
  kernel.pack(s, packed.as<uint8_t>());
  const int64_t rows = kernel.ahead_rows(packed.as<uint8_t>());
  if (rows == 0) return;
  ++compared;
  const int64_t blocks = 3, steps = rows * blocks;
  const auto x = random_codes(rng, steps * s.c, s.grid[kSlotX]);
  auto h = random_codes(rng, s.h, s.grid[kSlotH]);
  const CellRun reference = run_cell(kRefGru, s, x, h, steps, 1);
  Buffer scratch = *Buffer::allocate(kernel.scratch_bytes(s, rows), "test");
  std::vector<int32_t> next(static_cast<size_t>(rows * 3 * s.h));
  int64_t step = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t shares = between(rng, 1, static_cast<int>(rows));
    for (int64_t i = 0; i < shares; ++i, ++step) {
      const int32_t* ih = reference.ih.data() + step * 3 * s.h;
      const uint16_t* ahead = x.data() + block * rows * s.c;
      kernel.step_ahead(s, packed.as<uint8_t>(), ih, h.data(), {ahead, next.data(), i, shares}, scratch.as<uint8_t>());
      ASSERT_TRUE(std::equal(h.begin(), h.end(), reference.h.begin() + step * s.h)) << "step " << step;
    }
    ASSERT_TRUE(std::equal(next.begin(), next.end(), reference.ih.begin() + block * rows * 3 * s.h))
        << "block " << block;
  }
}

TEST(GruConformance, StepsWithTheInputProductOfRowsToCome) {
  Rng rng(20260105);
  for (const GruKernel* kernel : runnable_gru_kernels()) {
    if (kernel->ahead_rows == nullptr) continue;
    int64_t compared = 0;
    for (int i = 0; i < 200; ++i) {
      const int64_t size = 16 * between(rng, 4, 9);
      const auto plan = bytes_plan(rng, size - between(rng, 0, 3), size - between(rng, 0, 3));
      if (!plan) continue;
      compare_ahead(*kernel, (*plan)->spec(), rng, compared);
      if (HasFatalFailure()) FAIL() << kernel->name << " network " << i;
    }
    EXPECT_GT(compared, 40) << kernel->name;
  }
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
