#pragma once
// 2 to 32 tokens with a scale per group of 32 columns (an activation group) on sm_90: weights come from memory as one
// stream. A block stays over its tiles of 16 or 32 rows of weights; its warps share K, each copies what it multiplies
// itself, some blocks of K ahead and before the previous kernel has ended. What groups of the weights come to goes to
// warps that only scale and accumulate, in the order of the groups.
//
// Shapes:   k a multiple of 128; any number of activation groups to a scale of the weights; no offsets.
// Numerics: docs/numerics.md#matmul: a group's own sum does not depend on the others.
// Limits:   memory: a block of 128 columns by 16 rows and 16 tokens is some 120 instructions of a warp.

#include "kernels/cuda/gemm/mainloop/activation_group_tile.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_skinny.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/schedule/activation_group_stream.h"

namespace lowbit::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The part of a tile, and its first row there.
template <class S>
__device__ __forceinline__ const ActivationGroupStreamPart& stream_part(const ActivationGroupStreamArgs& p, int tile,
                                                                        int* row0) {
  int part = 0;
#pragma unroll
  for (int i = 1; i < kMostStreamParts; ++i) part += i < p.part_count && tile >= p.parts[i].first_tile;
  *row0 = (tile - p.parts[part].first_tile) * S::kRows;
  return p.parts[part];
}

template <class S>
struct StreamBarriers {
  uint32_t base;
  __device__ uint32_t x(int warp, int slot) const {
    return base + S::kBarriersAt + (warp * kMostStreamXSlots + slot) * 8;
  }
  __device__ uint32_t full(int slot) const {
    return base + S::kBarriersAt + kStreamWarps * kMostStreamXSlots * 8 + slot * 16;
  }
  __device__ uint32_t empty(int slot) const { return full(slot) + 8; }
  __device__ void init(int x_slots) const {
    for (int w = 0; w < kStreamWarps; ++w)
      for (int s = 0; s < x_slots; ++s) barrier_init(x(w, s), 1);
    for (int s = 0; s < S::kPartSlots; ++s)
      barrier_init(full(s), kStreamWarps), barrier_init(empty(s), kStreamSumWarps);
    barrier_init_done();
  }
};

/// Which block of K of which tile.
struct StreamItem {
  int tile, round;
  __device__ void next(int rounds) {
    if (++round == rounds) round = 0, tile += static_cast<int>(gridDim.x);
  }
};

/// Operands of 16 rows of weights in a block of K: of both batches, the parts of each.
template <class S>
struct StreamOperands {
  uint32_t a[2][S::kParts][8];
};

/// Brings a warp's weights and their scales, one block of K after the other; a lane copies what it reads.
template <class S>
struct StreamWeights {
  using Order = FragmentOrder<S::kBits, 1>;
  const ActivationGroupStreamArgs& p;
  uint32_t to, scales_to;
  int lane, warp, rounds;
  StreamItem item;
  const uint8_t* from = nullptr;
  const float* scales_from = nullptr;
  int64_t scale_step = 0;
  int slot = 0, scale_slot = 0;
  int to_scale = 0;  // kPerScale 0: activation groups before the one at whose end the lane's scale is wanted

  __device__ StreamWeights(const ActivationGroupStreamArgs& args, uint32_t base, int lane, int warp, int rounds)
      : p(args),
        to(base + warp * S::kWeightSlots * S::kWeightBytes + lane * S::kCopy),
        scales_to(base + S::kScalesAt + warp * S::kScaleBytes + lane * 16),
        lane(lane),
        warp(warp),
        rounds(rounds),
        item{static_cast<int>(blockIdx.x), 0} {
    begin_tile();
  }
  __device__ __forceinline__ void begin_tile() {
    if (item.tile >= p.tile_count) return;
    int row0;
    const ActivationGroupStreamPart& part = stream_part<S>(p, item.tile, &row0);
    from = part.tiles + pack_index(row0 / kPackRows, warp, p.k_blocks) * Order::kPackBytes +
           (row0 / 16 % 4 * 32 + lane) * S::kCopy;
    constexpr int kChunks = S::kRows / 4, kEach = S::kPerScale == 0 ? 1 : S::kPerScale;
    const int group = 4 * warp + lane / kChunks * kEach;
    scales_from = part.scales + int64_t{group} * part.n_padded + row0 + lane % kChunks * 4;
    scale_step = int64_t(4 * kStreamWarps) * part.n_padded;
    if constexpr (S::kPerScale == 0) to_scale = p.per_scale - 1 - group % p.per_scale;
  }
  /// Whether the lane's scale of the block of K is used: that of an activation group which ends a group of the weights.
  __device__ __forceinline__ bool wants_scale(int block) {
    if constexpr (S::kPerScale != 0) return true;
    const bool wanted = to_scale == 0 || 4 * block + lane / (S::kRows / 4) + 1 == p.groups;
    to_scale -= 4 * kStreamWarps % p.per_scale;
    if (to_scale < 0) to_scale += p.per_scale;
    return wanted;
  }
  static __device__ __forceinline__ void copy(uint32_t to, const uint8_t* from) {
    if constexpr (S::kCopy == 16)
      copy_16(to, from);
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
  }
  /// The next block of K, a group of copies of its own.
  __device__ __forceinline__ void next() {
    constexpr int kVectors = S::kLaneBytes / S::kCopy, kRun = kPackLanes * S::kCopy;
    if (item.tile < p.tile_count && item.round * kStreamWarps + warp < p.k_blocks) {
      const uint32_t at = to + slot * S::kWeightBytes;
#pragma unroll
      for (int v = 0; v < 2 * kVectors; ++v)  // of both batches
#pragma unroll
        for (int q = 0; q < S::kRowTiles; ++q)
          copy(at + (v * S::kRowTiles + q) * 32 * S::kCopy, from + v * kRun + q * 32 * S::kCopy);
      if constexpr (S::kBits == kTrellis)  // of the last lane of the quad in the batch before, which ends a block
        if (lane % 4 == 0 && item.round * kStreamWarps + warp > 0)
#pragma unroll
          for (int q = 0; q < S::kRowTiles; ++q)
            copy(at - lane * S::kCopy + S::kWordBytes + (8 * q + lane / 4) * S::kCopy,
                 from - kPanelPacks * Order::kPackBytes + kRun + (32 * q + 3) * S::kCopy);
      const bool wanted = wants_scale(item.round * kStreamWarps + warp);
      if (wanted && lane < S::kScaleBytes / 16)
        copy_16(scales_to + scale_slot * (kStreamWarps * S::kScaleBytes), scales_from);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    from += int64_t(kStreamWarps) * kPanelPacks * Order::kPackBytes, scales_from += scale_step;
    slot = slot + 1 == S::kWeightSlots ? 0 : slot + 1;
    scale_slot = scale_slot + 1 == S::kScaleSlots ? 0 : scale_slot + 1;
    item.next(rounds);
    if (item.round == 0) begin_tile();
  }
  /// Operands of a warp's row tile q of the block of K in a slot, a row's first one or another. All lanes.
  static __device__ __forceinline__ void decode_block(const uint32_t (&table)[4], const uint8_t* block, bool begins,
                                                      int lane, int q, StreamOperands<S>& to) {
    constexpr int kVectors = S::kLaneBytes / S::kCopy;
    RowHistory<S::kBits> history;
    if constexpr (S::kBits == kTrellis)
      if (!begins && lane % 4 == 0) {
        const uint2 u = *reinterpret_cast<const uint2*>(block + S::kWordBytes + (8 * q + lane / 4) * S::kCopy);
        history = {{u.x, u.y}};
      }
#pragma unroll
    for (int batch = 0; batch < 2; ++batch) {
      uint32_t w[Order::kLaneWords];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint8_t* const at = block + (((batch * kVectors + v) * S::kRowTiles + q) * 32 + lane) * S::kCopy;
        if constexpr (S::kCopy == 16) {
          const uint4 u = *reinterpret_cast<const uint4*>(at);
          w[4 * v] = u.x, w[4 * v + 1] = u.y, w[4 * v + 2] = u.z, w[4 * v + 3] = u.w;
        } else {
          const uint2 u = *reinterpret_cast<const uint2*>(at);
          w[0] = u.x, w[1] = u.y;
        }
      }
      if constexpr (S::kParts == 2)
        decode_int8_parts<S::kBits>(w, table, history, to.a[batch]);
      else
        decode_int8<S::kBits>(w, table, history, to.a[batch][0]);
    }
  }
};

/// A warp that multiplies.
template <class S>
struct StreamWarp {
  const ActivationGroupStreamArgs& p;
  const StreamBarriers<S> barriers;
  uint8_t* shared;
  int lane, warp;

  __device__ uint32_t x_at(int slot) const {
    return barriers.base + S::kXAt + (slot * kStreamWarps + warp) * S::kXBytes;
  }
  __device__ uint32_t x_scales_at(int slot) const {
    return S::kXAt + p.x_slots * kStreamWarps * S::kXBytes + (slot * kStreamWarps + warp) * S::kXScaleBytes;
  }
  /// One lane asks for block `block` of x; behind the last one there is nothing to wait for.
  __device__ __forceinline__ void ask_x(const CUtensorMap* x_map, const CUtensorMap* scale_map, int block,
                                        int slot) const {
    const uint32_t barrier = barriers.x(warp, slot);
    if (block >= p.k_blocks) {
      barrier_arrive(barrier);
      return;
    }
    barrier_expect(barrier, S::kXBytes + S::kXScaleBytes);
    box_load(x_at(slot), x_map, 128 * block, 0, barrier);
    box_load(barriers.base + x_scales_at(slot), scale_map, 4 * block, 0, barrier);
  }
  /// The sums of the groups of a block of K for tokens [16 pair, 16 pair + 16), to the place of this warp in `parts`.
  __device__ __forceinline__ void multiply(const StreamOperands<S> (&w)[S::kRowTiles], int slot, int pair,
                                           uint8_t* parts) const {
    constexpr int kMagic = (127 + 23 - kFactor<S::kBits>) << 23 | 0x400000;
    constexpr int kEach = S::kPerScale == 0 ? 1 : S::kPerScale;
    const int r = lane % 8;
    const uint32_t x = x_at(slot) + (16 * pair + 8 * (lane / 16) + r) * 128, swizzle = uint32_t((lane / 8 % 2) ^ r)
                                                                                       << 4;
    float xs[4][4];  // [token][activation group]
    const auto scales_of = [&](int token) {
      return *reinterpret_cast<const float4*>(shared + x_scales_at(slot) + (16 * pair + token) * 16);
    };
    if constexpr (S::kPerScale == 0) {
      auto* const to = reinterpret_cast<float*>(parts + S::kSumBytes);
      if (lane < 16) {
        const float4 v = scales_of(lane);
        to[lane] = v.x, to[16 + lane] = v.y, to[32 + lane] = v.z, to[48 + lane] = v.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 v = scales_of(8 * (i / 2) + 2 * (lane & 3) + i % 2);
        xs[i][0] = v.x, xs[i][1] = v.y, xs[i][2] = v.z, xs[i][3] = v.w;
      }
    }
    float part[S::kRowTiles][2][4];
    int sums[S::kWhole ? S::kRowTiles : 1][2][4];  // kWhole: of the activation groups so far
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t b[4];
      load_matrices(b, x + (swizzle ^ (step << 5)));
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int q = 0; q < S::kRowTiles; ++q) {
          int own[4];
          int(&d)[4] = S::kWhole ? sums[S::kWhole ? q : 0][half] : own;
          const auto& a = w[q].a[step / 2];
          const int at = step % 2 * 4;
          if (S::kWhole && step % kEach != 0) {
            mma<GemmActivation::kInt8>(d, a[0] + at, b[2 * half], b[2 * half + 1]);
          } else {
            mma_from(d, a[0] + at, b[2 * half], b[2 * half + 1], kMagic);
          }
          if constexpr (S::kParts == 2) mma<GemmActivation::kInt8>(d, a[1] + at, b[2 * half], b[2 * half + 1]);
          if (S::kWhole && (step + 1) % kEach != 0) continue;
          float(&t)[4] = part[q][half];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float v = __fadd_rn(__int_as_float(d[c]), -__int_as_float(kMagic));
            if constexpr (S::kPerScale == 0) {
              t[c] = v;
            } else {
              const float by = xs[2 * half + (c & 1)][step];
              const bool begins = S::kWhole || step % kEach == 0;
              t[c] = begins ? __fmul_rn(v, by) : __fmaf_rn(v, by, t[c]);  // no -0: v = +0 where by = 0
            }
          }
          if ((step + 1) % kEach == 0)
            *reinterpret_cast<float4*>(parts + ((step / kEach * S::kRowTiles + q) * 2 + half) * 512 + lane * 16) = {
                t[0], t[1], t[2], t[3]};
        }
    }
  }
  __device__ __forceinline__ void run(const CUtensorMap* x_map, const CUtensorMap* scale_map) const {
    const int rounds = (p.k_blocks + kStreamWarps - 1) / kStreamWarps;
    StreamWeights<S> weights(p, barriers.base, lane, warp, rounds);
#pragma unroll 1
    for (int i = 0; i < S::kWeightSlots - 1; ++i) weights.next();
    wait_for_previous_kernel();
    const bool refills = p.x_slots < rounds;
    if (lane == 0)
      for (int s = 0; s < p.x_slots; ++s) ask_x(x_map, scale_map, s * kStreamWarps + warp, s);
    int x_slot = 0, x_phase = 0, slot = 0, part = 0, part_phase = 1;
    StreamItem item{static_cast<int>(blockIdx.x), 0}, asked = item;
    uint32_t table[4] = {};
    asked.round = p.x_slots % rounds;  // the next block of x that is asked for, where slots are refilled
#pragma unroll 1
    for (; item.tile < p.tile_count; item.next(rounds)) {
      weights.next();
      asm volatile("cp.async.wait_group %0;" ::"n"(S::kWeightSlots - 1) : "memory");
      barrier_wait(barriers.x(warp, x_slot), x_phase);
      const bool there = item.round * kStreamWarps + warp < p.k_blocks;
      if ((S::kBits == kTable || S::kBits == kTrellis) && item.round == 0) {
        int row0;
        const ActivationGroupStreamPart& part_of_tile = stream_part<S>(p, item.tile, &row0);
#pragma unroll
        for (int i = 0; i < 4; ++i) table[i] = part_of_tile.table[S::kParts - 1][i];
      }
      StreamOperands<S> a[S::kRowTiles];
#pragma unroll
      for (int q = 0; q < S::kRowTiles; ++q)
        StreamWeights<S>::decode_block(table, shared + (warp * S::kWeightSlots + slot) * S::kWeightBytes,
                                       item.round == 0 && warp == 0, lane, q, a[q]);
#pragma unroll
      for (int pair = 0; pair < S::kPairs; ++pair) {
        barrier_wait(barriers.empty(part), part_phase);
        if (there) multiply(a, x_slot, pair, shared + S::kPartsAt + part * S::kPartSlot + warp * S::kPartBytes);
        if (refills && pair + 1 == S::kPairs) fence_async();  // the copy engine may write where this lane has read
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers.full(part));
        if (++part == S::kPartSlots) part = 0, part_phase ^= 1;
      }
      if (refills) {
        if (lane == 0 && asked.tile < p.tile_count) ask_x(x_map, scale_map, asked.round * kStreamWarps + warp, x_slot);
        asked.next(rounds);
      }
      if (++x_slot == p.x_slots) x_slot = 0, x_phase ^= refills;
      slot = slot + 1 == S::kWeightSlots ? 0 : slot + 1;
    }
  }
};

__device__ __forceinline__ void store_stream(int output, void* y, int64_t at, float v) {
  if (output == static_cast<int>(GemmOutput::kF32))
    static_cast<float*>(y)[at] = v;
  else if (output == static_cast<int>(GemmOutput::kF16))
    static_cast<__half*>(y)[at] = __float2half_rn(v);
  else
    static_cast<__nv_bfloat16*>(y)[at] = __float2bfloat16_rn(v);
}

/// Where the sums of activation groups are scaled when they are added: those of a thread's row and two tokens.
template <class S>
struct LaterScaled {
  float sums[2], acc[2];  // of a group of the weights; of the groups before it
  int left;               // activation groups until its end
  /// Adds the sums of up to kStreamWarps warps' blocks of K, the first of which is `first`; `at`: where those of the
  /// thread lie in a part. A part's are loaded before the ones in front of it are added.
  __device__ __forceinline__ void add(const ActivationGroupStreamArgs& p, const uint8_t* parts, int at, int token,
                                      const float* scales, int first) {
    const int blocks = min(kStreamWarps, p.k_blocks - first);
    float2 t[2][S::kGroups], by[2][S::kGroups];
    const auto load = [&](int warp) {
      const uint8_t* const part = parts + warp * S::kPartBytes;
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        t[warp % 2][g] = *reinterpret_cast<const float2*>(part + g * 1024 + at);
        by[warp % 2][g] = *reinterpret_cast<const float2*>(part + S::kSumBytes + (g * 16 + token) * 4);
      }
    };
    load(0);
#pragma unroll
    for (int warp = 0; warp < kStreamWarps; ++warp) {
      if (warp >= blocks) break;
      if (warp + 1 < kStreamWarps && warp + 1 < blocks) load(warp + 1);
      const bool ends = left <= S::kGroups || first + warp + 1 == p.k_blocks;
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        const float2 v = t[warp % 2][g], x = by[warp % 2][g];
        sums[0] = __fmaf_rn(v.x, x.x, sums[0]), sums[1] = __fmaf_rn(v.y, x.y, sums[1]);
        if (ends && (left == g + 1 || (first + warp + 1 == p.k_blocks && g + 1 == S::kGroups))) {
          const float scale = scales[(warp * S::kGroups + g) * S::kRows];
          acc[0] = __fmaf_rn(sums[0], scale, acc[0]), acc[1] = __fmaf_rn(sums[1], scale, acc[1]);
          sums[0] = sums[1] = 0, left += p.per_scale;
        }
      }
      left -= S::kGroups;
    }
  }
};

/// A warp that scales and accumulates: a thread has two rows by two tokens of each pair of column tiles, or one row.
template <class S>
__device__ __forceinline__ void accumulate_stream(const ActivationGroupStreamArgs& p, const StreamBarriers<S>& barriers,
                                                  const uint8_t* shared, int thread) {
  constexpr int kWidth = 2 * S::kRowTiles;  // floats of a thread
  const int rounds = (p.k_blocks + kStreamWarps - 1) / kStreamWarps, at = thread * kWidth / 4, lane = at % 32;
  const int row = at / 64 * 16 + lane / 4 * 2 + (kWidth == 2 ? thread % 2 : 0);
  const int token = at / 32 % 2 * 8 + lane % 4 * 2;
  const uint8_t* const parts = shared + S::kPartsAt + thread * kWidth * 4;
  wait_for_previous_kernel();  // before y is written
  int part = 0, phase = 0, scale_slot = 0;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tile_count; tile += static_cast<int>(gridDim.x)) {
    float acc[S::kPairs][kWidth] = {};
    LaterScaled<S> later[S::kPairs];
#pragma unroll
    for (int pair = 0; pair < S::kPairs; ++pair) later[pair] = {{0, 0}, {0, 0}, p.per_scale};
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      const int groups = min(kStreamWarps, p.k_blocks - round * kStreamWarps) * S::kGroups;
      const float* const scales =
          reinterpret_cast<const float*>(shared + S::kScalesAt + scale_slot * (kStreamWarps * S::kScaleBytes)) + row;
#pragma unroll
      for (int pair = 0; pair < S::kPairs; ++pair) {
        barrier_wait(barriers.full(part), phase);
        if constexpr (S::kPerScale == 0)
          later[pair].add(p, shared + S::kPartsAt + part * S::kPartSlot, thread * kWidth * 4, token, scales,
                          round * kStreamWarps);
#pragma unroll 8
        for (int g = 0; S::kPerScale != 0 && g < groups; ++g) {
          const uint8_t* const from = parts + part * S::kPartSlot + g * (S::kRowTiles * 2 * 512);
          float(&sum)[kWidth] = acc[pair];
          if constexpr (kWidth == 2) {
            const float2 t = *reinterpret_cast<const float2*>(from);
            const float s = scales[g * S::kRows];
            sum[0] = __fmaf_rn(t.x, s, sum[0]), sum[1] = __fmaf_rn(t.y, s, sum[1]);
          } else {
            const float4 t = *reinterpret_cast<const float4*>(from);
            const float2 s = *reinterpret_cast<const float2*>(scales + g * S::kRows);
            sum[0] = __fmaf_rn(t.x, s.x, sum[0]), sum[1] = __fmaf_rn(t.y, s.x, sum[1]);
            sum[2] = __fmaf_rn(t.z, s.y, sum[2]), sum[3] = __fmaf_rn(t.w, s.y, sum[3]);
          }
        }
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(barriers.empty(part));
        if (++part == S::kPartSlots) part = 0, phase ^= 1;
      }
      scale_slot = scale_slot + 1 == S::kScaleSlots ? 0 : scale_slot + 1;
    }
    if constexpr (S::kPerScale == 0)
#pragma unroll
      for (int pair = 0; pair < S::kPairs; ++pair) acc[pair][0] = later[pair].acc[0], acc[pair][1] = later[pair].acc[1];
    int row0;
    const ActivationGroupStreamPart& to = stream_part<S>(p, tile, &row0);
#pragma unroll
    for (int i = 0; i < S::kPairs * kWidth; ++i) {
      const int n = row0 + row + i % kWidth / 2, m = i / kWidth * 16 + token + i % 2;
      if (n >= to.n || m >= p.m) continue;
      store_stream(p.output, to.y, int64_t(m) * to.ldy + n,
                   __fadd_rn(acc[i / kWidth][i % kWidth], to.bias == nullptr ? 0.0f : __ldg(to.bias + n)));
    }
  }
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    gemm_activation_groups_stream(const __grid_constant__ CUtensorMap x_map,
                                  const __grid_constant__ CUtensorMap scale_map,
                                  const __grid_constant__ ActivationGroupStreamArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t activation_group_stages[];
  uint8_t* const shared = activation_group_stages;
  const StreamBarriers<S> barriers{shared_address(shared)};
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  let_next_kernel_start();
  if (thread == 0) barriers.init(p.x_slots);
  __syncthreads();
  if (warp < kStreamWarps)
    StreamWarp<S>{p, barriers, shared, thread % 32, warp}.run(&x_map, &scale_map);
  else
    accumulate_stream<S>(p, barriers, shared, thread - 32 * kStreamWarps);
#endif
}

}  // namespace lowbit::cuda
