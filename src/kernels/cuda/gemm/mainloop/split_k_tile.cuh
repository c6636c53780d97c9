#pragma once
// A block's part of K in gemm_split_k.cuh: its sizes, what a warpgroup asks for, and the loops that multiply.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"
#include "kernels/cuda/gemm/schedule/split_k.h"

namespace lowbit::cuda {

template <GemmActivation X_, int Bits_, int Packs_, SplitKSums Sums_>
struct SplitKTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kPacks = Packs_, kBm = kSplitKTokens;
  static constexpr SplitKSums kSums = Sums_;
  static constexpr int kWarpgroups = 2, kDepth = kWarpgroups / kPacks;
  static constexpr int kCopyBlocks = kSplitKCopyBlocks;
  using Order = FragmentOrder<kBits, kXBytes<X>>;
  using Sum = typename SumOf<X>::Type;
  static constexpr int kLaneSums = kBm / 2, kPairs = kLaneSums / 2, kXBlock = kBm * 128;
  static constexpr bool kScales = kSums != SplitKSums::kAdded;  // in shared memory
};

/// A lane's warpgroup in the block, and that one's blocks of K.
template <class T>
struct SplitKLane {
  const uint8_t* shared;
  uint32_t base;  // the same place
  int lane128, pack, depth;
  int first, count, slot;  // blocks of K: the first one, how many, slot of the first one in shared memory
  uint32_t half_zero;
  int weights_at, scales_at, barriers_at, depth_blocks;
  __device__ SplitKLane(const GemmArgs& p, const uint8_t* shared_, uint32_t base_, int rank)
      : shared(shared_),
        base(base_),
        lane128(threadIdx.x & 127),
        pack(warpgroup_of_thread() % T::kPacks),
        depth(warpgroup_of_thread() / T::kPacks),
        half_zero(p.half_zero),
        weights_at(p.weights_at),
        scales_at(p.scales_at),
        barriers_at(p.barriers_at),
        depth_blocks(p.depth_blocks) {
    slot = depth * p.depth_blocks;
    first = rank * p.split_blocks + slot;
    count = max(0, min(p.depth_blocks, min(p.k_blocks, (rank + 1) * p.split_blocks) - first));
  }
  __device__ uint32_t barrier(int i) const { return base + barriers_at + 8 * ((slot + i) / T::kCopyBlocks); }
  __device__ void wait(int i) const { barrier_wait(barrier(i), 0); }
  __device__ void decode_block(int i, uint32_t (*a)[8]) const {
    const uint8_t* at = shared + weights_at + ((slot + i) * T::kPacks + pack) * T::Order::kPackBytes;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t w[T::Order::kLaneWords];
      load_words<typename T::Order>(at, b, lane128, w);
      decode<T::X, T::kBits>(w, half_zero, a[b]);
    }
  }
  __device__ void multiply(int i, const uint32_t (*a)[8], bool add, typename T::Sum* d) const {
    const uint64_t x = x_descriptor(base + (slot + i) * T::kXBlock);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepsPerPack; ++step)
      wgmma(Wgmma<T::kBm, T::X>{}, d, a[step / 2] + 4 * (step % 2), x + 2 * step, step > 0 || add);
    wgmma_commit();
  }
  /// Scales of this lane's rows for group `group` of the block.
  __device__ float2 scales(int group) const {
    const uint8_t* at = shared + scales_at + (group * T::kPacks + pack) * 256;
    return reinterpret_cast<const float2*>(at)[lane128 / 32 * 8 + lane128 % 32 / 4];
  }
};

template <class T>
__device__ __forceinline__ void split_k_ask_weights(const GemmArgs& p, const SplitKLane<T>& at, int pack0) {
  constexpr int kPackBytes = T::Order::kPackBytes;
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    const int n = min(T::kCopyBlocks, at.count - i);
    const uint32_t to = at.base + at.weights_at + (at.slot + i) * T::kPacks * kPackBytes;
    barrier_expect(at.barrier(i), n * T::kPacks * kPackBytes);
    const uint8_t* const from = p.tiles + pack_index(pack0, at.first + i, p.k_blocks) * kPackBytes;
    if constexpr (T::kPacks == kPanelPacks) {
      bulk_load(to, from, n * T::kPacks * kPackBytes, at.barrier(i));
    } else {
      for (int j = 0; j < n; ++j)
        bulk_load(to + j * kPackBytes, from + j * kPanelPacks * kPackBytes, kPackBytes, at.barrier(i));
    }
  }
}

template <class T>
__device__ __forceinline__ void split_k_ask_scales(const GemmArgs& p, const SplitKLane<T>& at, int pack0) {
  const int per = p.group_blocks;
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    const int n = min(T::kCopyBlocks, at.count - i);
    const int from = (i + per - 1) / per, to = (i + n + per - 1) / per;  // groups that begin in these blocks
    barrier_expect(at.barrier(i), p.groups > 1 ? (to - from) * T::kPacks * 256 : 0);
    for (int g = from; p.groups > 1 && g < to; ++g)
      bulk_load(at.base + at.scales_at + (at.slot / per + g) * T::kPacks * 256,
                p.scales + int64_t(at.first / per + g) * p.n_padded + pack0 * kPackRows, T::kPacks * 256,
                at.barrier(i));
  }
}

/// Behind the previous kernel. Blocks of a copy behind the last one are zeros, or not used.
template <class T>
__device__ __forceinline__ void split_k_ask_x(const CUtensorMap* map, const SplitKLane<T>& at) {
  prefetch_map(map);
  wait_for_previous_kernel();
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    barrier_expect(at.barrier(i), T::kCopyBlocks * T::kXBlock);
    slab_load(at.base + (at.slot + i) * T::kXBlock, map, 0, 0, at.first + i, at.barrier(i));
  }
}

/// One warp of a warpgroup for each kind of copy.
template <class T>
__device__ __forceinline__ void split_k_ask(const GemmArgs& p, const CUtensorMap* map, const SplitKLane<T>& at,
                                            int tile) {
  const int role = threadIdx.x / 32 & 3;
  if (at.pack != 0) return;
  if (role == 0) {
    if (elected()) split_k_ask_weights(p, at, tile * T::kPacks);
  } else if (role == 1 && T::kScales) {
    if (elected()) split_k_ask_scales(p, at, tile * T::kPacks);
  } else if (role == 2) {
    if (elected()) split_k_ask_x(map, at);
  }
  __syncwarp();
}

/// Sums of up to eight groups, each in registers of its own. Behind the fourth there is a branch, and nothing in
/// flight.
template <class T>
__device__ __forceinline__ void split_k_sum_held(const SplitKLane<T>& at, int (*sums)[T::kLaneSums]) {
  uint32_t a0[2][8], a1[2][8];
  auto four = [&](int first) {
    at.wait(first);
    at.decode_block(first, a0);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      at.multiply(first + i, a0, false, sums[first + i]);
      at.decode_block(first + i + 1, a1);
      at.multiply(first + i + 1, a1, false, sums[first + i + 1]);
      wgmma_wait<1>();
      if (i == 0) at.decode_block(first + 2, a0);
      if (i == 0) wgmma_wait<0>();
    }
    wgmma_wait<0>();
  };
  if (at.count > 0) four(0);
  if (at.count > 4) four(4);
}

template <class T>
__device__ __forceinline__ void split_k_sum_added(const SplitKLane<T>& at, typename T::Sum* d) {
  if (at.count == 0) return;
  uint32_t a0[2][8], a1[2][8];
  at.wait(0);
  at.decode_block(0, a0);
  int i = 0;
  for (; i + 1 < at.count; i += 2) {
    at.multiply(i, a0, i > 0, d);
    at.wait(i + 1);
    wgmma_wait<1>();
    at.decode_block(i + 1, a1);
    at.multiply(i + 1, a1, true, d);
    wgmma_wait<1>();
    const int next = min(i + 2, at.count - 1);  // behind the last one: decoded for nothing
    at.wait(next);
    at.decode_block(next, a0);
  }
  if (i < at.count) at.multiply(i, a0, i > 0, d);
  wgmma_wait<0>();
}

}  // namespace lowbit::cuda
