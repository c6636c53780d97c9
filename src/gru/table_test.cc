// The piecewise-linear tables against the correctly rounded functions.
#include "gru/table.h"

#include "gru/test_networks.h"

namespace lowbit {
namespace {

GruParam input_of_bits(int bits, int shift, int zp = 0) { return {{bits, false, false, 1}, {shift, zp}}; }
GruParam output_of(GruFunction f, int bits) {
  const bool sigmoid = f == GruFunction::kSigmoid;
  return {{bits, sigmoid, true, 1}, {sigmoid ? bits : bits - 1, 0}};
}

struct Wanted {
  GruFunction f;
  int bits, segments;
  double max, mean;
};

// The design's measurements of its prototype (gru.md 3.6): 16-bit input of shift 12.
constexpr Wanted kTable[] = {
    {GruFunction::kSigmoid, 8, 16, 1, 0.15},  {GruFunction::kSigmoid, 8, 32, 1, 0.04},
    {GruFunction::kSigmoid, 8, 64, 1, 0.01},  {GruFunction::kTanh, 8, 16, 1, 0.08},
    {GruFunction::kTanh, 8, 32, 1, 0.02},     {GruFunction::kTanh, 8, 64, 1, 0.005},
    {GruFunction::kSigmoid, 12, 16, 7, 3.3},  {GruFunction::kSigmoid, 12, 32, 2, 0.84},
    {GruFunction::kSigmoid, 12, 64, 1, 0.21}, {GruFunction::kSigmoid, 16, 16, 101, 53},
    {GruFunction::kSigmoid, 16, 32, 25, 13},  {GruFunction::kSigmoid, 16, 64, 7, 3.3},
    {GruFunction::kTanh, 16, 16, 112, 39},    {GruFunction::kTanh, 16, 32, 27, 9.9},
    {GruFunction::kTanh, 16, 64, 7, 2.5},
};

TEST(GruTable, ErrorsAreNotAboveTheDesigns) {
  for (const Wanted& w : kTable) {
    const GruParam in = input_of_bits(16, 12), out = output_of(w.f, w.bits);
    const GruTable t = make_table(w.f, in, out, GruTableMode::kFused, w.segments);
    const GruTableError e = table_error(w.f, t, in, out);
    const std::string what = std::string(w.f == GruFunction::kSigmoid ? "sigmoid " : "tanh ") + std::to_string(w.bits) +
                             " bits, " + std::to_string(w.segments) + " segments";
    EXPECT_LE(e.max, w.max) << what;
    EXPECT_LE(e.mean, w.mean + 0.005) << what;  // the design prints two digits
    EXPECT_LE(static_cast<int>(t.slope.size()), w.segments) << what;
    RecordProperty(what, std::to_string(e.max) + " / " + std::to_string(e.mean));
  }
}

TEST(GruTable, AtTheDefaultSegmentsErrorsStayAtOneStep) {
  for (const int bits : {2, 4, 6, 8, 12, 16})
    for (const auto f : {GruFunction::kSigmoid, GruFunction::kTanh})
      for (const auto& [in_bits, shift] : {std::pair{8, 5}, {8, 4}, {10, 7}, {12, 8}, {16, 12}, {16, 10}}) {
        const GruParam in = input_of_bits(in_bits, shift), out = output_of(f, bits);
        const GruTable t = make_table(f, in, out, GruTableMode::kFused, default_segments(bits));
        EXPECT_LE(table_error(f, t, in, out).max, 1) << bits << " from " << in_bits << " shift " << shift;
      }
}

TEST(GruTable, NeverDecreasesAndIsOddWhereItShouldBe) {
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    const auto f = rng.below(2) ? GruFunction::kSigmoid : GruFunction::kTanh;
    const int in_bits = testing_gru::between(rng, 2, 13), out_bits = testing_gru::between(rng, 2, 16);
    GruParam in = input_of_bits(in_bits, testing_gru::between(rng, -2, 12));
    const bool centred = rng.below(2) == 0;
    if (!centred) in.scale.zp = testing_gru::between(rng, in.lo(), in.hi());
    const GruParam out = output_of(f, out_bits);
    const auto mode = rng.below(2) ? GruTableMode::kFused : GruTableMode::kSeed;
    const GruTable t = make_table(f, in, out, mode, testing_gru::between(rng, 4, 80));
    for (int64_t q = in.lo() + 1; q <= in.hi(); ++q)
      ASSERT_GE(evaluate_table(t, in, out, q), evaluate_table(t, in, out, q - 1))
          << i << ": q " << q << " in " << in_bits << " shift " << in.scale.shift << " zp " << in.scale.zp << " out "
          << out_bits << (f == GruFunction::kTanh ? " tanh" : " sigmoid")
          << (mode == GruTableMode::kSeed ? " seed" : "");
    if (f != GruFunction::kTanh || !centred) continue;
    ASSERT_EQ(evaluate_table(t, in, out, 0), 0);
    for (int64_t q = 1; q <= in.hi(); ++q) {
      const int64_t y = evaluate_table(t, in, out, q), mirrored = evaluate_table(t, in, out, -q);
      if (y < out.hi()) {
        ASSERT_EQ(mirrored, -y) << i << ": q " << q;
      }
    }
  }
}

TEST(GruTable, SeedFormIsWithinAStepOrTwoOfTheFusedOne) {
  for (const auto f : {GruFunction::kSigmoid, GruFunction::kTanh}) {
    const GruParam in = input_of_bits(8, 5), out = output_of(f, 8);
    EXPECT_LE(table_error(f, make_table(f, in, out, GruTableMode::kSeed, 16), in, out).max, 2);
  }
}

TEST(GruTable, DirectIsTheRoundedFunction) {
  const GruParam in = input_of_bits(8, 5, -3), out = output_of(GruFunction::kTanh, 8);
  const GruTable t = make_table(GruFunction::kTanh, in, out, GruTableMode::kDirect, 0);
  EXPECT_EQ(table_error(GruFunction::kTanh, t, in, out).max, 0);
  EXPECT_EQ(evaluate_table(t, in, out, -3), 0);
  EXPECT_EQ(evaluate_table(t, in, out, 127), 127);
  EXPECT_EQ(evaluate_table(t, in, out, -128), -128);
}

TEST(GruTable, TheSameNumbersGiveTheSameTable) {
  const GruParam in = input_of_bits(12, 8), out = output_of(GruFunction::kSigmoid, 12);
  EXPECT_EQ(make_table(GruFunction::kSigmoid, in, out, GruTableMode::kFused, 64),
            make_table(GruFunction::kSigmoid, in, out, GruTableMode::kFused, 64));
}

}  // namespace
}  // namespace lowbit
