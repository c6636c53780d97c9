#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: an RMS norm, then E4M3 codes in blocks of 128 columns, four
// columns a lane.
//
// Shapes:   a warp takes a row; where rows are few, all warps of a thread block share one. Thread blocks stay.
// Memory:   a lane copies its columns to shared memory, and makes codes of no others. Columns that have become codes
//           leave their place to the next row's.
// Limits:   memory where rows are many; else the chain read x - sum of squares - codes.

#include <cstring>

#include "kernels/cuda/fp8/quantize_halves.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace lowbit::cuda::fp8 {

constexpr int kMostNormedWarps = 16;  // of a thread block
constexpr int kNormedBlocks = 4;      // of columns that a warp has at once
static_assert(kNormSums == kFp8Block);

/// Bytes of shared memory: parts of a sum, the norm's weights, and rows as they are.
inline int64_t normed_bytes(int64_t columns, int64_t rows) { return kNormSums / 32 * 4 + (4 + 2 * rows) * columns; }

__device__ __forceinline__ void copy_to_shared_8(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  std::memcpy(to, from, 8);
#endif
}
__device__ __forceinline__ uint32_t largest_of_warp(uint32_t most) {
#if defined(__CUDA_ARCH__)
  return __reduce_max_sync(0xffffffffu, most);
#else
  for (int across = 16; across > 0; across /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, across, 32));
  return most;
#endif
}

template <Fp8Element E>
__device__ __forceinline__ float4 four_halves(const uint16_t* from) {
  const uint2 w = *reinterpret_cast<const uint2*>(from);
  return {low_half<E>(w.x), high_half<E>(w.x), low_half<E>(w.y), high_half<E>(w.y)};
}

__device__ __forceinline__ uint32_t four_codes(const float4& v, const Divisor& by) {
  return codes_of(quotient(v.x, by), quotient(v.y, by)) | codes_of(quotient(v.z, by), quotient(v.w, by)) << 16;
}
/// Codes of a block of which the warp's lanes have four columns each, and its scale.
__device__ __forceinline__ uint32_t block_codes(const float4& v, bool power_of_two, float* scale) {
  const uint32_t most = max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
  *scale = scale_of(__uint_as_float(largest_of_warp(most)), power_of_two);
  if (*scale > 0x1p-80f && *scale < 0x1p80f) return four_codes(v, {*scale, cuda::quotient(1.0f, *scale), true});
  return fp8_has_codes(*scale) ? four_codes(v, divisor_of(*scale)) : 0u;
}

/// kTogether: the warps of a thread block have a row together, and blocks of columns in turn.
template <Fp8Element E, bool kTogether>
__global__ void __launch_bounds__(32 * kMostNormedWarps, 2)
    quantize_normed_halves(const __grid_constant__ Fp8Quant q, int warps) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  const int columns = static_cast<int>(q.columns), thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  auto* const quarters = reinterpret_cast<float*>(bytes);
  auto* const weights = quarters + kNormSums / 32;
  auto* const own = reinterpret_cast<uint16_t*>(weights + columns) + (kTogether ? 0 : warp * columns);
  const int first = kTogether ? warp * kNormSums : 0, step = kTogether ? warps * kNormSums : kNormSums;
  const int of_lane = 4 * (thread % 32);
  const int64_t rows_apart = int64_t{gridDim.x} * (kTogether ? 1 : warps);
  int64_t row = blockIdx.x + (kTogether ? 0 : int64_t{gridDim.x} * warp);
  const auto fetch = [&](int64_t from, int column) {
    if (from < q.rows && column < columns)
      copy_to_shared_8(own + column, static_cast<const uint16_t*>(q.x) + from * q.ldx + column);
  };
  let_successor_start();
  wait_for_predecessor();
  for (int block = first; block < columns; block += step) fetch(row, block + of_lane);
  for (int i = 4 * thread; i < columns; i += 4 * 32 * warps) copy_to_shared_16(weights + i, q.norm_weight + i);
  wait_for_all_copies();
  __syncthreads();
  for (; row < q.rows; row += rows_apart) {
    wait_for_all_copies();
    float by;
    if constexpr (kTogether) {
      by = block_inverse_rms(columns, q.norm_eps, 32 * warps, quarters, [&](int i) { return load_one<E>(own, i); });
    } else {
      by = warp_inverse_rms(columns, q.norm_eps, [&](int i) { return four_halves<E>(own + i); });
    }
#pragma unroll 1
    for (int base = first; base < columns; base += kNormedBlocks * step) {
      float4 v[kNormedBlocks];
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i) {
        const int column = base + i * step + of_lane;
        v[i] = {0, 0, 0, 0};
        if (column < columns)
          v[i] = normed(four_halves<E>(own + column), by, *reinterpret_cast<const float4*>(weights + column));
      }
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i) {
        const int column = base + i * step + of_lane;
        float scale;
        const uint32_t codes = block_codes(v[i], q.power_of_two, &scale);
        if (column >= columns) continue;
        *reinterpret_cast<uint32_t*>(q.codes + row * q.ldcodes + column) = codes;
        if (of_lane != 0) continue;
        *scale_at(q, row, column / kFp8Block) = scale;
        clear_padding(q, q.rows, row, column / kFp8Block);
      }
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i) fetch(row + rows_apart, base + i * step + of_lane);
    }
  }
}

}  // namespace lowbit::cuda::fp8
