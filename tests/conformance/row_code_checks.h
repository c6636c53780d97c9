// Codes of many rows with what stands before them in one launch: behind block_checks.h, whose OnDevice<T> it takes.

#include "kernels/cuda_codes_api.h"
#include "tests/conformance/exact_codes.h"

namespace lowbit {
namespace {

/// Codes and scales, in the order of cuda::RowCodes; E4M3 has padding behind its scales of a group.
struct CodedRows {
  std::vector<int8_t> codes;
  std::vector<float> scales;
  int64_t ldscales = 0;
};
enum class RowScales : uint8_t { kInt8, kExact, kE4m3 };
CodedRows coded_rows(const std::vector<float>& x, int64_t rows, int64_t k, int64_t group, int64_t ld,
                     RowScales of_rows) {
  const bool e4m3 = of_rows == RowScales::kE4m3;
  const int64_t width = group > 0 ? group : k, groups = (k + width - 1) / width;
  CodedRows out;
  out.ldscales = e4m3 ? (rows + 3) / 4 * 4 : 1;
  out.codes.assign(size_t(rows * ld), e4m3 ? 0 : 3);
  out.scales.assign(size_t(groups * (e4m3 ? out.ldscales : rows)), -1.0f);
  std::vector<int32_t> sums(size_t(rows * groups));
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = &x[size_t(r * k)];
    int8_t* const codes = &out.codes[size_t(r * ld)];
    if (e4m3)
      kRefFp8.quantize({row, Fp8Element::kF32, 1, k, k, kFp8Block, false, reinterpret_cast<uint8_t*>(codes), ld,
                        &out.scales[size_t(r)], out.ldscales});
    else if (of_rows == RowScales::kExact)
      conformance::exact_codes(row, k, ld, codes, &out.scales[size_t(r * groups)]);
    else
      round_groups(row, k, width, ld, 127, codes, &out.scales[size_t(r * groups)], &sums[size_t(r * groups)]);
  }
  return out;
}

/// Sums, gated products, norm and codes in one launch against one after the other. kE4m3: a group has 128 columns;
/// kExact: 32, four of which share a scale.
void check_row_codes(cuda::RowStart start, bool norm, int64_t k, int64_t group, int64_t rows,
                     RowScales of_rows = RowScales::kInt8) {
  const bool e4m3 = of_rows == RowScales::kE4m3;
  Rng rng(uint64_t(k + group) + rows);
  const int64_t ld = e4m3 ? (k + 15) / 16 * 16 : (k + 63) / 64 * 64;
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
  const bool whole = norm && group == 0;
  if (norm && !whole) {
    ASSERT_TRUE(cuda::norm_rows(wanted_x.data(), by.data(), rows, k, 1e-5f, wanted_x.data(), nullptr));
  }
  const std::vector<float> before = wanted_x.back();
  CodedRows wanted = coded_rows(whole ? times_rows(before, by.back()) : before, rows, k, group, ld, of_rows);
  if (whole) scale_by_norm(before, k, wanted.scales);
  OnDevice<int8_t> codes(std::vector<int8_t>(wanted.codes.size(), 5));
  OnDevice<float> factors(std::vector<float>(wanted.scales.size(), -1.0f));
  const cuda::RowCodes call{start,
                            got_x.data(),
                            others.data(),
                            norm ? by.data() : nullptr,
                            1e-5f,
                            rows,
                            k,
                            group,
                            codes.data(),
                            ld,
                            factors.data(),
                            nullptr,
                            e4m3,
                            wanted.ldscales,
                            of_rows == RowScales::kExact};
  ASSERT_TRUE(cuda::takes_row_codes(call));
  ASSERT_TRUE(cuda::row_codes(call));
  EXPECT_EQ(codes.back(), wanted.codes) << rows << " x " << k << " by " << group << (norm ? ", normed" : "")
                                        << (call.exact_scales ? ", exact scales" : "");
  expect_same(factors.back(), wanted.scales, "scales of rows");
  expect_same(got_x.back(), stored, "rows");
}

void check_all_row_codes() {
  for (const auto start :
       {cuda::RowStart::kX, cuda::RowStart::kSum, cuda::RowStart::kSilu, cuda::RowStart::kSquaredRelu})
    for (const bool norm : {false, true}) {
      for (const int64_t k : {4, 64, 100, 128, 576, 640, 1536, 4096})
        check_row_codes(start, norm, k, 128, 7, RowScales::kE4m3);
      check_row_codes(start, norm, 384, 128, 50, RowScales::kE4m3);
      for (const int64_t k : {4, 64, 100, 128, 256, 576, 640, 2560, 4096})
        check_row_codes(start, norm, k, 32, 7, RowScales::kExact);
      check_row_codes(start, norm, 6940, 32, 5, RowScales::kExact);
      for (const int64_t k : {192, 384}) check_row_codes(start, norm, k, 32, 50, RowScales::kExact);
      for (const int64_t group : {32, 0}) {
        for (const int64_t k : {4, 64, 100, 576, 640, 2560, 4096}) check_row_codes(start, norm, k, group, 7);
        check_row_codes(start, norm, 6912, group, 5);
        check_row_codes(start, norm, 192, group, 50);
      }
    }
  check_row_codes(cuda::RowStart::kSilu, false, 14336, 32, 5);
  check_row_codes(cuda::RowStart::kSilu, false, 14336, 32, 5, RowScales::kExact);
  check_row_codes(cuda::RowStart::kSilu, false, 14336, 128, 5, RowScales::kE4m3);
  cuda::RowCodes call{.k = 70, .group = 32, .ldq = 128};
  EXPECT_FALSE(cuda::takes_row_codes(call));
  call.k = 64, call.group = 64;
  EXPECT_FALSE(cuda::takes_row_codes(call));
  call.group = 0, call.e4m3 = true;
  EXPECT_FALSE(cuda::takes_row_codes(call));
  call = {.k = 128, .group = 32, .ldq = 128, .exact_scales = true};
  EXPECT_TRUE(cuda::takes_row_codes(call));
  for (const int64_t group : {0, 128}) {
    call.group = group;
    EXPECT_FALSE(cuda::takes_row_codes(call));
  }
}

}  // namespace
}  // namespace lowbit
