// FP8 in blocks on a GPU against the CPU.

#include <gtest/gtest.h>

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
               i, true, 0);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaFp8, GemmOnTensorCores) {
  LOWBIT_NEEDS_GPU();
  for (uint64_t i = 0; i < 2000; ++i) {
    Rng rng(i, 2);
    const auto below = [&](int64_t n) { return int64_t(rng.below(uint64_t(n))); };
    const int64_t rows[] = {1, 3, 8, 9, 16, 17, 64, 100, 128, 129, 300};
    const int64_t k = i % 20 == 0 ? 64 + below(8257) : 1 + below(1500);
    check_gemm(
        {rows[below(11)], 1 + below(500), k, 128 * (1 + below(2)), Fp8Element(below(3)), below(2) == 0, below(2) == 0},
        i, false, 1e-3);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaFp8, NoRows) {
  LOWBIT_NEEDS_GPU();
  check_gemm({0, 256, 256, 128, Fp8Element::kBf16, false, false}, 1, false, 1e-3);
}

/// More tiles than multiprocessors, with edges on all sides: thread blocks take several.
TEST(CudaFp8, GemmOfManyTiles) {
  LOWBIT_NEEDS_GPU();
  check_gemm({2500, 2500, 200, 128, Fp8Element::kBf16, true, true}, 1, false, 1e-3);
  check_gemm({4000, 1999, 130, 128, Fp8Element::kF32, false, true}, 2, false, 1e-3);
  check_gemm({700, 9000, 300, 256, Fp8Element::kF16, true, false}, 3, false, 1e-3);
  check_gemm({2048, 4096, 384, 128, Fp8Element::kBf16, true, false}, 4, false, 1e-3);
  check_gemm({64, 24576, 256, 128, Fp8Element::kBf16, true, true}, 5, false, 1e-3);
}

}  // namespace
}  // namespace lowbit
