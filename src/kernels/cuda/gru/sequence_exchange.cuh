#pragma once
// How warps of the sequence kernels pass codes of h to each other: through a cluster or through global memory.

#include "kernels/cuda/gru/sequence_warp.cuh"

namespace lowbit::cuda::gru {

/// Where the warp puts its codes together.
template <class C>
__device__ __forceinline__ uint32_t stage_of(const Warp<C>& w, int half) {
  const int place = (C::kBulk ? half * w.warps : 0) + w.warp;
  return w.base + uint32_t(w.at.stage + place * C::L * C::kOwn * kGroup);
}
/// Counts the bytes of h that come into a half of it.
template <class C>
__device__ __forceinline__ uint32_t barrier_of(const Warp<C>& w, int half) {
  return w.base + uint32_t(w.at.barriers + 8 * half);
}
template <class C>
__device__ __forceinline__ uint32_t expected_bytes(const Warp<C>& w) {
  return uint32_t(w.c.groups * kGroup * C::kSent * C::L);
}
template <class C>
__device__ __forceinline__ void init_barriers(const Warp<C>& w) {
  if (threadIdx.x != 0) return;
  barrier_init(barrier_of(w, 0), 1);
  barrier_init(barrier_of(w, 1), 1);
  barriers_visible();
  expect_bytes(barrier_of(w, 0), expected_bytes(w));
  expect_bytes(barrier_of(w, 1), expected_bytes(w));
}
/// The h that a step reads; and what comes into its place the next time is announced.
template <class C>
__device__ __forceinline__ void wait_for_h(const Warp<C>& w, int step) {
  wait_for_bytes(barrier_of(w, step % 2), uint32_t((step - 1) / 2 % 2));
  if (threadIdx.x == 0) expect_bytes(barrier_of(w, step % 2), expected_bytes(w));
}

/// The warp's codes to all blocks of the cluster.
template <class C>
__device__ __forceinline__ void send_h(const Warp<C>& w, int half) {
  w.put(stage_of(w, half) + w.first_place(), C::kOwn * kGroup);
  const uint32_t counts = barrier_of(w, half);
  if constexpr (C::kBulk) {
    writes_visible_to_copies();
    __syncwarp();
    if (w.lane < w.a.blocks)
      send_bulk(shared_of(w.base + w.h_offset(half, 0, w.group, w.part * C::kOwn), uint32_t(w.lane)), stage_of(w, half),
                C::kOwn * kGroup, shared_of(counts, uint32_t(w.lane)));
  } else {
    __syncwarp();
    const int item = w.lane % C::kItems;
    const uint32_t to = w.sent_to + (half == 0 ? 0 : w.half_bytes);
    const uint4 v =
        load_shared_16(stage_of(w, half) + uint32_t((item / C::kOwnSent * C::kOwn + item % C::kOwnSent) * kGroup));
    for (int rank = w.lane / C::kItems; w.lane < C::kSenders && rank < w.a.blocks; rank += C::kSenders / C::kItems)
      send_16(shared_of(to, uint32_t(rank)), v, shared_of(counts, uint32_t(rank)));
  }
  __syncwarp();
}

/// Through global memory; all threads of all blocks of the tile. `epoch` counts steps over all tiles, `next`: the half
/// of h.
template <class C>
__device__ __forceinline__ void exchange_h(const Warp<C>& w, int slot, uint32_t epoch, int next) {
  uint8_t* const half = w.a.call.shared_h + (int64_t(slot) * 2 + epoch % 2) * w.half_bytes;
  if (w.works) {
    w.put(stage_of(w, 0) + w.first_place(), C::kOwn * kGroup);
    __syncwarp();
    for (int item = w.lane; item < C::L * C::kOwn; item += 32)
      *reinterpret_cast<uint4*>(half + (item / C::kOwn != 0 ? w.plane_bytes : 0) + w.group * C::kGroupBytes +
                                w.row_of(item % C::kOwn) * kGroup) =
          load_shared_16(stage_of(w, 0) + uint32_t(item * kGroup));
  }
  if constexpr (C::S == 1) {
    __syncthreads();
    uint32_t* const flags = w.a.call.flags + int64_t(slot) * w.a.blocks;
    // The barrier has made the block's stores happen before this release, which is cumulative.
    if (threadIdx.x == 0) store_release(flags + w.block, epoch + 1);
    for (int i = int(threadIdx.x); i < w.a.blocks; i += int(blockDim.x))
      while (int32_t(load_acquire(flags + i) - (epoch + 1)) < 0) {
      }
    __syncthreads();
    for (uint32_t i = 16 * threadIdx.x; i < w.half_bytes; i += 16 * blockDim.x)
      copy_async_16(w.base + w.h_offset(0, 0, 0, 0) + i, half + i);
  } else {
    // A flag per warp; each warp waits for the groups whose codes it copies, into the half that nobody reads.
    __syncwarp();
    uint32_t* const flags = w.a.call.flags + int64_t(slot) * w.c.groups * C::S;
    if (w.works && w.lane == 0) store_release(flags + w.group * C::S + w.part, epoch + 1);
    const int each = (w.c.groups + w.warps - 1) / w.warps, first = w.warp * each, count = min(each, w.c.groups - first);
    for (int i = w.lane; i < count * C::S; i += 32)
      while (int32_t(load_acquire(flags + first * C::S + i) - (epoch + 1)) < 0) {
      }
    __syncwarp();
    const uint32_t to = w.base + w.h_offset(next, 0, first, 0);
    for (int i = w.lane; i < count * C::kTile; i += 32)
      copy_async_16(to + uint32_t(i * kGroup), half + first * C::kGroupBytes + i * kGroup);
  }
  wait_for_all_copies();
  __syncthreads();
}

}  // namespace lowbit::cuda::gru
