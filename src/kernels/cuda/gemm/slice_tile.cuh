#pragma once
// A slice of gemm_slice.cuh: its sizes, what a warpgroup asks for, and the loops that multiply.

#include "kernels/cuda/gemm/fragments.cuh"
#include "kernels/cuda/gemm/ptx.cuh"
#include "kernels/cuda/gemm/slice.h"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace lowbit::cuda {

template <GemmActivation X_, int Bits_, int Units_, SliceSums Sums_>
struct SliceTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kUnits = Units_, kBm = kSliceRows;
  static constexpr SliceSums kSums = Sums_;
  static constexpr int kWarpgroups = 2, kDepth = kWarpgroups / kUnits;
  static constexpr int kCopyBlocks = kSliceCopyBlocks;
  using Order = FragmentOrder<kBits, kXBytes<X>>;
  using Sum = typename SumOf<X>::Type;
  static constexpr int kLaneSums = kBm / 2, kPairs = kLaneSums / 2, kXBlock = kBm * 128;
  static constexpr bool kScales = kSums != SliceSums::kAdded;  // in shared memory
};

/// A lane's warpgroup in the block, and that one's blocks of K.
template <class T>
struct SliceLane {
  const uint8_t* shared;
  uint32_t base;  // the same place
  int lane128, unit, depth;
  int first, count, slot;  // blocks of K: the first one, how many, place of the first one in shared memory
  uint32_t half_zero;
  int weights_at, scales_at, barriers_at, depth_blocks;
  __device__ SliceLane(const GemmArgs& p, const uint8_t* shared_, uint32_t base_, int rank)
      : shared(shared_),
        base(base_),
        lane128(threadIdx.x & 127),
        unit(warpgroup_of_thread() % T::kUnits),
        depth(warpgroup_of_thread() / T::kUnits),
        half_zero(p.half_zero),
        weights_at(p.weights_at),
        scales_at(p.scales_at),
        barriers_at(p.barriers_at),
        depth_blocks(p.depth_blocks) {
    slot = depth * p.depth_blocks;
    first = rank * p.split_blocks + slot;
    count = max(0, min(p.depth_blocks, min(p.unit_blocks, (rank + 1) * p.split_blocks) - first));
  }
  __device__ uint32_t barrier(int i) const { return base + barriers_at + 8 * ((slot + i) / T::kCopyBlocks); }
  __device__ void wait(int i) const { barrier_wait(barrier(i), 0); }
  __device__ void decode_block(int i, uint32_t (*a)[8]) const {
    const uint8_t* at = shared + weights_at + ((slot + i) * T::kUnits + unit) * T::Order::kUnitBytes;
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
    for (int step = 0; step < kStepsPerUnit; ++step)
      wgmma(Wgmma<T::kBm, T::X>{}, d, a[step / 2] + 4 * (step % 2), x + 2 * step, step > 0 || add);
    wgmma_commit();
  }
  /// Scales of this lane's rows for group `group` of the block.
  __device__ float2 scales(int group) const {
    const uint8_t* at = shared + scales_at + (group * T::kUnits + unit) * 256;
    return reinterpret_cast<const float2*>(at)[lane128 / 32 * 8 + lane128 % 32 / 4];
  }
};

template <class T>
__device__ __forceinline__ void slice_ask_weights(const GemmArgs& p, const SliceLane<T>& at, int unit0) {
  constexpr int kUnitBytes = T::Order::kUnitBytes;
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    const int n = min(T::kCopyBlocks, at.count - i);
    const uint32_t to = at.base + at.weights_at + (at.slot + i) * T::kUnits * kUnitBytes;
    barrier_expect(at.barrier(i), n * T::kUnits * kUnitBytes);
    const uint8_t* const from = p.tiles + unit_index(unit0, at.first + i, p.unit_blocks) * kUnitBytes;
    if constexpr (T::kUnits == kPanelUnits) {
      bulk_load(to, from, n * T::kUnits * kUnitBytes, at.barrier(i));
    } else {
      for (int j = 0; j < n; ++j)
        bulk_load(to + j * kUnitBytes, from + j * kPanelUnits * kUnitBytes, kUnitBytes, at.barrier(i));
    }
  }
}

template <class T>
__device__ __forceinline__ void slice_ask_scales(const GemmArgs& p, const SliceLane<T>& at, int unit0) {
  const int per = p.group_blocks;
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    const int n = min(T::kCopyBlocks, at.count - i);
    const int from = (i + per - 1) / per, to = (i + n + per - 1) / per;  // groups that begin in these blocks
    barrier_expect(at.barrier(i), p.groups > 1 ? (to - from) * T::kUnits * 256 : 0);
    for (int g = from; p.groups > 1 && g < to; ++g)
      bulk_load(at.base + at.scales_at + (at.slot / per + g) * T::kUnits * 256,
                p.scales + int64_t(at.first / per + g) * p.n_padded + unit0 * kUnitRows, T::kUnits * 256,
                at.barrier(i));
  }
}

/// Behind the previous kernel. Blocks of a copy behind the last one are zeros, or not used.
template <class T>
__device__ __forceinline__ void slice_ask_x(const CUtensorMap* map, const SliceLane<T>& at) {
  prefetch_map(map);
  wait_for_previous_kernel();
  for (int i = 0; i < at.count; i += T::kCopyBlocks) {
    barrier_expect(at.barrier(i), T::kCopyBlocks * T::kXBlock);
    slab_load(at.base + (at.slot + i) * T::kXBlock, map, 0, 0, at.first + i, at.barrier(i));
  }
}

/// One warp of a warpgroup for each kind of copy.
template <class T>
__device__ __forceinline__ void slice_ask(const GemmArgs& p, const CUtensorMap* map, const SliceLane<T>& at, int tile) {
  const int role = threadIdx.x / 32 & 3;
  if (at.unit != 0) return;
  if (role == 0) {
    if (elected()) slice_ask_weights(p, at, tile * T::kUnits);
  } else if (role == 1 && T::kScales) {
    if (elected()) slice_ask_scales(p, at, tile * T::kUnits);
  } else if (role == 2) {
    if (elected()) slice_ask_x(map, at);
  }
  __syncwarp();
}

/// Sums of up to eight groups, each in registers of its own. Behind the fourth there is a branch, and nothing in flight.
template <class T>
__device__ __forceinline__ void slice_sum_held(const SliceLane<T>& at, int (*sums)[T::kLaneSums]) {
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
__device__ __forceinline__ void slice_sum_added(const SliceLane<T>& at, typename T::Sum* d) {
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
