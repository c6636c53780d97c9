// The kernels of FP8 in blocks on fibers against the CPU, bit for bit: needs no GPU.

// A namespace of its own: the program also holds what nvcc made of them.
#define cuda cuda_on_fibers
#include "tests/conformance/cuda_emulated/block_fibers.h"
// Behind it: the kernels' translation units as they are; kernels/cuda/elements.cuh is this folder's.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace lowbit::cuda {
int g_processors = 1;
bool g_bulk_copies = false;
cudaError_t current_device(Device* device) {
  *device = {.processors = g_processors, .shared_bytes = 227 << 10, .arch = 80, .bulk_copies = g_bulk_copies};
  return cudaSuccess;
}
cudaError_t allow_shared(const void*, const Device&) { return cudaSuccess; }
Status check_cuda(cudaError_t error, const char* where) {
  return error == cudaSuccess ? Status{} : fail(ErrorCode::kIo, where, "an error");
}
}  // namespace lowbit::cuda

#include "kernels/cuda/fp8/gemm_mma.h"
#include "kernels/cuda/fp8/gemm_wgmma.cc"
#include "kernels/cuda/fp8/quantize.cu"

namespace lowbit::cuda {
/// No tensor cores on fibers.
bool gemm_fp8_mma(const DeviceGemm&, const Fp8Groups&, cudaStream_t, cudaError_t*) { return false; }
cudaError_t fp8::launch_mma_halves(const DeviceGemm&, const Fp8Groups&, const Device&, cudaStream_t) {
  return cudaErrorInvalidConfiguration;
}
cudaError_t fp8::launch_mma_e4m3(const DeviceGemm&, const Fp8Groups&, const Device&, cudaStream_t) {
  return cudaErrorInvalidConfiguration;
}
}  // namespace lowbit::cuda

// One after the other: both have an unnamed namespace with the same names.
#include "kernels/cuda/fp8/gemm.cu"
// Behind it: few rows.
#include "kernels/cuda/block/exact_products.cu"

#include "tests/conformance/cuda_emulated/vector_on_device.h"
// Behind it: the checks are written for either.
#include "tests/conformance/fp8_checks.h"

namespace lowbit {
namespace {

TEST(Fp8OnFibers, Quantize) {
  check_quantize_all(120, 900);
  check_quantize({100, 900, 1, 128, Fp8Element::kBf16, Before::kNothing, false, false, true, true}, 1);
  check_quantize({90, 776, 1, 128, Fp8Element::kF16, Before::kNothing, true, true, true, true}, 2);
  check_quantize({50, 904, 1, 128, Fp8Element::kBf16, Before::kGate, true, false, true, true}, 3);
  check_quantize({50, 644, 1, 128, Fp8Element::kF16, Before::kGate, false, true, false, true}, 4);
  check_quantize_normed(20);
  cuda::g_bulk_copies = true;  // many rows: a pipeline
  check_quantize_normed(20);
  cuda::g_processors = 12;  // few rows: in parts
  check_quantize_normed(20);
  cuda::g_processors = 1;
  for (const int64_t rows : {2, 40})  // norms that are not finite, beside columns that are not there
    for (const int64_t columns : {904, 1928})
      check_quantize({rows, columns, 1, 128, Fp8Element::kBf16, Before::kNorm, false, false, true, true}, 5);
}

/// The fastest tile by a card's times, docs/lab/gpu-fp8.md.
TEST(Fp8OnFibers, TilesOfManyRows) {
  struct Choice {
    int64_t m, n, k;
    int p, q;
  };
  for (const Choice& c : {Choice{512, 2112, 7168, 128, 64},
                          {512, 4096, 7168, 128, 128},
                          {512, 7168, 2048, 128, 128},
                          {512, 8192, 8192, 256, 128},
                          {512, 24576, 1536, 256, 128},
                          {2048, 2112, 7168, 128, 144},
                          {2048, 4096, 7168, 256, 128},
                          {2048, 7168, 2048, 128, 128},
                          {2048, 8192, 8192, 256, 128},
                          {2048, 16384, 1024, 256, 128},
                          {2048, 24576, 1536, 256, 128},
                          {4096, 2112, 7168, 128, 192},
                          {4096, 7168, 2048, 256, 128},
                          {4096, 24576, 1536, 256, 128}}) {
    Fp8Gemm g;
    g.m = c.m, g.n = c.n, g.k = c.k;
    const auto cut = cuda::fp8::choose_cut(g, {.processors = 132});
    EXPECT_TRUE(cut.p == c.p && cut.q == c.q) << c.m << " " << c.n << " " << c.k << ": " << cut.p << " x " << cut.q;
  }
}

/// x / scale in two instructions next to the numbers between two codes, which have five bits: the division's codes.
void check_near_quotients(uint32_t mantissa) {
  const float scale = bits_to_f32(0x3f800000u | mantissa);
  if (mantissa != 0 && !cuda::fp8::has_near_quotients(scale)) return;
  const cuda::fp8::Inverse by = cuda::fp8::inverse_of(scale);
  for (int between = 16; between < 32; ++between)
    for (uint32_t near = 0; near < 9; ++near) {
      const float x = bits_to_f32(f32_to_bits(float(between) / 16 * scale) - 4 + near);
      ASSERT_EQ(f32_to_e4m3(x / scale), f32_to_e4m3(cuda::fp8::quotient(x, by))) << mantissa << ", " << between;
      ASSERT_EQ(f32_to_e4m3(-x / scale), f32_to_e4m3(cuda::fp8::quotient(-x, by))) << mantissa << ", " << between;
    }
  for (const float zero : {0.0f, -0.0f})
    ASSERT_EQ(f32_to_e4m3(zero), f32_to_e4m3(cuda::fp8::quotient(zero, by))) << mantissa;
}

TEST(Fp8OnFibers, QuotientsOfTwoInstructions) {
  for (uint32_t top = 0; top < 8; ++top)
    for (uint32_t i = 0; i < 512; ++i)
      for (const uint32_t mantissa : {top << 20 | i, top << 20 | (0xfffffu - i), top << 20 | (i * 2039u & 0xfffffu)}) {
        check_near_quotients(mantissa);
        if (HasFatalFailure()) return;
      }
}

TEST(Fp8OnFibers, Dequantize) { check_dequantize(); }

TEST(Fp8OnFibers, Gemm) {
  check_gemm({1, 1, 1, 1, Fp8Element::kF32, false, false}, 1, true, 0);
  check_gemm({3, 70, 300, 128, Fp8Element::kF32, false, true}, 2, true, 0);
  check_gemm({67, 5, 129, 1, Fp8Element::kBf16, true, false}, 3, true, 0);
  check_gemm({65, 66, 64, 7, Fp8Element::kF16, true, true}, 4, true, 0);
  for (int64_t m = 1; m <= 8; ++m)  // few rows
    check_gemm({m, 70 * m, 16 * (1 + 13 * m), int64_t{1} << m, Fp8Element(m % 3), m % 2 == 0, true}, 10 + uint64_t(m),
               true, 0);
}

}  // namespace
}  // namespace lowbit
