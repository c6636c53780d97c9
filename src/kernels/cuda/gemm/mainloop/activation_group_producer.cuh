#pragma once
// One warp that fills the stages of many tokens with a scale per group of 32 columns, on sm_90a: bulk copies, boxes of
// a tensor map of x; scales of x four bytes at a time.

#include "kernels/cuda/gemm/mainloop/activation_group_tile.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"

namespace lowbit::cuda {

/// The copying warp, all lanes.
template <class Tile>
struct ActivationGroupProducer : ActivationGroupStages<Tile> {
  using Order = typename Tile::Order;
  const ActivationGroupArgs& p;
  const CUtensorMap* map;
  int lane;

  __device__ uint32_t full(int s) const { return this->base + Tile::kEnd + s % Tile::kStages * 16; }
  __device__ uint32_t empty(int s) const { return full(s) + 8; }
  /// Weights of block `block` and their scales into stage s; x is announced, too.
  __device__ __forceinline__ void weights(int row0, int block, int s) const {
    if (lane != 0) return;
    const int first = this->first_group(p, block);
    const int ends = Tile::kPerScale == 0 ? (4 * block + 3) / p.per_scale - first + 1 : Tile::kScaleRows;
    const int rows = min(ends, p.weight_groups - first);
    barrier_expect(full(s), Tile::kXBlock + Tile::kWeightBlock + rows * Tile::kRows * 4);
    bulk_load(this->stage(s) + Tile::kWeightsAt,
              p.tiles + pack_index(row0 / kPackRows, block, p.k_blocks) * Order::kPackBytes, Tile::kWeightBlock,
              full(s));
#pragma unroll 1
    for (int r = 0; r < rows; ++r)
      bulk_load(this->base + this->scale_slot(s) + r * Tile::kRows * 4,
                p.scales + int64_t(first + r) * p.per_scale * p.n_padded + row0, Tile::kRows * 4, full(s));
  }
  __device__ __forceinline__ void x(const ActivationGroupXScales<Tile, 32>& x_scales, int m0, int block, int s) const {
    if (lane == 0) box_load(this->stage(s), map, 128 * block, m0, full(s));
    x_scales.copy(p, this->stage(s), block);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full(s)) : "memory");
  }
  __device__ __forceinline__ void run() const {
    int s = 0;
    const int tiles = p.m_tiles * p.n_tiles;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const TileAt where = tile_at(p, p.n_tiles, tile);
      const int m0 = where.m * Tile::kTokens, row0 = where.n * Tile::kRows;
      const int ahead = s == 0 ? min(Tile::kStages, p.k_blocks) : 0;
      for (int i = 0; i < ahead; ++i) weights(row0, i, i);  // before the previous kernel has ended
      if (s == 0) wait_for_previous_kernel();
      const ActivationGroupXScales<Tile, 32> x_scales(p, lane, m0);
#pragma unroll 1
      for (int block = 0; block < p.k_blocks; ++block, ++s) {
        if (s >= Tile::kStages) barrier_wait(empty(s), (s / Tile::kStages & 1) ^ 1);
        if (block >= ahead) weights(row0, block, s);
        x(x_scales, m0, block, s);
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

/// Barriers of the stages, by all threads.
template <class Tile>
__device__ __forceinline__ void begin_activation_group_stages(const ActivationGroupProducer<Tile>& producer) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tile::kStages; ++s) {
      barrier_init(producer.full(s), 33);  // what is announced, and the scales of x of each lane
      barrier_init(producer.empty(s), Tile::kThreads / 32);
    }
    barrier_init_done();
  }
  let_next_kernel_start();
  __syncthreads();
}

}  // namespace lowbit::cuda
