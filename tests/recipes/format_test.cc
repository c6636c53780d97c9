// The toy format of docs/adding-a-format.md, through everything that knows formats only by the list.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "format/qtensor.h"
#include "format/registry.h"
#include "quantize/fit.h"

namespace lowbit {
namespace {

TEST(RecipeFormat, IsKnownByNameAndDrawn) {
  const auto id = parse_format("codebook1");
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(*id, FormatId::kCodebook1);
  const FormatInfo& info = format_info(*id);
  EXPECT_EQ(info.kind, ValueKind::kTable);
  EXPECT_TRUE(info.canonical);
  EXPECT_EQ(info.bits_per_code(), 1.0);
  const std::string drawing = draw_layout(*id);
  EXPECT_NE(drawing.find("2 table entries, 1 bits per code, 32 in 4 bytes"), std::string::npos) << drawing;
  EXPECT_NE(drawing.find(" 31.0"), std::string::npos) << drawing;
}

TEST(RecipeFormat, NeighboursKeptTheirNames) {
  for (const char* name : {"f32", "int8", "codebook2", "int2-transposed", "ternary-planes"}) {
    const auto id = parse_format(name);
    ASSERT_TRUE(id.has_value()) << name;
    EXPECT_STREQ(format_info(*id).name, name);
  }
}

TEST(RecipeFormat, PacksOneBitACode) {
  const FormatOps& ops = format_ops(FormatId::kCodebook1);
  const std::vector<uint8_t> codes = {1, 0, 0, 1, 1, 1, 0, 1, 0, 1};
  uint8_t row[3] = {0xa5, 0xa5, 0xa5};
  ASSERT_EQ(row_bytes(FormatId::kCodebook1, 10), 2);
  ops.pack(codes.data(), 10, row);
  EXPECT_EQ(row[0], 0xb9);
  EXPECT_EQ(row[1], 0x02);
  EXPECT_EQ(row[2], 0xa5);
  std::vector<uint8_t> back(10);
  ops.unpack(row, 0, 10, back.data());
  EXPECT_EQ(back, codes);
}

TEST(RecipeFormat, FitsGaussianWeights) {
  constexpr int64_t kN = 64, kK = 256;
  Rng rng(11);
  std::vector<float> w(size_t(kN * kK));
  for (float& v : w) v = float(rng.normal());
  FitOptions options;
  options.format = FormatId::kCodebook1;
  options.scaling.k_block = 64;
  ThreadPool pool(2);
  FitReport report;
  const auto values = fit(w.data(), kN, kK, options, nullptr, pool, &report);
  ASSERT_TRUE(values.has_value()) << values.error().message();
  EXPECT_EQ(values->codebook.size(), 2u);
  const auto packed = pack(*values);
  ASSERT_TRUE(packed.has_value()) << packed.error().message();
  EXPECT_EQ(packed->codes.size(), kN * kK / 8);
  // The best two values for a normal variable are +-sqrt(2/pi): relative error 1 - 2/pi = 0.3634.
  EXPECT_LT(report.rel_error, 0.3634);
  EXPECT_GT(report.rel_error, 0.33);
  std::vector<float> real(w.size());
  dequantize_rows(*packed, 0, kN, real.data());
  double error = 0, energy = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    error += std::pow(double(w[i]) - real[i], 2);
    energy += std::pow(double(w[i]), 2);
  }
  EXPECT_NEAR(error / energy, report.rel_error, 1e-6);
}

}  // namespace
}  // namespace lowbit
