#pragma once
// A tile of the sm_90a pipeline (gemm_wgmma.cuh): its sizes, the pipeline of stages it is fed from, and the loops that
// multiply. Every loop keeps products in flight while it decodes; they differ in where sums are scaled.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"

namespace lowbit::cuda {

/// Where sums are scaled into f32: at the tile's end, at some ends of blocks of K (128 bytes of x), at each half block,
/// at each block whatever the group is (f16 and bf16, whose sums are not exact anyway).
enum class ScaleAt { kTile, kBlocks, kBatches, kEveryBlock };

/// Bm tokens by 64 * Packs * Warpgroups rows of weights per tile. Paired: two blocks on a multiprocessor, as small
/// tiles have.
template <GemmActivation X_, int Bits_, int Bm_, int Warpgroups_, int Packs_, ScaleAt ScaleAt_, bool Paired_ = false>
struct WgmmaTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kBm = Bm_, kWarpgroups = Warpgroups_, kPacks = Packs_;
  static constexpr ScaleAt kScaleAt = ScaleAt_;
  static constexpr bool kGrouped = kScaleAt != ScaleAt::kTile;
  using Order = FragmentOrder<kBits, kXBytes<X>>;
  using Sum = typename SumOf<X>::Type;
  static constexpr int kTilePacks = kWarpgroups * kPacks, kMathThreads = 128 * kWarpgroups,
                       kThreads = kMathThreads + 128;
  static constexpr int kXStage = kBm * 128, kWStage = kTilePacks * Order::kPackBytes;
  // scales in a block, at most
  static constexpr int kEnds = kScaleAt == ScaleAt::kTile ? 0 : kScaleAt == ScaleAt::kBatches ? 2 : 1;
  static constexpr bool kSumsAhead = kBm == 32 || kBm == 64;  // others: no registers for second sums and operands
  static constexpr bool kTakesTurns =
      X == GemmActivation::kInt8 && kScaleAt == ScaleAt::kBlocks && kBm == 128 && kWarpgroups == 2;
  static constexpr int kScaleRow = kTilePacks * kPackRows * 4;  // bytes of one group's scales
  static constexpr int kStage = (kXStage + kWStage + kEnds * kScaleRow + 1023) / 1024 * 1024;
  static constexpr bool kSmall = kBm * kPacks < 64 || Paired_;  // two blocks on a multiprocessor
  static constexpr int kMathRegisters = kWarpgroups == 1 ? (kSmall ? 208 : 240) : kSmall ? 104 : 232;
  // Outputs on their way to memory: for each pack a box of kBm rows of 64 elements, 128-byte swizzle.
  static constexpr int kOutBox = kBm * 128, kOut = kScaleAt == ScaleAt::kTile ? kTilePacks * kOutBox : 0;
  static constexpr int kBudget = kSmall ? 96 << 10 : kOut > 0 ? (225 << 10) - kOut : 192 << 10, kFit = kBudget / kStage;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kPipelineBytes = kStages * kStage;
  static constexpr int kSums = kBm / 2, kPairs = kSums / 2;  // of a lane and pack
  // Byte offsets in shared memory: outputs, barriers, scales of x (per warpgroup), parts of other blocks.
  static constexpr int kOutputs = kPipelineBytes, kBarriers = kOutputs + kOut, kXScales = kBarriers + 256,
                       kParts = kXScales + kWarpgroups * 128 * 4;
};

template <class T>
struct Pipeline {
  uint32_t base;  // shared address, 1024-byte aligned
  int stage = 0;
  uint32_t phase = 0;
  __device__ uint32_t x() const { return base + stage * T::kStage; }
  __device__ uint32_t full() const { return base + T::kBarriers + 16 * stage; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

struct BlockRange {
  int first, count;
};
__device__ __forceinline__ BlockRange k_range(const GemmArgs& p, int rank) {
  const int first = rank * p.split_blocks;
  return {first, min(p.split_blocks, p.k_blocks - first)};
}

/// Counts the steps at which sums may end; tells which group ends there, or -1.
template <class T>
struct GroupCounter {
  int per_group, left, group;
  __device__ GroupCounter(const GemmArgs& p, int first_block) {
    constexpr int kEndK = T::Order::kPackK / (T::kEnds == 2 ? 2 : 1);
    per_group = (p.group + kEndK - 1) / kEndK, left = per_group;
    group = first_block * (T::kEnds == 2 ? 2 : 1) / per_group;
  }
  __device__ int next(const GemmArgs& p, bool last) {
    const bool end = --left == 0, due = T::kScaleAt == ScaleAt::kEveryBlock || end || last;
    const int here = due && group < p.groups ? group : -1;
    if (end) left = per_group, ++group;
    return here;
  }
};
/// A multiplying lane's place and state.
template <class T>
struct Lane {
  using Sum = typename T::Sum;
  Pipeline<T> pipeline;
  const uint8_t* shared;  // the same place as pipeline.base
  int lane128, warpgroup;
  uint32_t half_zero;
  Sum d[T::kPacks][T::kSums];

  __device__ void decode_batch(int batch, uint32_t (*a)[8]) const {
    const uint8_t* packs =
        shared + pipeline.stage * T::kStage + T::kXStage + warpgroup * T::kPacks * T::Order::kPackBytes;
#pragma unroll
    for (int u = 0; u < T::kPacks; ++u) {
      uint32_t w[T::Order::kLaneWords];
      load_words<typename T::Order>(packs + u * T::Order::kPackBytes, batch, lane128, w);
      decode<T::X, T::kBits>(w, half_zero, a[u]);
    }
  }
  template <int Rows = T::kBm>  // of x
  __device__ void multiply(int batch, const uint32_t (*a)[8], bool add, Sum (*d)[T::kSums]) {
    const uint64_t x = x_descriptor(pipeline.x()) + 2 * kStepsPerBatch * batch;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepsPerBatch; ++step)
#pragma unroll
      for (int u = 0; u < T::kPacks; ++u)
        wgmma(Wgmma<Rows, T::X>{}, d[u], a[u] + 4 * step, x + 2 * step, step > 0 || add);
    wgmma_commit();
  }
  /// A whole block of K as one group of instructions.
  __device__ void multiply_block(const uint32_t (*a)[8], bool add, Sum* d) {
    const uint64_t x = x_descriptor(pipeline.x());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepsPerPack; ++step)
      wgmma(Wgmma<T::kBm, T::X>{}, d, a[step / kStepsPerBatch] + 4 * (step % kStepsPerBatch), x + 2 * step,
            step > 0 || add);
    wgmma_commit();
  }
  /// Scales of this lane's rows for the group that ends at `end` of the current block.
  __device__ float2 scales(int end) const {
    const uint8_t* at = shared + pipeline.stage * T::kStage + T::kXStage + T::kWStage + end * T::kScaleRow;
    return reinterpret_cast<const float2*>(at)[(warpgroup * kPackRows + lane128 / 32 * 16) / 2 + lane128 % 32 / 4];
  }
  __device__ void release(const Pipeline<T>& at) const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(at.empty());
  }
};

inline constexpr int kStagger = 8, kTurn = 4;  // named barriers; kTurn: one for each warpgroup

/// One tile's sums over the blocks of K, no scaling: two batches in flight, the next one is decoded meanwhile. Returns
/// the scales that came with the last block, if any do. Behind block `signal` the warpgroup lets the next one begin.
template <class T, int Rows = T::kBm>
__device__ __forceinline__ float2 sum_tile(Lane<T>& lane, int blocks, int signal = -1) {
  uint32_t a0[T::kPacks][8], a1[T::kPacks][8];
  barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
  lane.decode_batch(0, a0);
  Pipeline<T> previous = lane.pipeline;
  for (int i = 0; i < blocks; ++i) {
    lane.template multiply<Rows>(0, a0, i > 0, lane.d);
    wgmma_wait<1>();
    if (i > 0) lane.release(previous);
    lane.decode_batch(1, a1);
    lane.template multiply<Rows>(1, a1, true, lane.d);
    wgmma_wait<1>();
    if (i == signal) named_arrive(kStagger, 256);
    previous = lane.pipeline;
    lane.pipeline.next();
    if (i + 1 < blocks) {
      barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
      lane.decode_batch(0, a0);
    }
  }
  wgmma_wait<0>();
  float2 scales = {0.0f, 0.0f};
  if constexpr (T::kEnds > 0) {
    const Pipeline<T> next = lane.pipeline;
    lane.pipeline = previous;
    scales = lane.scales(0);
    lane.pipeline = next;
  }
  lane.release(previous);
  return scales;
}

/// Every block of K is scaled and accumulated, end(group, scales, sums), while the next one's sums go to the other set
/// of registers.
template <class T, class End>
__device__ __forceinline__ void sum_every_block(Lane<T>& lane, const GemmArgs& p, const BlockRange& range, End end) {
  typename T::Sum other[T::kPacks][T::kSums];
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) other[0][i] = 0;
  uint32_t a0[T::kPacks][8], a1[T::kPacks][8];
  GroupCounter<T> counter(p, range.first);
  int g = -1;
  float2 s = {0.0f, 0.0f};  // the scale before the first block adds nothing
  Pipeline<T> previous = lane.pipeline;
  auto block = [&](int i, auto& mine, auto& before) {
    lane.multiply(0, a0, false, mine);
    wgmma_wait<1>();
    if (i > 0) lane.release(previous);
    end(g, s, before[0]);
    lane.decode_batch(1, a1);
    lane.multiply(1, a1, true, mine);
    g = counter.next(p, i + 1 == range.count);
    s = lane.scales(0);
    previous = lane.pipeline;
    lane.pipeline.next();
    wgmma_wait<1>();
    if (i + 1 < range.count) {
      barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
      lane.decode_batch(0, a0);
    }
  };
  barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
  lane.decode_batch(0, a0);
  int i = 0;
  for (; i + 1 < range.count; i += 2) {
    block(i, lane.d, other);
    block(i + 1, other, lane.d);
  }
  // Two copies: choosing between the sets of sums would serialise the instructions above (C7514).
  if (i < range.count) {
    block(i, lane.d, other);
    wgmma_wait<0>();
    end(g, s, lane.d[0]);
  } else {
    wgmma_wait<0>();
    end(g, s, other[0]);
  }
  lane.release(previous);
}

/// The mainloop for tiles with registers for the operands of two blocks. end(scales, sums) for every BlocksPerScale
/// blocks, which are of one group: while a block is multiplied the sums before it are scaled and accumulated and the
/// next block is decoded.
template <class T, int BlocksPerScale, class End>
__device__ __forceinline__ void sum_ahead(Lane<T>& lane, const BlockRange& range, End end) {
  typename T::Sum other[T::kSums];
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) other[i] = 0;
  uint32_t a0[2][8], a1[2][8];
  float2 s = {0.0f, 0.0f};  // the scale before the first block adds nothing
  Pipeline<T> previous = lane.pipeline;
  auto decode_block = [&](uint32_t(*a)[8]) {
    barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
    lane.decode_batch(0, a);
    lane.decode_batch(1, a + 1);
  };
  auto block = [&](int i, auto& a, auto& next_a, bool add, auto& mine, auto& before) {
    lane.multiply_block(a, add, mine);
    const float2 mine_s = lane.scales(0);
    wgmma_wait<1>();
    if (i > 0) lane.release(previous);
    if (!add) end(s, before);
    s = mine_s;
    previous = lane.pipeline;
    lane.pipeline.next();
    if (i + 1 < range.count) decode_block(next_a);
  };
  auto finish = [&](auto& sums) {
    wgmma_wait<0>();
    end(s, sums);
  };
  decode_block(a0);
  // Every way through is written out: choosing between the sets of sums would serialise the instructions (C7514).
  int i = 0;
  if constexpr (BlocksPerScale == 1) {
    for (; i + 1 < range.count; i += 2) {
      block(i, a0, a1, false, lane.d[0], other);
      block(i + 1, a1, a0, false, other, lane.d[0]);
    }
    if (i < range.count) {
      block(i, a0, a1, false, lane.d[0], other);
      finish(lane.d[0]);
    } else {
      finish(other);
    }
  } else {
    static_assert(BlocksPerScale == 2);
    for (; i + 3 < range.count; i += 4) {
      block(i, a0, a1, false, lane.d[0], other);
      block(i + 1, a1, a0, true, lane.d[0], other);
      block(i + 2, a0, a1, false, other, lane.d[0]);
      block(i + 3, a1, a0, true, other, lane.d[0]);
    }
    if (i == range.count) {
      finish(other);
    } else {
      block(i, a0, a1, false, lane.d[0], other);
      if (i + 1 < range.count) block(i + 1, a1, a0, true, lane.d[0], other);
      if (i + 2 < range.count) {
        block(i + 2, a0, a1, false, other, lane.d[0]);
        finish(other);
      } else {
        finish(lane.d[0]);
      }
    }
  }
  lane.release(previous);
}

/// The mainloop for tiles with registers for one set of sums: two warpgroups take turns at the tensor cores, so that
/// one scales while the products of the other run. end(scales, sums) for every block. `first`: the block's first tile.
template <class T, class End>
__device__ __forceinline__ void sum_turns(Lane<T>& lane, const BlockRange& range, End end, bool first) {
  uint32_t a0[2][8], a1[2][8];
  const int mine = kTurn + lane.warpgroup, other = kTurn + 1 - lane.warpgroup;
  if (first && lane.warpgroup == 1) named_arrive(kTurn, 256);
  barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
  lane.decode_batch(0, a0);
  lane.decode_batch(1, a0 + 1);
  auto block = [&](int i, auto& a, auto& next_a) {
    named_barrier(mine, 256);
    lane.multiply_block(a, false, lane.d[0]);
    named_arrive(other, 256);
    const float2 s = lane.scales(0);
    const Pipeline<T> previous = lane.pipeline;
    lane.pipeline.next();
    if (i + 1 < range.count) {
      barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
      lane.decode_batch(0, next_a);
      lane.decode_batch(1, next_a + 1);
    }
    wgmma_wait<0>();
    lane.release(previous);
    end(s, lane.d[0]);
  };
  int i = 0;
  for (; i + 1 < range.count; i += 2) {
    block(i, a0, a1);
    block(i + 1, a1, a0);
  }
  if (i < range.count) block(i, a0, a1);
}

/// The mainloop with `end(group, scales)` called whenever the sums of a group are complete; they begin again at zero.
/// Groups end where blocks of K do; with kBatches every half block is a group.
template <class T, class End>
__device__ __forceinline__ void sum_groups(Lane<T>& lane, const GemmArgs& p, const BlockRange& range, End end) {
  uint32_t a0[T::kPacks][8], a1[T::kPacks][8];
  GroupCounter<T> counter(p, range.first);
  bool add = false;
  barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
  lane.decode_batch(0, a0);
  for (int i = 0; i < range.count; ++i) {
    lane.multiply(0, a0, add, lane.d);
    lane.decode_batch(1, a1);
    add = true;
    if constexpr (T::kScaleAt == ScaleAt::kBatches) {
      // Here every place ends a group: without a branch, which would keep the instructions from being in flight
      // together.
      const int middle = 2 * (range.first + i);
      const float2 s = lane.scales(0);
      wgmma_wait<0>();
      end(middle, s, lane.d[0]);
      add = false;
    }
    lane.multiply(1, a1, add, lane.d);
    const int here =
        T::kScaleAt == ScaleAt::kBatches ? 2 * (range.first + i) + 1 : counter.next(p, i + 1 == range.count);
    const float2 s = lane.scales(T::kEnds - 1);
    wgmma_wait<1>();
    const Pipeline<T> previous = lane.pipeline;
    lane.pipeline.next();
    if (i + 1 < range.count) {
      barrier_wait(lane.pipeline.full(), lane.pipeline.phase);
      lane.decode_batch(0, a0);
    }
    add = true;
    wgmma_wait<0>();
    lane.release(previous);
    if (T::kScaleAt == ScaleAt::kBatches || here >= 0) {
      end(here, s, lane.d[0]);
      add = false;
    }
  }
}

}  // namespace lowbit::cuda
