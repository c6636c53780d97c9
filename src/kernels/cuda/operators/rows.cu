// Rows of activations as int8 or as bits. The CPU's bits: maxima have no order, sums go as
// docs/numerics.md#bits-times-bits says.

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda_operators_api.h"

namespace lowbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostGrid = (int64_t{1} << 31) - 1;

/// s of a row whose largest magnitude has these bits, as its element holds it. Not finite: NaN.
__device__ __forceinline__ float row_scale(uint32_t largest, Element element) {
  if (largest >= 0x7f800000u) return bits_to_f32(0x7fc00000u);
  const float s = __fdiv_rn(127.0f, fmaxf(bits_to_f32(largest), 1e-5f));
  return element == Element::kBf16 ? bf16_to_f32(f32_to_bf16(s)) : s;
}

__global__ void __launch_bounds__(kThreads) quantize_row(const __grid_constant__ Int8Rows a) {
  __shared__ uint32_t shared_largest;
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const auto* const x = static_cast<const uint8_t*>(a.x) + row * a.ldx * element_bytes(a.x_element);
  const bool aligned = reinterpret_cast<uintptr_t>(x) % (4 * static_cast<unsigned>(element_bytes(a.x_element))) == 0;
  if (thread == 0) shared_largest = 0;
  __syncthreads();
  uint32_t largest = 0;
  for (int64_t i = 4 * thread; i < a.k; i += 4 * kThreads) {
    float v[4];
    load_four(x, a.x_element, i, a.k, aligned, v);
#pragma unroll
    for (int j = 0; j < 4; ++j) largest = max(largest, magnitude_bits(v[j]));
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (thread % 32 == 0) atomicMax(&shared_largest, largest);
  __syncthreads();
  const float s = row_scale(shared_largest, a.scale_element);
  if (thread == 0) store_element(a.scales, a.scale_element, row, s);
  const bool finite = shared_largest < 0x7f800000u;
  int8_t* const codes = a.codes + row * a.ldcodes;
  const bool whole_words = reinterpret_cast<uintptr_t>(codes) % 4 == 0;
  for (int64_t i = 4 * thread; i < a.k; i += 4 * kThreads) {
    float v[4];
    load_four(x, a.x_element, i, a.k, aligned, v);
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int code = finite ? min(127, max(-128, __float2int_rn(__fmul_rn(v[j], s)))) : 0;
      word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * j);
    }
    if (whole_words && i + 4 <= a.k) {
      *reinterpret_cast<uint32_t*>(codes + i) = word;
    } else {
      for (int j = 0; j < 4 && i + j < a.k; ++j) codes[i + j] = static_cast<int8_t>(word >> (8 * j));
    }
  }
}

/// One warp per row; lane i adds |x| of columns i, i + 32, ...; the 32 sums are added by halves.
__global__ void __launch_bounds__(kThreads) binarize_row(const __grid_constant__ BitRows a) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= a.m) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint8_t* const bits = a.bits + row * a.bits_stride;
  const int64_t bytes = (a.k + 7) / 8;
  float sum = 0;
  for (int64_t first = 0; first < a.k; first += 32) {
    const bool there = first + lane < a.k;
    const float v = there ? load_element(a.x, a.x_element, row * a.ldx + first + lane) : 0.0f;
    const uint32_t word = __ballot_sync(0xffffffffu, there && !(v < 0));
    if (there) sum = __fadd_rn(sum, fabsf(v));
    if (lane < 4 && first / 8 + lane < bytes) bits[first / 8 + lane] = static_cast<uint8_t>(word >> (8 * lane));
  }
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, half));
  if (lane == 0) a.scales[row] = a.k > 0 ? __fdiv_rn(sum, static_cast<float>(a.k)) : 0.0f;
}

}  // namespace

Status int8_rows(const Int8Rows& call, void* stream) {
  if (call.m == 0) return {};
  if (call.m > kMostGrid) return check_cuda(cudaErrorInvalidValue, "quantize_activations_int8");
  return check_cuda(launch(quantize_row, dim3(static_cast<unsigned>(call.m)), dim3(kThreads), 0,
                           static_cast<cudaStream_t>(stream), false, call),
                    "quantize_activations_int8");
}

Status bit_rows(const BitRows& call, void* stream) {
  if (call.m == 0) return {};
  const int64_t blocks = (32 * call.m + kThreads - 1) / kThreads;
  return check_cuda(launch(binarize_row, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
                           static_cast<cudaStream_t>(stream), false, call),
                    "binarize_activations");
}

}  // namespace lowbit::cuda
