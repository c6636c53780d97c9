#pragma once
// quantized_mm<BITS> of seed 000: f32 activations times packed 1-, 2-, 4- or 8-bit weights. One template for all
// widths; BITS is a compile-time constant everywhere.

#include "format/formats.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quantized_mm.h"

namespace lowbit::cuda {

/// The seed's traits are the format list's codecs: the range of one bit is {-1, +1}, as its decode says.
template <int BITS>
struct QuantizedTraits;
template <>
struct QuantizedTraits<1> : Binary {};
template <>
struct QuantizedTraits<2> : Int2 {};
template <>
struct QuantizedTraits<4> : Int4 {};
template <>
struct QuantizedTraits<8> : Int8 {};

/// Everything that multiplies the sum of group g of row n.
__device__ __forceinline__ float scale_of(const QuantizedConfig& p, int64_t n, int64_t g) {
  if (p.scales == nullptr) return p.scale;
  if (p.row_ends == nullptr) return __fmul_rn(p.scale, p.scales[n * p.groups + g]);
  int low = 0, high = p.ranges - 1;  // the first range that ends behind n
  while (low < high) {
    const int middle = (low + high) / 2;
    if (p.row_ends[middle] > n) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return __fmul_rn(p.scale, p.scales[low]);
}

/// Any alignment, group and shape: one warp per output.
template <int BITS>
__global__ void quantized_mm_any(const void* input, const uint8_t* weight, void* output,
                                 const __grid_constant__ QuantizedConfig p) {
  using Traits = QuantizedTraits<BITS>;
  constexpr int kPerByte = 8 / BITS;
  const int lane = threadIdx.x & 31;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (n >= p.n) return;
  const uint8_t* const row = weight + n * p.weight_stride;
  for (int64_t m = blockIdx.y; m < p.m; m += gridDim.y) {
    float y = 0;
    for (int64_t g = 0; g < p.groups; ++g) {
      const int64_t begin = g * p.group, end = min(p.k, begin + p.group);
      float sum = 0;
      for (int64_t byte = begin / kPerByte + lane; byte * kPerByte < end; byte += 32) {
        const unsigned packed = row[byte];
#pragma unroll
        for (int e = 0; e < kPerByte; ++e) {
          const int64_t k = byte * kPerByte + e;
          if (k < begin || k >= end) continue;
          const auto value = Traits::Codec::value(packed >> (BITS * e) & ((1u << BITS) - 1u));
          sum = __fmaf_rn(load_element(input, p.input_element, m * p.input_stride + k), static_cast<float>(value), sum);
        }
      }
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
      y = __fmaf_rn(sum, scale_of(p, n, g), y);
    }
    if (lane == 0)
      store_element(output, p.output_element, m * p.output_stride + n, y + (p.bias == nullptr ? 0.0f : p.bias[n]));
  }
}

}  // namespace lowbit::cuda
