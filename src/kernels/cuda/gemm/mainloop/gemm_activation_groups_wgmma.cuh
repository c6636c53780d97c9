#pragma once
// Many tokens with a scale per group of 32 columns (an activation group) on sm_90a by wgmma: one warp that copies, two
// warpgroups of 64 rows of weights that multiply. A warpgroup multiplies one activation group for half of its tokens
// while it scales the sums of the other half. Blocks are persistent over tiles.
//
// Numerics: sums stay 2^kFactor times too large, as floats too; a group's scale takes the factor out. Where that would
// cost bits of the scale the sum is divided instead, exactly: like scales of x, true sums are multiples of 2^-149.
// Shapes:   x with rows at multiples of 16 bytes.

#include "kernels/cuda/gemm/mainloop/activation_group_producer.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"

namespace lowbit::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A lane of a warpgroup.
template <class Tile>
struct ActivationGroupWarpgroup {
  using Order = typename Tile::Order;
  static constexpr int kTokens = Tile::kTokens / 2, kSums = kTokens / 2;  // of an instruction
  const ActivationGroupArgs& p;
  const ActivationGroupProducer<Tile>& stages;
  const uint8_t* shared;
  int d[2][kSums];  // sums of an activation group, of both halves of the tokens
  float part[2][kSums] = {}, acc[2][kSums] = {};
  uint32_t words[Order::kLaneWords], a[2][4];
  RowHistory<Tile::kBits> history;
  TrellisIndices indices;  // kTrellis: of the words
  float4 x_scales[kTokens / 16];
  int lane, group = 0, x_group = 0, left = 0;  // left: activation groups until a scale's group ends

  /// Operands of step `step` of the block in stage s, into the registers that the step before does not use.
  __device__ __forceinline__ void load_weights(int s, int step) {
    const uint8_t* const pack =
        shared + s % Tile::kStages * Tile::kStageBytes + Tile::kWeightsAt + warpgroup_of_thread() * Order::kPackBytes;
    const int lane128 = threadIdx.x % kPackLanes;
    if constexpr (Tile::kBits == 8) {
      const uint4 v = reinterpret_cast<const uint4*>(pack)[step * kPackLanes + lane128];
      a[step % 2][0] = v.x, a[step % 2][1] = v.y, a[step % 2][2] = v.z, a[step % 2][3] = v.w;
    } else {
      if (step % 2 == 0) load_words<Order>(pack, step / 2, lane128, words);
      if constexpr (Tile::kBits == kTrellis) {
        if (step % 2 == 0) indices.decode(words, history);
        return indices.look_up(p.table, step % 2, a[step % 2]);
      }
      uint32_t both[8];
      decode_int8<Tile::kBits>(words, p.table, history, both);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[step % 2][i] = both[4 * (step % 2) + i];
    }
  }
  __device__ __forceinline__ void multiply(int s, int step, int half) {
    const uint64_t x = x_descriptor(stages.stage(s)) + (half * kTokens * 128 + step * 32) / 16;
    wgmma_fence();
    wgmma(Wgmma<kTokens, GemmActivation::kInt8>{}, d[half], a[step % 2], x, 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void load_x_scales(int s, int step, int half) {
    const uint8_t* at = shared + s % Tile::kStages * Tile::kStageBytes + Tile::kXScalesAt +
                        (step * Tile::kXScaleRow + half * kTokens + 4 * (lane & 3)) * 4;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) x_scales[i] = reinterpret_cast<const float4*>(at)[4 * i];
  }
  template <bool Begins>
  __device__ __forceinline__ void scale(int half) {
    // No conversion moves up into a block where the sums are not ready yet.
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+r"(d[half][i]));
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float4 xs = x_scales[i / 8];
      const float by = i & 4 ? (i & 1 ? xs.w : xs.z) : (i & 1 ? xs.y : xs.x), v = __int2float_rn(d[half][i]);
      part[half][i] = Begins ? __fmul_rn(v, by) : __fmaf_rn(v, by, part[half][i]);  // no -0: acc begins with +0
    }
  }
  /// A group of the weights ends: acc += part * its scales.
  __device__ __forceinline__ void add_part(const float* scales) {
    constexpr float kDown = 1.0f / (1 << kFactor<Tile::kBits>), kTiny = 0x1p-126f / kDown;
    const float2 s = *reinterpret_cast<const float2*>(scales);
    // 8 bits need no branch; without one ptxas puts the products one behind the other (C7514).
    const bool tiny = fminf(fabsf(s.x), fabsf(s.y)) < kTiny;
    if (!tiny) {
      add_part_times(float2{s.x * kDown, s.y * kDown});
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kSums; ++i) part[i / kSums][i % kSums] = __fmul_rn(part[i / kSums][i % kSums], kDown);
      add_part_times(s);
    }
  }
  __device__ __forceinline__ void add_part_times(float2 s) {
#pragma unroll
    for (int i = 0; i < 2 * kSums; ++i)
      acc[i / kSums][i % kSums] = __fmaf_rn(part[i / kSums][i % kSums], i & 2 ? s.y : s.x, acc[i / kSums][i % kSums]);
  }

  static __device__ __forceinline__ void clear(float (&sums)[2][kSums]) {
#pragma unroll
    for (int i = 0; i < 2 * kSums; ++i) sums[i / kSums][i % kSums] = 0;
  }
  /// A tile, whose first block of K is in stage s.
  __device__ __forceinline__ void begin(int s) {
    group = x_group = 0, left = p.per_scale;
    history = {};
    clear(acc);
    if (Tile::kPerScale == 0) clear(part);
    barrier_wait(stages.full(s), s / Tile::kStages & 1);
    load_weights(s, 0);
    multiply(s, 0, 0);
  }
  /// The block of K in stage s; ends with the first product of the next one under way, or, without one, of any.
  __device__ __forceinline__ void add_block(int s, bool more, const float* scales) {
    constexpr int kEvery = Tile::kPerScale == 0 ? 1 : Tile::kPerScale;
    const int next = more ? s + 1 : s;
    wgmma_wait<0>();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      constexpr bool kAny = Tile::kPerScale == 0;
      const bool begins = !kAny && step % kEvery == 0;
      load_x_scales(s, step, 0);
      multiply(s, step, 1);
      wgmma_wait<1>();
      if (begins)
        scale<true>(0);
      else
        scale<false>(0);
      load_x_scales(s, step, 1);
      if (step == 3 && more) barrier_wait(stages.full(next), next / Tile::kStages & 1);
      load_weights(step == 3 ? next : s, (step + 1) % 4);
      multiply(step == 3 ? next : s, (step + 1) % 4, 0);
      wgmma_wait<1>();
      if (begins)
        scale<true>(1);
      else
        scale<false>(1);
      ++x_group, --left;
      const bool ends = kAny ? left == 0 || x_group == p.groups : (step + 1) % kEvery == 0;
      if (!ends || group >= p.weight_groups) continue;
      add_part(scales);
      if (kAny) clear(part);
      ++group, scales += Tile::kRows, left = p.per_scale;
    }
  }
};

#endif

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads + 128, 1)
    gemm_activation_groups_wgmma(const __grid_constant__ CUtensorMap map,
                                 const __grid_constant__ ActivationGroupArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t activation_group_stages[];
  uint8_t* const shared = activation_group_stages;
  const ActivationGroupProducer<Tile> producer{{shared_address(shared)}, p, &map, static_cast<int>(threadIdx.x % 32)};
  begin_activation_group_stages(producer);
  if (warpgroup_of_thread() * 128 >= Tile::kThreads) {
    give_registers<24>();
    if (threadIdx.x < Tile::kThreads + 32) producer.run();
    return;
  }
  take_registers<240>();
  wait_for_previous_kernel();
  ActivationGroupWarpgroup<Tile> sums{p, producer, shared};
  sums.lane = threadIdx.x % 32;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16 + sums.lane / 4 * 2;
  int s = 0;
  const int tiles = p.m_tiles * p.n_tiles;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TileAt where = tile_at(p, p.n_tiles, tile);
    const int n = where.n * Tile::kRows + first_row;
    sums.begin(s);
#pragma unroll 1
    for (int block = 0; block < p.k_blocks; ++block, ++s) {
      const bool more = block + 1 < p.k_blocks;
      sums.add_block(s, more, reinterpret_cast<const float*>(shared + producer.scale_slot(s)) + first_row);
      __syncwarp();
      if (sums.lane == 0) barrier_arrive(producer.empty(s));
    }
    wgmma_wait<0>();
    finish<GemmActivation::kInt8, Tile::kTokens>(
        p, n, where.m * Tile::kTokens, bias_pair(p, n),
        [&](int i) { return i < sums.kSums ? sums.acc[0][i] : sums.acc[1][i - sums.kSums]; },
        [](int, int) { return 1.0f; });
  }
#endif
}

}  // namespace lowbit::cuda
