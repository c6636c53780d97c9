// Plans: what may overflow is refused, and what is accepted stays within the widths that were proved.
#include "gru/plan.h"

#include "gru/test_networks.h"
#include "kernels/gru_api.h"

namespace lowbit {
namespace {

using namespace testing_gru;  // NOLINT

TEST(GruPlan, RefusesWhatCouldOverflowAndSaysWhere) {
  Rng rng(12);
  GruCell cell = random_cell(rng, 4, 4);
  for (GruParam& p : cell.tensors) p = {{16, false, false, 1}, {0, 0}};
  cell[GruTensor::kU] = {{16, true, false, 1}, {16, 0}};
  cell[GruTensor::kH].scale.shift = 31;
  cell[GruTensor::kN].scale.shift = -31;
  for (GruTable& t : cell.tables) {
    t = {};
    t.direct.assign(65536, 0);
  }
  const auto plan = GruPlan::make(cell);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(plan.error().message().find("the new state"), std::string::npos) << plan.error().message();
}

TEST(GruPlan, KnowsWhichStagesFit32Bits) {
  Rng rng(13);
  const GruNetwork net = random_network(rng, 1, false, 32, 32);
  const auto x = normals(rng, 32 * 8, 1);
  const GruSpec narrow = quantized(net, x, 8, 1, *gru_preset("seed8")).impl().cells[0]->spec();
  EXPECT_TRUE(narrow.input32 && narrow.state32 && narrow.elements32);
  GruConfig wide = *gru_preset("w8a16");
  wide.w.bits = wide.r.bits = 16;
  const GruSpec spec = quantized(net, x, 8, 1, wide).impl().cells[0]->spec();
  EXPECT_FALSE(spec.input32 || spec.state32 || spec.elements32);
}

TEST(GruPlan, NoStageExceedsItsProvedWidth) {
  // Random extreme cells, recomputed in 128 bits: what the plan lets pass never leaves 64 (UBSan sees shifts besides).
  Rng rng(14);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 2000; ++i) {
    GruCell cell = random_cell(rng, between(rng, 1, 5), between(rng, 1, 5));
    if (rng.below(2) == 0)
      for (GruParam& p : cell.tensors) p.scale.shift = between(rng, -31, 31);
    cell[GruTensor::kU].scale.shift = std::abs(cell[GruTensor::kU].scale.shift);
    const auto plan = GruPlan::make(cell);
    if (!plan) {
      ++refused;
      continue;
    }
    ++accepted;
    const GruSpec& s = (*plan)->spec();
    std::vector<uint16_t> x(static_cast<size_t>(s.c)), h(static_cast<size_t>(s.h));
    for (auto& q : x) q = static_cast<uint16_t>(rng.below(2) ? 0 : s.grid[kSlotX].hi - s.grid[kSlotX].lo);
    for (auto& q : h) q = static_cast<uint16_t>(rng.below(2) ? 0 : s.grid[kSlotH].hi - s.grid[kSlotH].lo);
    std::vector<int32_t> ih(static_cast<size_t>(3 * s.h));
    std::vector<uint8_t> scratch(static_cast<size_t>(kRefGru.scratch_bytes(s, 1)));
    for (int t = 0; t < 3; ++t) {
      kRefGru.input(s, nullptr, x.data(), 1, ih.data(), scratch.data());
      for (int64_t c = 0; c < 3 * s.h; ++c) {
        __int128 sum = s.x_bias[c];
        for (int64_t k = 0; k < s.c; ++k)
          sum += static_cast<__int128>(s.w[c * s.c + k]) * (x[static_cast<size_t>(k)] + s.grid[kSlotX].lo);
        ASSERT_LT(sum < 0 ? -sum : sum, static_cast<__int128>(1) << ((*plan)->widths().input_product - 1));
      }
      kRefGru.step(s, nullptr, ih.data(), 1, h.data(), nullptr, scratch.data());
      for (const uint16_t q : h) ASSERT_LE(q, s.grid[kSlotH].hi - s.grid[kSlotH].lo);
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace lowbit
