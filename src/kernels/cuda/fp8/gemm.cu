// The product of FP8 codes in blocks: which kernel takes it, and the one for scales of b per row, in the order of
// docs/numerics.md: a sum goes over k ascending in one thread. It gives the CPU's bits on every GPU.

#include <string>

#include "kernels/cuda/fp8/gemm_mma.h"
#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/parts.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_fp8_api.h"
#include "kernels/cuda_matmul_api.h"

namespace lowbit::cuda {
namespace {

using namespace fp8;  // NOLINT

constexpr int kTile = 64, kDepth = 16;  // rows of a and of b, columns at a time
constexpr int kOwn = 4;                 // a thread's rows and columns of the output: 16 apart

/// Columns [k, k + kDepth) of kTile rows, as floats; 0 outside.
__device__ __forceinline__ void load_tile(const uint8_t* codes, int64_t ld, int64_t row0, int64_t rows, int64_t k,
                                          int64_t end, float (&to)[kDepth][kTile + 1]) {
  for (int at = static_cast<int>(threadIdx.x); at < kTile * kDepth; at += kThreads) {
    const int r = at / kDepth, c = at % kDepth;
    to[c][r] = row0 + r < rows && k + c < end ? e4m3_to_f32(codes[(row0 + r) * ld + k + c]) : 0.0f;
  }
}

__device__ __forceinline__ void store(const DeviceGemm& g, int64_t i, int64_t j, float v) {
  const int64_t at = i * g.ldc + j;
  if (g.bias != nullptr) v = __fadd_rn(v, g.bias[j]);
  if (g.element == Fp8Element::kF32) {
    static_cast<float*>(g.c)[at] = v;
  } else {
    static_cast<uint16_t*>(g.c)[at] = g.element == Fp8Element::kF16 ? f16_nearest(v) : f32_to_bf16(v);
  }
}

__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ DeviceGemm g) {
  __shared__ float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  const int64_t tiles = (g.n + kTile - 1) / kTile;
  const int64_t row0 = blockIdx.x / tiles * kTile, col0 = blockIdx.x % tiles * kTile;
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  float acc[kOwn][kOwn] = {};
  for (int64_t first = 0, block = 0; first < g.k; first += kFp8Block, ++block) {
    const int64_t end = min(first + kFp8Block, g.k);
    float s[kOwn][kOwn] = {};
    for (int64_t k = first; k < end; k += kDepth) {
      __syncthreads();
      load_tile(g.a, g.lda, row0, g.m, k, end, a);
      load_tile(g.b, g.ldb, col0, g.n, k, end, b);
      __syncthreads();
      for (int c = 0; c < kDepth; ++c)
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
#pragma unroll
          for (int j = 0; j < kOwn; ++j) s[i][j] = __fmaf_rn(a[c][y + 16 * i], b[c][x + 16 * j], s[i][j]);
    }
    for (int i = 0; i < kOwn; ++i) {
      const int64_t row = row0 + y + 16 * i;
      if (row >= g.m) continue;
      const float a_scale = g.a_scales[g.a_scales_by_column ? block * g.lda_scales + row : row * g.lda_scales + block];
      for (int j = 0; j < kOwn; ++j) {
        const int64_t column = col0 + x + 16 * j;
        if (column >= g.n) continue;
        const float b_scale = g.b_scales[column / g.b_rows * g.ldb_scales + block];
        acc[i][j] = __fmaf_rn(__fmul_rn(s[i][j], a_scale), b_scale, acc[i][j]);
      }
    }
  }
  for (int i = 0; i < kOwn; ++i)
    for (int j = 0; j < kOwn; ++j)
      if (row0 + y + 16 * i < g.m && col0 + x + 16 * j < g.n) store(g, row0 + y + 16 * i, col0 + x + 16 * j, acc[i][j]);
}

/// Few rows of a, whose sums go over k in order, too. Behind column k would be what nobody has written.
ExactProducts exact_product_of(const DeviceGemm& g, void* stream) {
  ExactProducts call;
  call.count = 1;
  call.type = ValueType::kE4m3;
  call.rounding = RowRounding::kE4m3;
  call.m = g.k % 16 == 0 ? g.m : 0;
  call.k = g.k, call.group = kFp8Block;
  call.codes = g.a, call.ldcodes = g.lda, call.code_scales = g.a_scales;
  call.scale_row = g.a_scales_by_column ? 1 : g.lda_scales, call.scale_block = g.a_scales_by_column ? g.lda_scales : 1;
  call.parts[0] = {g.b, g.ldb, g.n, g.b_scales, g.b_rows, g.ldb_scales, 1, g.bias, g.c, g.ldc};
  call.y_element = g.element == Fp8Element::kF32   ? Element::kF32
                   : g.element == Fp8Element::kF16 ? Element::kF16
                                                   : Element::kBf16;
  call.new_weights = g.new_weights;
  call.stream = stream;
  return call;
}

}  // namespace

Status gemm_fp8(const Fp8Gemm& operands, void* stream, const Fp8GemmUse& use) {
  if (operands.m == 0 || operands.n == 0) return {};
  const DeviceGemm g{operands, use.bias, use.new_weights, use.exact};
  cudaError_t error = cudaSuccess;
  const ExactProducts few = exact_product_of(g, stream);
  const bool takes_few = takes_exact_products(few);
  if (takes_few && g.b_rows == 1) return exact_products(few);
  if (gemm_fp8_wgmma(g, {}, static_cast<cudaStream_t>(stream), &error)) return check_cuda(error, "fp8 product");
  if (takes_few) return exact_products(few);
  if (gemm_fp8_mma(g, {}, static_cast<cudaStream_t>(stream), &error)) return check_cuda(error, "fp8 product");
  const int64_t tiles = ((g.m + kTile - 1) / kTile) * ((g.n + kTile - 1) / kTile);
  constexpr int64_t kMostTiles = (int64_t{1} << 31) - 1;
  if (tiles > kMostTiles)
    return fail(ErrorCode::kUnsupported, "fp8 product", std::to_string(tiles) + " tiles", "at most 2^31 - 1");
  return check_cuda(launch(multiply, dim3(static_cast<unsigned>(tiles)), dim3(kThreads), 0,
                           static_cast<cudaStream_t>(stream), false, g),
                    "fp8 product");
}

Status grouped_gemm_fp8(const Fp8Gemm& operands, const Fp8Groups& groups, void* stream) {
  if (operands.m == 0 || operands.n == 0) return {};
  cudaError_t error = cudaSuccess;
  if (gemm_fp8_wgmma({operands}, groups, static_cast<cudaStream_t>(stream), &error))
    return check_cuda(error, "fp8 product of groups");
  if (gemm_fp8_mma({operands}, groups, static_cast<cudaStream_t>(stream), &error))
    return check_cuda(error, "fp8 product of groups");
  return fail(ErrorCode::kUnsupported, "fp8 product of groups",
              "scales of b for " + std::to_string(operands.b_rows) + " rows", "for multiples of 64 rows, such as 128");
}

Status gemm_fp8_by_mma(const Fp8Gemm& operands, const Fp8Groups& groups, Fp8Cores cores, void* stream) {
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return check_cuda(e, "fp8 product");
  if ((cores == Fp8Cores::kE4m3 && device.arch < kFirstWithE4m3) || operands.b_rows % kMmaScaleRows != 0)
    return fail(ErrorCode::kUnsupported, "fp8 product by mma.sync",
                "compute capability " + std::to_string(device.arch) + ", scales of b for " +
                    std::to_string(operands.b_rows) + " rows",
                "89 or higher for E4M3, multiples of 64 rows");
  const auto run = cores == Fp8Cores::kE4m3 ? &fp8::launch_mma_e4m3 : &fp8::launch_mma_halves;
  return check_cuda(run({operands}, groups, device, static_cast<cudaStream_t>(stream)), "fp8 product");
}

}  // namespace lowbit::cuda
