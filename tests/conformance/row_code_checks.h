// Codes of many rows with what stands before them in one launch: behind block_checks.h, whose OnDevice<T> it takes.

#include "kernels/cuda_codes_api.h"

namespace lowbit {
namespace {

/// Sums, gated products, norm and codes in one launch against one after the other.
void check_row_codes(cuda::RowStart start, bool norm, int64_t k, int64_t group, int64_t rows) {
  Rng rng(uint64_t(k + group) + rows);
  const int64_t ld = (k + 63) / 64 * 64, width = group > 0 ? group : k, groups = (k + width - 1) / width;
  std::vector<float> x = random_floats(rng, rows * k), other = random_floats(rng, rows * k);
  x[size_t(k)] = NAN;
  for (int64_t i = 0; i < k; ++i) x[size_t(2 * k + i)] = other[size_t(2 * k + i)] = 0;
  x[size_t(4 * k - 1)] = INFINITY;
  for (int64_t i = 0; i < k; ++i) x[size_t(4 * k + i)] *= 30.0f;  // exp() to its ends
  const OnDevice<float> others(other), by(random_floats(rng, k));
  OnDevice<float> wanted_x(x), got_x(x);
  if (start == cuda::RowStart::kSum) {
    ASSERT_TRUE(cuda::add_rows(others.data(), rows * k, wanted_x.data(), nullptr));
  }
  std::vector<float> stored = wanted_x.back();
  if (start == cuda::RowStart::kSilu) {
    ASSERT_TRUE(cuda::gate_rows(wanted_x.data(), others.data(), rows * k, nullptr));
  }
  if (start == cuda::RowStart::kSquaredRelu) {
    ASSERT_TRUE(cuda::squared_relu_rows(wanted_x.data(), others.data(), rows * k, nullptr));
  }
  if (norm) {
    ASSERT_TRUE(cuda::norm_rows(wanted_x.data(), by.data(), rows, k, 1e-5f, wanted_x.data(), nullptr));
  }
  const std::vector<float> real = wanted_x.back();
  std::vector<int8_t> wanted(size_t(rows * ld), 3);
  std::vector<float> scales(size_t(rows * groups));
  std::vector<int32_t> sums(scales.size());
  for (int64_t r = 0; r < rows; ++r)
    round_groups(&real[size_t(r * k)], k, width, ld, 127, &wanted[size_t(r * ld)], &scales[size_t(r * groups)],
                 &sums[size_t(r * groups)]);
  OnDevice<int8_t> codes(std::vector<int8_t>(wanted.size(), 5));
  OnDevice<float> factors(std::vector<float>(scales.size()));
  const cuda::RowCodes call{
      start, got_x.data(),   others.data(), norm ? by.data() : nullptr, 1e-5f, rows, k, group, codes.data(),
      ld,    factors.data(), nullptr};
  ASSERT_TRUE(cuda::takes_row_codes(call));
  ASSERT_TRUE(cuda::row_codes(call));
  EXPECT_EQ(codes.back(), wanted) << rows << " x " << k << " by " << group << (norm ? ", normed" : "");
  expect_same(factors.back(), scales, "scales of rows");
  expect_same(got_x.back(), stored, "rows");
}

void check_all_row_codes() {
  for (const auto start :
       {cuda::RowStart::kX, cuda::RowStart::kSum, cuda::RowStart::kSilu, cuda::RowStart::kSquaredRelu})
    for (const bool norm : {false, true})
      for (const int64_t group : {32, 0}) {
        for (const int64_t k : {4, 64, 100, 576, 640, 2560, 4096}) check_row_codes(start, norm, k, group, 7);
        check_row_codes(start, norm, 6912, group, 5);
        check_row_codes(start, norm, 192, group, 50);
      }
  check_row_codes(cuda::RowStart::kSilu, false, 14336, 32, 5);
  cuda::RowCodes call{.k = 70, .group = 32, .ldq = 128};
  EXPECT_FALSE(cuda::takes_row_codes(call));
  call.k = 64, call.group = 64;
  EXPECT_FALSE(cuda::takes_row_codes(call));
}

}  // namespace
}  // namespace lowbit
