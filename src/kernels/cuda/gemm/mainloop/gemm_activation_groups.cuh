#pragma once
// Many tokens with a scale per group of 32 columns (an activation group), from sm_80 on. A warp has 32 rows of weights
// and 32 of x over all of K; its sums stay in registers. The pipeline and one activation group:
// activation_group_tile.cuh.
//
// Limits:   2 1/4 float operations per output and activation group (four activation groups to a scale), more cycles
//           than the products.
// Shapes:   any; activation groups behind the last one have zeros for x and scales of x.

#include "kernels/cuda/gemm/mainloop/activation_group_tile.cuh"
#include "kernels/cuda/gemm/mainloop/gemm_skinny.cuh"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"

namespace lowbit::cuda {

/// The offsets' terms of group g: acc = fma(T, o, acc), for each of a lane's outputs.
template <class Tile>
__device__ __forceinline__ void add_offsets(const ActivationGroupArgs& p, int g, int n, int m,
                                            float (&acc)[Tile::kRowTiles][Tile::kSums]) {
#pragma unroll
  for (int q = 0; q < Tile::kRowTiles; ++q) {
    const float2 offsets =
        __ldg(reinterpret_cast<const float2*>(p.offsets + int64_t(g) * p.per_scale * p.n_padded + n + 16 * q));
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) {
      const int row = min(m + i / 4 * 8 + (i & 1), p.m - 1);
      const float sum = __ldg(p.x_sums + int64_t(row) * p.weight_groups + g);
      acc[q][i] = __fmaf_rn(sum, i & 2 ? offsets.y : offsets.x, acc[q][i]);
    }
  }
}

/// A group of the weights ends: acc += part * its scales.
template <class Tile>
__device__ __forceinline__ void scale_accumulate_part(const float (&part)[Tile::kRowTiles][Tile::kSums],
                                                      const float* scales, float (&acc)[Tile::kRowTiles][Tile::kSums]) {
#pragma unroll
  for (int q = 0; q < Tile::kRowTiles; ++q) {
    const float2 s = *reinterpret_cast<const float2*>(scales + 16 * q);
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) acc[q][i] = __fmaf_rn(part[q][i], i & 2 ? s.y : s.x, acc[q][i]);
  }
}

/// A warp's sums over the blocks of K.
template <class Tile>
struct ActivationGroupSums {
  float acc[Tile::kRowTiles][Tile::kSums] = {}, part[Tile::kRowTiles][Tile::kSums] = {};
  RowHistory<Tile::kBits> history[Tile::kRowTiles];
  int x_group = 0, group = 0, left;

  __device__ explicit ActivationGroupSums(const ActivationGroupArgs& p) : left(p.per_scale) {}
  /// One block, whose operands lie in `stage`; n, m: a lane's first outputs.
  __device__ __forceinline__ void add_block(const ActivationGroupArgs& p, const ActivationGroupLane<Tile>& lane,
                                            const uint8_t* shared, uint32_t base, uint32_t stage, const float* scales,
                                            int n, int m) {
    constexpr int kEvery = Tile::kPerScale == 0 ? 1 : Tile::kPerScale;
#pragma unroll
    for (int batch = 0; batch < 2; ++batch) {
      uint32_t a[Tile::kRowTiles][8];
      lane.decode_batch(p.table, shared + (stage - base), batch, history, a);
#pragma unroll
      for (int step = 2 * batch; step < 2 * batch + 2; ++step) {
        if (Tile::kPerScale != 0 && step % kEvery == 0)
          lane.template multiply<true>(shared, base, stage, step, a, part);
        else
          lane.template multiply<false>(shared, base, stage, step, a, part);
        ++x_group, --left;
        const bool ends = Tile::kPerScale == 0 ? left == 0 || x_group == p.groups : (step + 1) % kEvery == 0;
        if (!ends || group >= p.weight_groups) continue;
        scale_accumulate_part<Tile>(part, scales, acc);
        if (p.offsets != nullptr) add_offsets<Tile>(p, group, n, m, acc);
        ++group, scales += Tile::kRows, left = p.per_scale;
        if constexpr (Tile::kPerScale == 0) {
#pragma unroll
          for (int i = 0; i < Tile::kRowTiles * Tile::kSums; ++i) part[i / Tile::kSums][i % Tile::kSums] = 0.0f;
        }
      }
    }
  }
  __device__ __forceinline__ void store(const ActivationGroupArgs& p, int n, int m0) const {
#pragma unroll
    for (int q = 0; q < Tile::kRowTiles; ++q)
      finish<GemmActivation::kInt8, 8 * Tile::kColumnTiles>(
          p, n + 16 * q, m0, bias_pair(p, n + 16 * q), [&](int i) { return acc[q][i]; }, [](int, int) { return 1.0f; });
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 256 ? 2 : 4)
    gemm_activation_groups(const __grid_constant__ ActivationGroupArgs p) {
  extern __shared__ __align__(1024) uint8_t activation_group_stages[];
  skinny_let_next_kernel_start();
  const TileAt where = tile_at(p, p.n_tiles, blockIdx.x);
  uint8_t* const shared = activation_group_stages;
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const ActivationGroupCopies<Tile> copies(p, base, where.m * Tile::kTokens, where.n * Tile::kRows);
  const ActivationGroupLane<Tile> lane;
  const int n = copies.row0 + lane.first_row();
  for (int s = 0; s < Tile::kStages - 1; ++s) copies.weights(s), copies.scales(s);
  skinny_wait_for_previous_kernel();
  for (int s = 0; s < Tile::kStages - 1; ++s) {
    copies.x(s);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  ActivationGroupSums<Tile> sums(p);
#pragma unroll 1
  for (int block = 0; block < p.k_blocks; ++block) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Tile::kStages - 2) : "memory");
    __syncthreads();
    copies.weights(block + Tile::kStages - 1), copies.scales(block + Tile::kStages - 1);
    copies.x(block + Tile::kStages - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    sums.add_block(p, lane, shared, base, copies.stage(block),
                   reinterpret_cast<const float*>(shared + copies.scale_slot(block)) + lane.first_row(), n,
                   copies.m0 + lane.first_token());
  }
  sums.store(p, n, copies.m0 + lane.x_row);
}

}  // namespace lowbit::cuda
