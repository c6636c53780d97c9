#pragma once
// The sm_90a pipeline for 2 to 16 tokens: a block's whole part of K lies in shared memory, nothing is refilled. A block
// is 64 * Packs rows of weights; two of them fit a multiprocessor, so that the next launch's weights and scales arrive
// while this one works. Behind the previous kernel only x is left to copy, four blocks of K at a time. kDepth
// warpgroups share that part, the blocks of a cluster the rest of K.
//
// Shapes:   k a multiple of 128 bytes of x, tokens at multiples of 16 bytes; integers: groups of 128 or one scale per
//           row; f16, bf16: groups of multiples of 64 columns, or one.
// Numerics: integers with groups: a warpgroup keeps the exact sum of each of its groups in registers; accumulated sums
//           go from warpgroup to warpgroup and from block to block, in the order of docs/numerics.md#matmul. One scale:
//           exact, any order. f16, bf16: one fma with the scale per 64 columns, parts added in ascending order.
// Limits:   the path from the end of the previous kernel to the last output: x, the products, the exchange.

#include "kernels/cuda/gemm/mainloop/split_k_tile.cuh"
#include "kernels/cuda/gemm/primitives/cluster_reduction.cuh"

namespace lowbit::cuda {

/// The parts of a tile: every warpgroup that shares its K sends each block of the cluster the sums that this one
/// finishes.
template <class T>
struct SplitKParts {
  uint32_t base;
  int at, barrier_at, share;
  __device__ SplitKParts(const GemmArgs& p, uint32_t base_)
      : base(base_),
        at(p.parts_at),
        barrier_at(p.barriers_at + 8 * kSplitKBarriers),
        share(max(1, T::kPairs / p.split)) {}
  __device__ uint32_t barrier() const { return base + barrier_at; }
  __device__ int offset(int part, int pair, int pack, int lane128) const {
    return at + (((part * share + (pair & (share - 1))) * T::kPacks + pack) * 128 + lane128) * 8;
  }
  __device__ uint32_t bytes(const GemmArgs& p, int rank) const {
    return rank * share < T::kPairs ? uint32_t(p.split * T::kDepth * share * T::kPacks * 1024) : 0;
  }
  template <class V>
  __device__ void send(const SplitKLane<T>& lane, int part, const V* v) const {
    send_pairs<T::kPairs>(base, barrier_at, share, v,
                          [&](int pair) { return offset(part, pair, lane.pack, lane.lane128); });
  }
};

/// Where an output pair lies, and what it takes besides the sums.
struct SplitKOutput {
  int m, n;
  float2 bias, scales;
  float xs;
  __device__ SplitKOutput(const GemmArgs& p, int n0, int pair, int pack, int lane128)
      : m(8 * (pair / 2) + 2 * (lane128 & 3) + pair % 2), n(n0 + 64 * pack + lane128 / 32 * 16 + lane128 % 32 / 4 * 2) {
    bias = bias_pair(p, n);
    scales = __ldg(reinterpret_cast<const float2*>(p.scales + n));
    xs = x_row_scale(p, m);
  }
};

template <class T>
__device__ __forceinline__ void split_k_reduce(const GemmArgs& p, const uint8_t* shared, const SplitKParts<T>& parts,
                                               int n0, int rank, SplitKOutput out) {
  const int all = rank * parts.share < T::kPairs ? parts.share * T::kPacks * 128 : 0;
  for (int i = threadIdx.x; i < all; i += 128 * T::kWarpgroups) {
    const int lane128 = i & 127, pack = i / 128 % T::kPacks, pair = rank * parts.share + i / 128 / T::kPacks;
    if (i != int(threadIdx.x)) out = SplitKOutput(p, n0, pair, pack, lane128);
    if (i == int(threadIdx.x)) barrier_wait(parts.barrier(), 0);
    int sum[2] = {0, 0};
#pragma unroll 4
    for (int part = 0; part < p.split * T::kDepth; ++part) {
      const uint2 v = *reinterpret_cast<const uint2*>(shared + parts.offset(part, pair, pack, lane128));
      sum[0] += int(v.x), sum[1] += int(v.y);
    }
    const float2 acc = {__fmaf_rn(any_sum<T::X, T::kBits>(sum[0]), out.scales.x, 0.0f),
                        __fmaf_rn(any_sum<T::X, T::kBits>(sum[1]), out.scales.y, 0.0f)};
    finish_pair<T::X>(p, out.m, out.n, acc, out.bias, out.xs);
  }
}

/// Groups: the accumulated sums come from the warpgroup before, and go to the next one.
template <class T>
__device__ __forceinline__ void split_k_chain(const GemmArgs& p, uint8_t* shared, uint32_t base,
                                              const SplitKLane<T>& at, int n, int rank, const int (*sums)[T::kLaneSums],
                                              float2 bias, const float (*xs)[2]) {
  constexpr int kRowBytes = 16;
  float acc[T::kLaneSums];
  // [half][lane] of 16 bytes: one slot for the warpgroup before, one for the block before.
  auto offset = [&](int from_block, int half) {
    return p.parts_at + ((from_block * 2 + half) * 128 + at.lane128) * kRowBytes;
  };
  const int barrier_at = p.barriers_at + 8 * kSplitKBarriers;
  if (rank == 0 && at.depth == 0) {
#pragma unroll
    for (int i = 0; i < T::kLaneSums; ++i) acc[i] = 0.0f;
  } else {
    if (at.depth == 0)
      barrier_wait(base + barrier_at, 0);
    else
      named_barrier(1 + at.depth, 256);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 v = *reinterpret_cast<const float4*>(shared + offset(at.depth == 0, h));
      acc[4 * h] = v.x, acc[4 * h + 1] = v.y, acc[4 * h + 2] = v.z, acc[4 * h + 3] = v.w;
    }
  }
#pragma unroll
  for (int g = 0; g < kSplitKHeld; ++g) {
    if (g >= at.count) break;
    const float2 s = at.scales(at.slot + g);
#pragma unroll
    for (int i = 0; i < T::kLaneSums; ++i)
      acc[i] = __fmaf_rn(narrow_sum<T::X, T::kBits>(sums[g][i]), i & 2 ? s.y : s.x, acc[i]);
  }
  if (at.depth + 1 < T::kDepth) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float4*>(shared + offset(0, h)) = {acc[4 * h], acc[4 * h + 1], acc[4 * h + 2], acc[4 * h + 3]};
    named_arrive(2 + at.depth, 256);
  } else if (rank + 1 < p.split) {
    const uint32_t there = shared_of(base, rank + 1);
#pragma unroll
    for (int i = 0; i < T::kLaneSums; i += 2)
      send_pair(there + offset(1, i / 4) + 4 * (i % 4), __float_as_uint(acc[i]), __float_as_uint(acc[i + 1]),
                there + barrier_at);
  } else {
    finish<T::X, T::kBm>(
        p, n, 0, bias, [&](int i) { return acc[i]; }, [&](int j, int c) { return xs[j][c]; });
  }
}

template <class T>
__global__ void __launch_bounds__(128 * T::kWarpgroups, 2)
    gemm_split_k(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int rank = blockIdx.x % p.split, tile = blockIdx.x / p.split, n0 = tile * T::kPacks * kPackRows;
  const SplitKParts<T> parts(p, base);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSplitKBarriers; ++i) barrier_init(base + p.barriers_at + 8 * i, T::kScales ? 3 : 2);
    barrier_init(parts.barrier(), 1);
    if (T::kSums != SplitKSums::kHeld)
      barrier_expect(parts.barrier(), parts.bytes(p, rank));
    else if (rank > 0)
      barrier_expect(parts.barrier(), 128 * T::kLaneSums * 4);
    barrier_init_done();
  }
  let_next_kernel_start();
  if (p.split > 1) cluster_arrive();
  __syncthreads();
  const SplitKLane<T> at(p, shared, base, rank);
  if (tile >= p.n_tiles) {  // only there so that launches spread evenly over the multiprocessors
    if (p.split > 1) cluster_wait();
    wait_for_previous_kernel();
    return;
  }
  split_k_ask<T>(p, &map, at, tile);
  if (p.split > 1) cluster_wait();
  wait_for_previous_kernel();
  const int n = n0 + 64 * at.pack + at.lane128 / 32 * 16 + at.lane128 % 32 / 4 * 2;
  if constexpr (T::kSums == SplitKSums::kHeld) {
    const float2 bias = bias_pair(p, n);
    float xs[T::kBm / 8][2];
#pragma unroll
    for (int j = 0; j < T::kBm / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) xs[j][c] = x_row_scale(p, 8 * j + 2 * (threadIdx.x & 3) + c);
    int sums[kSplitKHeld][T::kLaneSums];
    split_k_sum_held<T>(at, sums);
    split_k_chain<T>(p, shared, base, at, n, rank, sums, bias, xs);
  } else {
    const int pair = rank * parts.share + int(threadIdx.x) / 128 / T::kPacks;
    const SplitKOutput out(p, n0, pair, at.pack, at.lane128);
    int d[T::kLaneSums];
#pragma unroll
    for (int i = 0; i < T::kLaneSums; ++i) d[i] = 0;
    split_k_sum_added<T>(at, d);
    parts.send(at, rank * T::kDepth + at.depth, d);
    split_k_reduce<T>(p, shared, parts, n0, rank, out);
  }
#endif
}

template <class T>
constexpr WgmmaKernel split_k_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&gemm_split_k<T>),
          name,
          128 * T::kWarpgroups,
          T::kBm,
          T::kPacks,
          int(T::kSums),
          0,
          0,
          T::kPairs,
          2};
}

}  // namespace lowbit::cuda
