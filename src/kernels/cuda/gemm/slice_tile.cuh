#pragma once
// A slice of gemm_slice.cuh: its sizes, what a warpgroup asks for, and the loops that multiply.

#include "kernels/cuda/gemm/fragments.cuh"
#include "kernels/cuda/gemm/mma.cuh"
#include "kernels/cuda/gemm/ptx.cuh"
#include "kernels/cuda/gemm/slice.h"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace lowbit::cuda {

template <GemmActivation X_, int Bits_, int Units_, SliceSums Sums_>
struct SliceTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kUnits = Units_, kBm = kSliceRows;
  static constexpr SliceSums kSums = Sums_;
  static constexpr int kWarpgroups = kSums == SliceSums::kScaled ? 4 : 2, kDepth = kWarpgroups / kUnits;
  static constexpr int kCopyBlocks = copy_blocks(kSums);
  static constexpr bool kTurns = kSums == SliceSums::kScaled;  // of copies of x, in few places
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
  __device__ int x_at(int i) const {
    return T::kXBlock *
           (T::kTurns ? depth * (kSliceXCopies * T::kCopyBlocks) + i % (kSliceXCopies * T::kCopyBlocks) : slot + i);
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

/// A copy of x: those blocks behind the last one are zeros, or not used. 16-bit x: copies of a warpgroup take turns in two
/// places, so that two blocks fit a multiprocessor.
template <class T>
__device__ __forceinline__ void slice_ask_x_copy(const CUtensorMap* map, const SliceLane<T>& at, int i) {
  barrier_expect(at.barrier(i), T::kCopyBlocks * T::kXBlock);
  slab_load(at.base + at.x_at(i), map, 0, 0, at.first + i, at.barrier(i));
}

/// Behind the previous kernel.
template <class T>
__device__ __forceinline__ void slice_ask_x(const CUtensorMap* map, const SliceLane<T>& at) {
  prefetch_map(map);
  wait_for_previous_kernel();
  const int count = T::kTurns ? min(at.count, kSliceXCopies * T::kCopyBlocks) : at.count;
  for (int i = 0; i < count; i += T::kCopyBlocks) slice_ask_x_copy(map, at, i);
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

/// 16-bit x: mma.sync, whose warps need not wait for one another; sixteen of them hide decoding and latency. One fma with the
/// scale per 64 columns.
template <class T>
__device__ __forceinline__ void slice_sum_scaled(const SliceLane<T>& at, const GemmArgs& p, const CUtensorMap* map,
                                                 float2 row_scales, float* acc) {
  static_assert(T::kBm == 16);
  constexpr int kWords = T::Order::kLaneWords, kWordBytes = 4 * kWords, kBlockBytes = T::kUnits * T::Order::kUnitBytes;
  static_assert(kWords <= 2);
  // ldmatrix: lane l gives row l % 8 + 8 (l / 16) and 16 bytes l / 8 % 2 of a step; rows of 128 bytes, swizzled.
  const int lane = threadIdx.x & 31, row = (lane & 7) | (lane >> 1 & 8), chunk = lane >> 3 & 1;
  uint32_t x[kStepsPerUnit];
#pragma unroll
  for (int step = 0; step < kStepsPerUnit; ++step)
    x[step] = at.base + at.x_at(0) + row * 128 + (((2 * step + chunk) ^ (row & 7)) << 4);
  uint32_t words =
      at.base + at.weights_at + (at.slot * T::kUnits + at.unit) * T::Order::kUnitBytes + at.lane128 * kWordBytes;
  const bool many = p.groups > 1;
  int left = p.group_blocks, group = many ? at.slot / p.group_blocks : 0;  // one scale: read, not used
  // Block `nth` of this copy.
  auto block = [&](int nth) {
    const float2 of_group = at.scales(group), s = many ? of_group : row_scales;
    const bool end = --left == 0 && many;  // no branch: the blocks of a copy are to overlap
    group += end, left = end ? p.group_blocks : left;
    float d[T::kLaneSums];
#pragma unroll
    for (int j = 0; j < T::kLaneSums; ++j) d[j] = 0.0f;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t w[2], a[8];
      const uint32_t from = words + nth * kBlockBytes + b * (kUnitLanes * kWordBytes);
      if constexpr (kWords == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from));
      else
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(from));
      decode<T::X, T::kBits>(w, at.half_zero, a);
#pragma unroll
      for (int step = 0; step < kStepsPerBatch; ++step) {
        uint32_t of_x[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(of_x[0]), "=r"(of_x[1]), "=r"(of_x[2]), "=r"(of_x[3])
                     : "r"(x[kStepsPerBatch * b + step] + nth * T::kXBlock));
        mma<T::X>(d, a + 4 * step, of_x[0], of_x[1]);
        mma<T::X>(d + 4, a + 4 * step, of_x[2], of_x[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < T::kLaneSums; ++j) acc[j] = __fmaf_rn(d[j], j & 2 ? s.y : s.x, acc[j]);
  };
  constexpr int kCopy = T::kCopyBlocks, kAhead = kSliceXCopies * kCopy;
  static_assert(kSliceXCopies == 2);
  int i = 0, turn = kCopy * T::kXBlock;
#pragma unroll 1
  for (; i + kCopy <= at.count; i += kCopy) {
    at.wait(i);
#pragma unroll
    for (int nth = 0; nth < kCopy; ++nth) block(nth);
    if (i + kAhead < at.count) {
      named_barrier(1 + at.depth, 128 * T::kUnits);  // all warps have read this copy of x: its place is free
      if (at.unit == 0 && (threadIdx.x / 32 & 3) == 2 && elected()) slice_ask_x_copy(map, at, i + kAhead);
      __syncwarp();
    }
    words += kCopy * kBlockBytes;
#pragma unroll
    for (int step = 0; step < kStepsPerUnit; ++step) x[step] += turn;
    turn = -turn;
  }
  if (i == at.count) return;
  at.wait(i);
  for (; i < at.count; ++i) {
    block(0);
    words += kBlockBytes;
#pragma unroll
    for (int step = 0; step < kStepsPerUnit; ++step) x[step] += T::kXBlock;
  }
}

/// Sums of the warpgroups of a block that share its K, in ascending order, to the first one. They lie where the lane that sends them
/// had its own words, which nobody else reads; with 2 bits those are too few, and all wait until x may be written over.
template <class T>
__device__ __forceinline__ void slice_add_depths(const SliceLane<T>& at, uint8_t* shared, float* acc) {
  constexpr bool kOwn = T::Order::kLaneWords == 2;
  auto place = [&](int depth, int pair) {
    if constexpr (kOwn) {  // of blocks 0 and 1 of the warpgroup: there are two at least
      const int block = (at.slot + (depth - at.depth) * at.depth_blocks + pair / 2) * T::kUnits + at.unit;
      return reinterpret_cast<float2*>(shared + at.weights_at + block * T::Order::kUnitBytes + pair % 2 * 1024) +
             at.lane128;
    } else {
      return reinterpret_cast<float2*>(shared) + (((depth - 1) * T::kUnits + at.unit) * 4 + pair) * 128 + at.lane128;
    }
  };
  if constexpr (!kOwn) __syncthreads();  // nobody reads x any more
  if (at.depth > 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) *place(at.depth, i) = {acc[2 * i], acc[2 * i + 1]};
  }
  __syncthreads();
  if (at.depth > 0) return;
#pragma unroll
  for (int depth = 1; depth < T::kDepth; ++depth)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = *place(depth, i);
      acc[2 * i] += v.x, acc[2 * i + 1] += v.y;
    }
}

}  // namespace lowbit::cuda
