// FP8 in blocks on a GPU against the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/conformance/cuda/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/fp8_checks.h"

namespace lowbit {
namespace {

TEST(CudaFp8, Quantize) {
  LOWBIT_NEEDS_GPU();
  check_quantize_all(600, 3000);
  check_quantize({300, 7168, 1, 128, Fp8Element::kBf16, Before::kNothing, true, false, true, true}, 1);
  check_quantize({300, 7168, 128, 128, Fp8Element::kF32, Before::kNothing, false, false, false, true}, 2);
  check_quantize({64, 7168, 1, 128, Fp8Element::kBf16, Before::kNorm, false, false, false, true}, 3);
  check_quantize({64, 2048, 1, 128, Fp8Element::kF16, Before::kGate, false, true, false, true}, 4);
  check_quantize({3000, 4000, 1, 128, Fp8Element::kBf16, Before::kGate, true, false, true, true}, 5);
  check_quantize_normed(2000);
}

TEST(CudaFp8, Dequantize) {
  LOWBIT_NEEDS_GPU();
  check_dequantize();
}

TEST(CudaFp8, GemmHasTheCpusBits) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 200; ++i) {
    Rng rng(i, 1);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    check_gemm({1 + below(150), 1 + below(200), 1 + below(600), 1 + below(9), Fp8Element(below(3)), below(2) == 0,
                below(2) == 0},
               i, true, 0, [](const Fp8Gemm& g) { return cuda::gemm_fp8(g, nullptr, {.exact = true}); });
    if (HasFatalFailure()) return;
  }
}

TEST(CudaFp8, GemmOnTensorCores) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 2000; ++i) {
    Rng rng(i, 2);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t rows[] = {1, 3, 8, 9, 16, 17, 64, 100, 128, 129, 300};
    const int64_t k = i % 20 == 0 ? 64 + below(8257) : 1 + below(1500), b_rows[] = {1, 128, 256};
    check_gemm(
        {rows[below(11)], 1 + below(500), k, b_rows[below(3)], Fp8Element(below(3)), below(2) == 0, below(2) == 0}, i,
        false, 1e-3, [&](const Fp8Gemm& g) { return cuda::gemm_fp8(g, nullptr, {.new_weights = i % 4 == 0}); });
    if (HasFatalFailure()) return;
  }
}

/// mma.sync, whatever would be chosen. On f16 products are exact; on E4M3 sums are the hardware's.
void check_mma(cuda::Fp8Cores cores, double tolerance) {
  const auto product = [cores](const Fp8Gemm& g) { return cuda::gemm_fp8_by_mma(g, {}, cores, nullptr); };
  const Status nothing = product(Fp8Gemm());
  if (!nothing && nothing.error().code == ErrorCode::kUnsupported) GTEST_SKIP() << nothing.error().message();
  ASSERT_TRUE(nothing) << nothing.error().message();
  for (uint64_t i = 0; i < 1000; ++i) {
    Rng rng(i, 6);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t rows[] = {1, 3, 8, 16, 17, 32, 33, 64, 100, 128, 129, 300};
    const int64_t k = i % 20 == 0 ? 64 + below(8257) : 1 + below(1500);
    check_gemm({rows[below(12)], 1 + below(500), k, 64 * (1 + below(3)), Fp8Element(below(3)), below(2) == 0,
                below(2) == 0, i % 4 != 0},
               i, false, tolerance * std::sqrt(std::max(1.0, double(k) / 128)), product);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaFp8, GemmOnHalves) {
  LOWBIT_NEEDS_GPU();
  check_mma(cuda::Fp8Cores::kHalves, 1e-6);
}

TEST(CudaFp8, GemmOnE4m3) {
  LOWBIT_NEEDS_GPU();
  check_mma(cuda::Fp8Cores::kE4m3, 1e-3);
}

/// Rows that wgmma does not take.
TEST(CudaFp8, GemmOfOddRows) {
  LOWBIT_NEEDS_GPU();
  for (int64_t m : {1, 9, 40, 130})
    for (const bool special : {false, true})
      check_gemm({m, 200, 300, 64, Fp8Element::kF32, special, special, true}, uint64_t(m), false, 1e-3);
}

using GroupedProduct = Status (*)(const Fp8Gemm&, const Fp8Groups&, void*);

/// Groups of rows in both forms, empty ones and rows of no group among them. `wide`: rows that begin at multiples of 16
/// bytes, which tensor cores of compute capability 9.0 take as they are.
void check_groups(uint64_t seed, bool wide, double tolerance, GroupedProduct product = cuda::grouped_gemm_fp8) {
  Rng rng(seed, 8);
  const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
  const bool masked = below(2) == 0, by_column = below(2) == 0;
  const int64_t count = 1 + below(70), n = 1 + below(wide ? 400 : 200), some = 1 + below(500);
  const int64_t k = wide ? (some + 15) / 16 * 16 : some - (some % 16 == 0 ? 1 : 0), blocks = (k + 127) / 128;
  const int64_t largest = wide && count < 8 ? 4000 : 600;
  const int64_t rows_of_group = masked ? 1 + below(80) : 0, m = masked ? count * rows_of_group : 1 + below(largest);
  std::vector<int32_t> numbers;
  int64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    end = std::min(m, end + (below(3) == 0 ? 0 : below(2 * m / count + 2)));
    numbers.push_back(masked ? int32_t(below(rows_of_group + 1)) : int32_t(end));
  }
  SCOPED_TRACE("seed " + std::to_string(seed) + (masked ? " masked m " : " m ") + std::to_string(m));
  const int64_t b_blocks = (n + 127) / 128, lda_scales = by_column ? (m + 3) / 4 * 4 : blocks;
  const auto a = random_codes(rng, size_t(m * k), false), b = random_codes(rng, size_t(count * n * k), false);
  std::vector<float> as(size_t(by_column ? blocks * lda_scales : m * blocks)), bs(size_t(count * b_blocks * blocks));
  for (auto* scales : {&as, &bs})
    for (float& s : *scales) s = float(0.5 + rng.uniform()) * 0.01f;
  constexpr float kNobodys = -7e30f;
  std::vector<float> want(size_t(m * n), kNobodys);
  Fp8Gemm g{m,        n, k,         a.data(), k,   as.data(),   lda_scales,       by_column,
            b.data(), k, bs.data(), blocks,   128, want.data(), Fp8Element::kF32, n};
  Fp8Groups groups{count, masked ? nullptr : numbers.data(), masked ? numbers.data() : nullptr, rows_of_group};
  ASSERT_TRUE(grouped_gemm_fp8(g, groups, best_isa(), fp8_pool()));
  const OnDevice<uint8_t> device_a(a), device_b(b);
  const OnDevice<float> device_as(as), device_bs(bs), device_y(std::vector<float>(want.size(), kNobodys));
  const OnDevice<int32_t> device_numbers(numbers);
  g.a = device_a.data(), g.b = device_b.data(), g.a_scales = device_as.data(), g.b_scales = device_bs.data();
  g.c = const_cast<float*>(device_y.data());
  (masked ? groups.rows : groups.ends) = device_numbers.data();
  ASSERT_TRUE(product(g, groups, nullptr));
  const auto got = device_y.back();
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == kNobodys) {
      ASSERT_EQ(got[i], kNobodys) << i;
      continue;
    }
    error += std::pow(double(got[i]) - want[i], 2);
    norm += double(want[i]) * want[i];
  }
  ASSERT_LE(std::sqrt(error / std::max(norm, 1e-30)), tolerance);
}

TEST(CudaFp8, Groups) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 200; ++i) {
    check_groups(i, false, 3e-6, [](const Fp8Gemm& g, const Fp8Groups& groups, void* stream) {
      return cuda::gemm_fp8_by_mma(g, groups, cuda::Fp8Cores::kHalves, stream);
    });
    if (HasFatalFailure()) return;
    check_groups(i, false, 1e-3);  // the cores that are chosen
    if (HasFatalFailure()) return;
  }
}

TEST(CudaFp8, GroupsOnTensorCores) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 300; ++i) {
    check_groups(i, true, 1e-3);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaFp8, NoRows) {
  LOWBIT_NEEDS_GPU();
  check_gemm({0, 256, 256, 128, Fp8Element::kBf16, false, false}, 1, false, 1e-3);
}

/// Up to 128 rows by enough columns for every tile that may be chosen, in one round of them and in several.
TEST(CudaFp8, GemmOfFewRows) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 120; ++i) {
    Rng rng(i, 11);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t n = i % 3 == 0 ? 8 * (1 + below(2200)) : 1 + below(i % 3 == 1 ? 4500 : 17600);
    check_gemm({9 + below(i % 2 == 0 ? 56 : 120), n, 16 * (1 + below(30)), i % 5 == 0 ? 1 : 128 * (1 + below(2)),
                Fp8Element(below(3)), below(2) == 0, i % 7 == 0},
               i, false, 1e-3,
               [&](const Fp8Gemm& g) { return cuda::gemm_fp8(g, nullptr, {.new_weights = i % 4 == 0}); });
    if (HasFatalFailure()) return;
  }
}

/// More tiles than multiprocessors, with edges on all sides: thread blocks take several.
TEST(CudaFp8, GemmOfManyTiles) {
  LOWBIT_NEEDS_GPU();
  check_gemm({2500, 2500, 200, 128, Fp8Element::kBf16, true, true}, 1, false, 1e-3);
  check_gemm({4000, 1999, 130, 128, Fp8Element::kF32, false, true}, 2, false, 1e-3);
  check_gemm({700, 9000, 300, 256, Fp8Element::kF16, true, false}, 3, false, 1e-3);
  check_gemm({2048, 4096, 384, 128, Fp8Element::kBf16, true, false}, 4, false, 1e-3);
  check_gemm({64, 24576, 256, 128, Fp8Element::kBf16, true, true}, 5, false, 1e-3);
  for (uint64_t i = 0; i < 60; ++i) {
    Rng rng(i, 9);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t b_rows = i < 40 ? 128 * (1 + below(2)) : 1;
    check_gemm({400 + below(2800), 1500 + below(3000), 16 * (1 + below(40)), b_rows, Fp8Element(below(3)),
                below(2) == 0, below(2) == 0},
               i, false, 1e-3);
    if (HasFatalFailure()) return;
  }
}

/// Scales in fours along K and by column, which the copy engine fetches with the codes: stages of one tile and of
/// several at once, rows and columns that end within a tile.
TEST(CudaFp8, GemmWithScalesByTheCopyEngine) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 60; ++i) {
    Rng rng(i, 12);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t m = i % 2 == 0 ? 33 + below(96) : 129 + below(i % 8 == 1 ? 1500 : 600), k = 512 * (1 + below(4));
    check_gemm({m, 1 + below(3000), k - 16 * below(8), 128 * (1 + below(2)), Fp8Element(below(3)), true, i % 7 == 0}, i,
               false, 1e-3, [&](const Fp8Gemm& g) { return cuda::gemm_fp8(g, nullptr, {.new_weights = i % 4 == 0}); });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace lowbit
