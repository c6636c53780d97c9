#pragma once
// The pipeline for every architecture from sm_80 on: mma.sync m16n8, x through a pipeline of stages in shared memory
// (cp.async, swizzled by 16-byte chunks), weights straight from global memory to registers, since each lane's words are
// consecutive and no two warps of a block share any. A block: 8 warps, 128 rows of weights by 64 tokens. Takes what the
// sm_90a pipeline does not: unaligned x, offsets, groups of 32.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/schedule/mma_kernel.h"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"

namespace lowbit::cuda {

inline constexpr int kMmaStages = 3, kMmaStageBytes = kMmaBm * 128;

__device__ __forceinline__ uint32_t x_chunk(uint32_t stage, int row, int chunk) {
  return stage + row * 128 + ((chunk ^ (row & 7)) << 4);
}

/// Rows [m0, m0 + 64) of x, 128 bytes from byte `from` on, into a stage; zeros outside of x.
template <int XBytes>
__device__ __forceinline__ void load_x(const GemmArgs& p, uint8_t* shared, uint32_t base, uint32_t stage, int m0,
                                       int64_t from) {
  const int64_t row_bytes = int64_t(p.k) * XBytes;
  for (int i = threadIdx.x; i < kMmaBm * 8; i += kMmaThreads) {
    const int row = i / 8, chunk = i % 8;
    const int64_t at = from + 16 * chunk, left = m0 + row < p.m ? row_bytes - at : 0;
    const int valid = int(left < 0 ? 0 : left > 16 ? 16 : left);
    const uint8_t* x = static_cast<const uint8_t*>(p.x) + (valid > 0 ? (m0 + row) * p.x_row_bytes + at : 0);
    const uint32_t to = x_chunk(stage, row, chunk);
    if (p.x_aligned) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(x), "r"(valid) : "memory");
    } else {
      uint8_t* out = shared + (to - base);
      for (int b = 0; b < 16; b += XBytes) {
        if constexpr (XBytes == 1)
          out[b] = b < valid ? x[b] : uint8_t(0);
        else
          *reinterpret_cast<uint16_t*>(out + b) = b < valid ? *reinterpret_cast<const uint16_t*>(x + b) : uint16_t(0);
      }
    }
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// scale_accumulate_one() of all sums of a lane whose first token is m; what decides stands outside of the loops.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void scale_accumulate_any(const GemmArgs& p, const typename SumOf<X>::Type* d, float2 scale,
                                                     int m, int n, int g, float* acc) {
  const auto row = [&](int i) { return min(m + 8 * (i / 4) + (i & 1), p.m - 1); };
  if (kIntegers<X> && p.x_scale_group != 0) {
#pragma unroll
    for (int i = 0; i < kMmaBm / 2; ++i) {
      const float v = __fmul_rn(any_sum<X, Bits>(d[i]), x_group_scale(p, row(i), g));
      acc[i] = __fmaf_rn(v, i & 2 ? scale.y : scale.x, acc[i]);
    }
  } else {
    scale_accumulate_sums<X, Bits, kMmaBm, false, false>(d, scale, nullptr, acc);
  }
  if (p.offsets == nullptr) return;
  const float* const offsets = p.offsets + int64_t(g) * p.n_padded + n;
  const float low = __ldg(offsets), high = __ldg(offsets + 1);
#pragma unroll
  for (int i = 0; i < kMmaBm / 2; ++i) {
    const float sum = __ldg(p.x_sums + int64_t(row(i)) * p.groups + g);
    const float xs = kIntegers<X> ? x_group_scale(p, row(i), g) : 1.0f;
    acc[i] = __fmaf_rn(__fmul_rn(sum, xs), i & 2 ? high : low, acc[i]);
  }
}

/// A group's sums to `acc`: the common case by itself.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void scale_accumulate_group(const GemmArgs& p, const typename SumOf<X>::Type* d, int m,
                                                       int n, int g, float* acc) {
  const float2 scale = __ldg(reinterpret_cast<const float2*>(p.scales + int64_t(g) * p.n_padded + n));
  if (p.x_scale_group == 0 && p.offsets == nullptr && p.group <= kNarrowGroup)
    scale_accumulate_sums<X, Bits, kMmaBm, true, false>(d, scale, nullptr, acc);
  else
    scale_accumulate_any<X, Bits>(p, d, scale, m, n, g, acc);
}

/// Weights `a` of one step of K by all tokens; `chunk`: the step's 16 bytes of x.
template <GemmActivation X>
__device__ __forceinline__ void multiply_step(uint32_t stage, int chunk, const uint32_t* a,
                                              typename SumOf<X>::Type* d) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kMmaBm / 8; j += 2) {
    uint32_t b[4];
    load_matrices(b, x_chunk(stage, 8 * (j + lane / 16) + lane % 8, chunk + lane / 8 % 2));
    mma<X>(d + 4 * j, a, b[0], b[1]);
    mma<X>(d + 4 * j + 4, a, b[2], b[3]);
  }
}

/// Bits: one group, whose sums are still there.
template <GemmActivation X>
__device__ __forceinline__ void scale_bits(const GemmArgs& p, int n, int m0, typename SumOf<X>::Type* d, float* acc) {
  add_bit_terms<kMmaBm>(p, n, m0, d);
  const float2 scale = __ldg(reinterpret_cast<const float2*>(p.scales + n));
#pragma unroll
  for (int i = 0; i < kMmaBm / 2; ++i) acc[i] = __fmaf_rn(__int2float_rn(d[i]), i & 2 ? scale.y : scale.x, 0.0f);
}

template <GemmActivation X, int Bits>
__global__ void __launch_bounds__(kMmaThreads) gemm_mma(const __grid_constant__ GemmArgs p) {
  using Order = FragmentOrder<Bits, kXBytes<X>>;
  using Sum = typename SumOf<X>::Type;
  constexpr int kStepK = Order::kPackK / kStepsPerPack;
  __shared__ __align__(128) uint8_t shared[kMmaStages * kMmaStageBytes];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, lane128 = threadIdx.x & 127;
  const TileAt where = tile_at(p, p.n_tiles, blockIdx.x);
  const int m0 = where.m * kMmaBm, pack = min(where.n * kMmaPacks + warp / 4, p.packs - 1);
  const bool present = where.n * kMmaPacks + warp / 4 < p.packs;
  const uint8_t* tiles =
      p.tiles + pack_index(pack, 0, p.k_blocks) * Order::kPackBytes;  // blocks of K: two packs further
  const int n = 64 * pack + 16 * (warp % 4) + lane / 4 * 2;

  Sum d[kMmaBm / 2];
  float acc[kMmaBm / 2];
#pragma unroll
  for (int i = 0; i < kMmaBm / 2; ++i) d[i] = 0, acc[i] = 0.0f;
  if (p.k_blocks > 0) {  // k = 0: y is the bias
    for (int i = 0; i < kMmaStages - 1; ++i)
      load_x<kXBytes<X>>(p, shared, base, base + i * kMmaStageBytes, m0, 128 * i);
  }

  uint32_t w[Order::kLaneWords], w_ahead[Order::kLaneWords];
  if (p.k_blocks > 0) load_words<Order>(tiles, 0, lane128, w_ahead);
  const int group_steps = (p.group + kStepK - 1) / kStepK, steps = (p.k + kStepK - 1) / kStepK;
  int g = 0, left = group_steps, done = 0;
  for (int block = 0; block < p.k_blocks; ++block) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kMmaStages - 2) : "memory");
    __syncthreads();
    const int ahead = block + kMmaStages - 1;
    load_x<kXBytes<X>>(p, shared, base, base + ahead % kMmaStages * kMmaStageBytes, m0, 128 * int64_t(ahead));
    const uint32_t stage = base + block % kMmaStages * kMmaStageBytes;
#pragma unroll 1
    for (int batch = 0; batch < 2; ++batch) {
#pragma unroll
      for (int i = 0; i < Order::kLaneWords; ++i) w[i] = w_ahead[i];
      const int next = 2 * block + batch + 1;
      if (next < 2 * p.k_blocks)
        load_words<Order>(tiles + int64_t(next / 2) * (2 * Order::kPackBytes), next % 2, lane128, w_ahead);
      uint32_t a[8];
      decode<X, Bits>(w, p.half_zero, a);
#pragma unroll
      for (int step = 0; step < kStepsPerBatch; ++step) {
        multiply_step<X>(stage, 4 * batch + 2 * step, a + 4 * step, d);
        ++done;
        if (X != GemmActivation::kBit && (--left == 0 || done == steps)) {
          if (g < p.groups) {
            scale_accumulate_group<X, Bits>(p, d, m0 + 2 * (lane & 3), n, g, acc);
            ++g;
          }
          left = group_steps;
#pragma unroll
          for (int i = 0; i < kMmaBm / 2; ++i) d[i] = 0;
        }
      }
    }
  }
  if (!present) return;
  if constexpr (X == GemmActivation::kBit) scale_bits<X>(p, n, m0, d, acc);
  const int t = lane & 3;
  finish<X, kMmaBm>(
      p, n, m0, bias_pair(p, n), [&](int i) { return acc[i]; },
      [&](int j, int c) { return kIntegers<X> ? x_row_scale(p, m0 + 8 * j + 2 * t + c) : 1.0f; });
}

}  // namespace lowbit::cuda
