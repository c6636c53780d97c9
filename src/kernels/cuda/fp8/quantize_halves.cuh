#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes to E4M3 codes in blocks of 128 columns. What bounds it are
// instructions, not only memory: magnitudes, signs and the largest of a block stay two to a word.

#include "kernels/cuda/fp8/parts.cuh"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda::fp8 {

// 8 lanes take a block, each twice 8 elements: 16 bytes.
constexpr int kBlockLanes = 8, kChunks = 2;
constexpr int kWarpBlocks = 32 / kBlockLanes, kHalvesThreads = 128;
static_assert(kBlockLanes * kChunks * kPerLane == kFp8Block);

/// The larger of each of two unsigned halves.
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __vmaxu2(a, b);
#else
  return max(a >> 16, b >> 16) << 16 | max(a & 0xffff, b & 0xffff);
#endif
}
/// The sign bits of four halves in two words, each at the top of its code.
__device__ __forceinline__ uint32_t sign_bits(uint32_t first, uint32_t second) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, 0x7531) & 0x80808080u;
#else
  const auto two = [](uint32_t w) { return (w >> 8 & 0x80u) | (w >> 16 & 0x8000u); };
  return two(first) | two(second) << 16;
#endif
}

template <Fp8Element E>
__device__ __forceinline__ float low_half(uint32_t w) {
  return E == Fp8Element::kF16 ? f16_value(static_cast<uint16_t>(w)) : __uint_as_float(w << 16);
}
template <Fp8Element E>
__device__ __forceinline__ float high_half(uint32_t w) {
  return E == Fp8Element::kF16 ? f16_value(static_cast<uint16_t>(w >> 16)) : __uint_as_float(w & 0xffff0000u);
}

/// x / scale with the reciprocal in two parts. For all magnitudes of 11 bits up to 448 scales it gives the division's
/// codes.
struct Reciprocal {
  float scale, high, low;
  bool plain;  // nothing that matters underflows
};
__device__ __forceinline__ Reciprocal reciprocal_of(float scale) {
#if defined(__CUDA_ARCH__)
  float high;  // how it is rounded does not matter: `low` makes up for it
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(high) : "f"(scale));
#else
  const float high = 1.0f / scale;
#endif
  return {scale, high, __fmul_rn(__fmaf_rn(-scale, high, 1.0f), high), scale > 0x1p-80f && scale < 0x1p80f};
}
/// fp8_scale() of what is neither tiny nor huge. One correction of a product is the division by 448, of all mantissas.
__device__ __forceinline__ float plain_scale(float largest, bool power_of_two) {
  constexpr float kInverse = 1.0f / kE4m3Max;
  const float q = __fmul_rn(largest, kInverse);
  const float scale = __fmaf_rn(__fmaf_rn(-q, kE4m3Max, largest), kInverse, q);
  return power_of_two ? __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0x7f800000u) : scale;
}
__device__ __forceinline__ float scale_of(float largest, bool power_of_two) {
  return largest > 0x1p-70f && largest < 0x1p70f ? plain_scale(largest, power_of_two)
                                                 : fp8_scale(largest, power_of_two);
}
template <bool kPlain>
__device__ __forceinline__ float quotient_of_half(float x, const Reciprocal& r) {
  if constexpr (!kPlain) return __fdiv_rn(x, r.scale);
  return __fmaf_rn(x, r.high, __fmul_rn(x, r.low));
}

/// Codes of four halves.
template <Fp8Element E, bool kPlain>
__device__ __forceinline__ uint32_t four_codes(uint32_t first, uint32_t second, const Reciprocal& r) {
  const uint32_t a = first & 0x7fff7fffu, b = second & 0x7fff7fffu;
  const uint32_t low =
      codes_of(quotient_of_half<kPlain>(low_half<E>(a), r), quotient_of_half<kPlain>(high_half<E>(a), r));
  const uint32_t high =
      codes_of(quotient_of_half<kPlain>(low_half<E>(b), r), quotient_of_half<kPlain>(high_half<E>(b), r));
  return low | high << 16 | sign_bits(first, second);
}

/// Eight halves from element i on, of which the first n are there; the others are 0.
__device__ __forceinline__ void load_halves(const void* x, int64_t i, int n, uint32_t (&w)[4]) {
  const uint16_t* const from = static_cast<const uint16_t*>(x) + i;
  if (n == kPerLane) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    w[0] = all.x, w[1] = all.y, w[2] = all.z, w[3] = all.w;
    return;
  }
  for (int j = 0; j < 4; ++j)
    w[j] = (2 * j < n ? from[2 * j] : 0u) | (2 * j + 1 < n ? uint32_t{from[2 * j + 1]} << 16 : 0u);
}

/// A lane's part of a block. kWhole: all blocks have 128 columns, and codes begin at multiples of 16 bytes; a lane's
/// elements are side by side then, else those of a warp's load.
template <Fp8Element E, bool kWhole>
struct HalvesOfBlock {
  uint32_t row, block, w[kChunks][4];
  int n[kChunks];

  __device__ __forceinline__ int64_t column(int chunk) const {
    const uint32_t lane = threadIdx.x % kBlockLanes;
    return int64_t{block} * kFp8Block + (kWhole ? lane * kChunks + chunk : chunk * kBlockLanes + lane) * kPerLane;
  }
  /// Block number `at` of all rows, of which each has `blocks`.
  __device__ __forceinline__ void load(const Fp8Quant& q, uint32_t at, uint32_t blocks) {
    row = at / blocks, block = at % blocks;
    const bool there = row < q.rows;  // others of the warp may be
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t i = column(c), left = kWhole ? kPerLane : q.columns - i;
      n[c] = there ? static_cast<int>(min(max(left, int64_t{0}), int64_t{kPerLane})) : 0;
      load_halves(q.x, row * q.ldx + i, n[c], w[c]);
    }
  }
  __device__ __forceinline__ void quantize(const Fp8Quant& q) const {
    uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) most = larger_halves(most, w[c][j] & 0x7fff7fffu);
#pragma unroll
    for (int across = kBlockLanes / 2; across > 0; across /= 2)
      most = larger_halves(most, __shfl_xor_sync(0xffffffffu, most, across, 32));
    const uint32_t largest = larger_halves(most, most >> 16);
    const float scale = scale_of(low_half<E>(largest & 0xffffu), q.power_of_two);
    if (row >= q.rows) return;
    const bool has_codes = fp8_has_codes(scale);
    const Reciprocal by = reciprocal_of(has_codes ? scale : 1.0f);
    uint32_t codes[2 * kChunks] = {};
    if (has_codes) {
#pragma unroll
      for (int i = 0; i < 2 * kChunks; ++i) {
        const uint32_t first_two = w[i / 2][i % 2 * 2], last_two = w[i / 2][i % 2 * 2 + 1];
        codes[i] =
            by.plain ? four_codes<E, true>(first_two, last_two, by) : four_codes<E, false>(first_two, last_two, by);
      }
    }
    uint8_t* const to = q.codes + row * q.ldcodes;
    if constexpr (kWhole) {
      *reinterpret_cast<uint4*>(to + column(0)) = uint4{codes[0], codes[1], codes[2], codes[3]};
    } else {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (n[c] == kPerLane)
          *reinterpret_cast<uint2*>(to + column(c)) = uint2{codes[2 * c], codes[2 * c + 1]};
        else
          for (int j = 0; j < n[c]; ++j)
            to[column(c) + j] = static_cast<uint8_t>(codes[2 * c + j / 4] >> (8 * (j % 4)));
      }
    }
    if (threadIdx.x % kBlockLanes != 0) return;
    *scale_at(q, row, block) = scale;
    clear_padding(q, q.rows, row, block);
  }
};

/// Blocks: of a lane, all of which it loads before it computes.
template <Fp8Element E, bool kWhole, int Blocks>
__global__ void __launch_bounds__(kHalvesThreads) quantize_halves(const __grid_constant__ Fp8Quant q) {
  const auto blocks = static_cast<uint32_t>((q.columns + kFp8Block - 1) / kFp8Block);
  const uint32_t warp = (blockIdx.x * kHalvesThreads + threadIdx.x) / 32;
  const uint32_t first = warp * (kWarpBlocks * Blocks) + threadIdx.x % 32 / kBlockLanes;
  HalvesOfBlock<E, kWhole> of[Blocks];
  let_successor_start();
  wait_for_predecessor();
#pragma unroll
  for (int i = 0; i < Blocks; ++i) of[i].load(q, first + i * kWarpBlocks, blocks);
#pragma unroll
  for (int i = 0; i < Blocks; ++i) of[i].quantize(q);
}

}  // namespace lowbit::cuda::fp8
