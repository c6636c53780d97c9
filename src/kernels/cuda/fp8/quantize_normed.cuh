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
__device__ __forceinline__ float4 four_halves(const uint2& w) {
  return {low_half<E>(w.x), high_half<E>(w.x), low_half<E>(w.y), high_half<E>(w.y)};
}

/// A lane's columns of some blocks, which a warp has; their codes and scales. Branches between blocks would make them
/// wait for each other.
struct NormedBlocks {
  float4 v[kNormedBlocks];
  float scale[kNormedBlocks];
  uint32_t codes[kNormedBlocks];

  static __device__ __forceinline__ uint32_t codes_by(const float4& v, const Divisor& by) {
    return codes_of(quotient(v.x, by), quotient(v.y, by)) | codes_of(quotient(v.z, by), quotient(v.w, by)) << 16;
  }
  /// The first `count` blocks.
  __device__ __forceinline__ void quantize(int count, bool power_of_two) {
    bool plain = true;  // nothing that matters underflows
#pragma unroll
    for (int i = 0; i < kNormedBlocks; ++i) {
      const uint32_t most = largest_of_warp(max(max(magnitude(v[i].x), magnitude(v[i].y)),  //
                                                max(magnitude(v[i].z), magnitude(v[i].w))));
      scale[i] = __uint_as_float(i < count ? most : 0x3f800000u);
      plain = plain && scale[i] > 0x1p-60f && scale[i] < 0x1p60f;
    }
    if (!plain) return quantize_any(power_of_two);
#pragma unroll
    for (int i = 0; i < kNormedBlocks; ++i) {
      scale[i] = plain_scale(scale[i], power_of_two);
      codes[i] = codes_by(v[i], {scale[i], cuda::quotient(1.0f, scale[i]), true});
    }
  }
  /// One by one. `scale`: the largest magnitudes.
  __device__ __forceinline__ void quantize_any(bool power_of_two) {
#pragma unroll 1
    for (int i = 0; i < kNormedBlocks; ++i) {
      float4 own = v[0];
      float found = scale[0];
#pragma unroll
      for (int j = 1; j < kNormedBlocks; ++j)
        if (i == j) own = v[j], found = scale[j];
      found = fp8_scale(found, power_of_two);
      const uint32_t four = fp8_has_codes(found) ? codes_by(own, divisor_of(found)) : 0u;
#pragma unroll
      for (int j = 0; j < kNormedBlocks; ++j)
        if (i == j) codes[j] = four, scale[j] = found;
    }
  }
};

/// kTogether: the warps of a thread block have a row together, and blocks of columns in turn.
template <Fp8Element E, bool kTogether>
__global__ void __launch_bounds__(32 * kMostNormedWarps, 2)
    quantize_normed_halves(const __grid_constant__ Fp8Quant q, int warps) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  const int columns = static_cast<int>(q.columns), thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int lane = thread % 32, step = kTogether ? warps * kNormSums : kNormSums;
  const int first = (kTogether ? warp * kNormSums : 0) + 4 * lane;  // column of a lane
  auto* const quarters = reinterpret_cast<float*>(bytes);
  auto* const weights = quarters + kNormSums / 32;
  auto* const own = reinterpret_cast<uint16_t*>(weights + columns) + (kTogether ? 0 : warp * columns);
  const int64_t rows_apart = int64_t{gridDim.x} * (kTogether ? 1 : warps);
  int64_t row = blockIdx.x + (kTogether ? 0 : int64_t{gridDim.x} * warp);
  const auto* x = static_cast<const uint16_t*>(q.x) + row * q.ldx;
  let_successor_start();
  wait_for_predecessor();
  for (int column = first; row < q.rows && column < columns; column += step) copy_to_shared_8(own + column, x + column);
  for (int i = 4 * thread; i < columns; i += 4 * 32 * warps) copy_to_shared_16(weights + i, q.norm_weight + i);
  wait_for_all_copies();
  __syncthreads();
  for (; row < q.rows; row += rows_apart) {
    wait_for_all_copies();
    float by;
    if constexpr (kTogether) {
      by = block_inverse_rms(columns, q.norm_eps, 32 * warps, quarters, [&](int i) { return load_one<E>(own, i); });
    } else {
      by = warp_inverse_rms(columns, q.norm_eps,
                            [&](int i) { return four_halves<E>(*reinterpret_cast<const uint2*>(own + i)); });
    }
    x += rows_apart * q.ldx;
    const int next_columns = row + rows_apart < q.rows ? columns : 0;  // of the next row, if there is one
    uint8_t* const codes = q.codes + row * q.ldcodes;
    const int64_t scales_apart = q.scales_by_column ? q.ldscales : 1;
    float* scales = scale_at(q, row, first / kFp8Block) + lane * (step / kFp8Block) * scales_apart;
#pragma unroll 1
    for (int base = first; base - 4 * lane < columns; base += kNormedBlocks * step) {
      NormedBlocks of;
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i) {
        const int column = base + i * step;
        uint2 halves{0, 0};
        float4 weight{0, 0, 0, 0};
        if (column < columns) halves = *reinterpret_cast<const uint2*>(own + column);
        if (column < columns) weight = *reinterpret_cast<const float4*>(weights + column);
        of.v[i] = normed(four_halves<E>(halves), column < columns ? by : 0.0f, weight);
      }
      const int left = columns - (base - 4 * lane);
      of.quantize((left + step - 1) / step, q.power_of_two);
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i)
        if (const int column = base + i * step; column < columns)
          *reinterpret_cast<uint32_t*>(codes + column) = of.codes[i];
#pragma unroll
      for (int i = 0; i < kNormedBlocks; ++i)
        if (const int column = base + i * step; column < next_columns) copy_to_shared_8(own + column, x + column);
      float scale = of.scale[0];
#pragma unroll
      for (int i = 1; i < kNormedBlocks; ++i)
        if (lane == i) scale = of.scale[i];
      if (lane < kNormedBlocks && lane * step < left) *scales = scale;
      scales += kNormedBlocks * (step / kFp8Block) * scales_apart;
    }
    if (lane == 0)
      for (int block = first / kFp8Block; block * kFp8Block < columns; block += step / kFp8Block)
        clear_padding(q, q.rows, row, block);
  }
}

}  // namespace lowbit::cuda::fp8
