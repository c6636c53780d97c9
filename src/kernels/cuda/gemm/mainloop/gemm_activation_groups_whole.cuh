#pragma once
// Many tokens on sm_90a where the four activation groups that share a scale of the weights share an exact one of x, too
// (GemmProblem::exact_x_scales): their sum is one integer, which is converted and scaled once for 128 columns. The
// pipeline is that of gemm_activation_groups_wgmma.cuh; two warpgroups take turns at the tensor cores, so that one
// scales its sums while the other's products run.
//
// Numerics: sums, and acc, are 2^kFactor times too large until the outputs. The product of a sum and a scale of x is
//           exact, so the bits are those of the four activation groups one by one; |acc| from 2^(128 - kFactor) on
//           is infinite.
// Shapes:   x with rows at multiples of 16 bytes; weights in groups of 128.

#include "kernels/cuda/gemm/mainloop/activation_group_producer.cuh"
#include "kernels/cuda/gemm/primitives/wgmma.cuh"

namespace lowbit::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A lane of a warpgroup: 64 rows of weights, all tokens of the tile.
template <class Tile>
struct WholeGroupWarpgroup {
  using Order = typename Tile::Order;
  using Operands = uint32_t[2][8];  // of a block of K
  static constexpr int kSums = Tile::kTokens / 2;
  static constexpr int kTurn = 1;  // named barriers, one for each warpgroup
  const ActivationGroupArgs& p;
  const ActivationGroupProducer<Tile>& stages;
  const uint8_t* shared;
  int warpgroup = warpgroup_of_thread(), lane = static_cast<int>(threadIdx.x) % 32;
  int d[kSums];
  float acc[kSums];

  __device__ __forceinline__ void decode_block(int s, Operands& a) const {
    barrier_wait(stages.full(s), s / Tile::kStages & 1);
    const uint8_t* const pack =
        shared + s % Tile::kStages * Tile::kStageBytes + Tile::kWeightsAt + warpgroup * Order::kPackBytes;
#pragma unroll
    for (int batch = 0; batch < 2; ++batch) {
      uint32_t words[Order::kLaneWords];
      RowHistory<Tile::kBits> history;
      load_words<Order>(pack, batch, static_cast<int>(threadIdx.x) % kPackLanes, words);
      decode_int8<Tile::kBits>(words, p.table, history, a[batch]);
    }
  }
  __device__ __forceinline__ void multiply_block(int s, const Operands& a) {
    const uint64_t x = x_descriptor(stages.stage(s));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      wgmma(Wgmma<Tile::kTokens, GemmActivation::kInt8>{}, d, a[step / 2] + 4 * (step % 2), x + 2 * step, step > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void scale(int s, float2 scales) {
    const auto* const x_scales = reinterpret_cast<const float4*>(shared + s % Tile::kStages * Tile::kStageBytes +
                                                                 Tile::kXScalesAt + 16 * (lane & 3));
    // No conversion moves up to where the sums are not ready yet.
#pragma unroll
    for (int i = 0; i < kSums; ++i) asm volatile("" : "+r"(d[i]));
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float4 xs = x_scales[4 * (i / 8)];
      const float by = i & 4 ? (i & 1 ? xs.w : xs.z) : (i & 1 ? xs.y : xs.x);
      acc[i] = __fmaf_rn(__fmul_rn(__int2float_rn(d[i]), by), i & 2 ? scales.y : scales.x, acc[i]);
    }
  }
  /// The block of K in stage s, by operands that are there; those of the next one, if there is `more`.
  __device__ __forceinline__ void add_block(int s, const Operands& a, Operands& next, bool more, int first_row) {
    named_barrier(kTurn + warpgroup, Tile::kThreads);
    multiply_block(s, a);
    named_arrive(kTurn + 1 - warpgroup, Tile::kThreads);
    const float2 scales =
        *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(shared + stages.scale_slot(s)) + first_row);
    if (more) decode_block(s + 1, next);
    wgmma_wait<0>();
    scale(s, scales);
    __syncwarp();
    barrier_arrive_if(lane == 0, stages.empty(s));
  }
};

#endif

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads + 128, 1)
    gemm_activation_groups_whole(const __grid_constant__ CUtensorMap map,
                                 const __grid_constant__ ActivationGroupArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(Tile::kThreads == 256 && Tile::kPerScale == 4);
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
  WholeGroupWarpgroup<Tile> sums{p, producer, shared};
  typename WholeGroupWarpgroup<Tile>::Operands a0, a1;
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16 + sums.lane / 4 * 2, tiles = p.m_tiles * p.n_tiles;
  if (sums.warpgroup == 1) named_arrive(sums.kTurn, Tile::kThreads);  // the first one begins
  int s = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TileAt where = tile_at(p, p.n_tiles, tile);
    const int n = where.n * Tile::kRows + first_row, end = s + p.k_blocks;
#pragma unroll
    for (int i = 0; i < sums.kSums; ++i) sums.acc[i] = 0;
    sums.decode_block(s, a0);
#pragma unroll 1
    for (; s + 1 < end; s += 2) {
      sums.add_block(s, a0, a1, true, first_row);
      sums.add_block(s + 1, a1, a0, s + 2 < end, first_row);
    }
    if (s < end) sums.add_block(s++, a0, a1, false, first_row);
    constexpr float kDown = 1.0f / (1 << kFactor<Tile::kBits>);
    finish<GemmActivation::kInt8, Tile::kTokens>(
        p, n, where.m * Tile::kTokens, bias_pair(p, n), [&](int i) { return __fmul_rn(sums.acc[i], kDown); },
        [](int, int) { return 1.0f; });
  }
#endif
}

}  // namespace lowbit::cuda
