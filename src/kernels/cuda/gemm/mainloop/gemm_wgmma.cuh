#pragma once
// The sm_90a pipeline. A block is one warpgroup that copies and Warpgroups that multiply; a pipeline of stages in
// shared memory holds 128 bytes of every token's x and the packs of the weights. Weights go to registers, are decoded
// there, and are the A operand: sums are y transposed. Blocks are persistent over tiles; or, with split > 1, a cluster
// shares one tile's K and adds the parts through distributed shared memory, in an order that does not depend on timing.

#include "kernels/cuda/gemm/mainloop/wgmma_tile.cuh"
#include "kernels/cuda/gemm/primitives/cluster_reduction.cuh"
#include "kernels/cuda/gemm/schedule/tile_at.cuh"
#include "kernels/cuda/gemm/schedule/wgmma_kernel.h"

namespace lowbit::cuda {

/// The part of a stage that a copying thread brings. One thread issues a copy in about 80 ns, so three of them, in
/// warps of their own, keep up with small tiles where one would not.
enum class Copies { kWeights, kX, kScales };

/// Where a tile is: tokens from m0 on, n tile `n`. Behind the tiles of kBm rows come narrow ones, for which the last
/// wave has blocks and no whole tiles.
struct TileOrigin {
  int m0, n;
  bool narrow;
};
template <class T>
__device__ __forceinline__ TileOrigin tile_origin(const GemmArgs& p, int tile) {
  if constexpr (!T::kGrouped) {
    const int wide = p.m_tiles * p.wide_columns;
    if (tile >= wide) {
      const int column = (tile - wide) / p.narrow_m_tiles;
      return {(tile - wide - column * p.narrow_m_tiles) * kNarrowRows, p.wide_columns + column, true};
    }
  }
  const TileAt at = tile_at(p, p.wide_columns, tile);
  return {at.m * T::kBm, at.n, false};
}

template <class T, Copies What>
__device__ __forceinline__ void produce(const GemmArgs& p, const CUtensorMap* map, uint32_t base, int first_tile,
                                        int rank, int tile_step) {
  constexpr int kPackBytes = T::Order::kPackBytes, kPackK = T::Order::kPackK;
  constexpr int kCopyPacks = T::kTilePacks == 1 ? 1 : kPanelPacks, kCopies = T::kTilePacks / kCopyPacks;
  const BlockRange range = k_range(p, rank);
  Pipeline<T> pipeline{base};
  if constexpr (What == Copies::kX)
    wait_for_previous_kernel();  // it does not write weights: those are asked for at once
  int asked = 0;
  for (int tile = first_tile; tile < p.tile_count; tile += tile_step) {
    const TileOrigin at = tile_origin<T>(p, tile);
    const int pack0 = at.n * T::kTilePacks;
    const bool whole = kCopies == 1 || pack0 + T::kTilePacks <= p.packs;  // or the last copy lies outside
    GroupCounter<T> counter(p, range.first);
    for (int i = 0; i < range.count; ++i, ++asked, pipeline.next()) {
      if (asked >= T::kStages) barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      if constexpr (What == Copies::kWeights) {
        barrier_expect(pipeline.full(), whole ? T::kWStage : T::kWStage - kCopyPacks * kPackBytes);
#pragma unroll
        for (int c = 0; c < kCopies; ++c)
          if (c + 1 < kCopies || whole)
            bulk_load(pipeline.x() + T::kXStage + c * kCopyPacks * kPackBytes,
                      p.tiles + pack_index(pack0 + c * kCopyPacks, range.first + i, p.k_blocks) * kPackBytes,
                      kCopyPacks * kPackBytes, pipeline.full());
      } else if constexpr (What == Copies::kX) {
        barrier_expect(pipeline.full(), T::kXStage);
        box_load(pipeline.x(), map, (range.first + i) * kPackK, at.m0, pipeline.full());
      } else {
        int ends[2] = {-1, -1};
#pragma unroll
        for (int e = 0; e < T::kEnds; ++e) ends[e] = counter.next(p, i + 1 == range.count && e + 1 == T::kEnds);
        barrier_expect(pipeline.full(), ((ends[0] >= 0) + (ends[1] >= 0)) * T::kScaleRow);
#pragma unroll
        for (int e = 0; e < T::kEnds; ++e)
          if (ends[e] >= 0)
            bulk_load(pipeline.x() + T::kXStage + T::kWStage + e * T::kScaleRow,
                      p.scales + int64_t(ends[e]) * p.n_padded + pack0 * kPackRows, T::kScaleRow, pipeline.full());
      }
    }
  }
}

/// The parts of a tile in a cluster: every block sends each other one its sums for that block's share of the outputs.
/// `part` numbers what arrives: the sender, or the group when groups must be accumulated in order.
template <class T>
struct Parts {
  static constexpr int kThreads = T::kWarpgroups * 128;
  uint32_t base;
  int share, count;  // pairs of a block, a power of two; parts

  __device__ Parts(const GemmArgs& p, uint32_t shared_base)
      : base(shared_base),
        share(max(1, T::kPairs / p.split)),
        count(kIntegers<T::X> && p.groups > 1 ? p.groups : p.split) {}
  __device__ uint32_t barrier() const { return base + T::kBarriers + 16 * T::kStages; }
  /// By one thread, before the cluster's blocks know of each other.
  __device__ void expect(int rank) const {
    barrier_init(barrier(), 1);
    if (rank * share < T::kPairs) barrier_expect(barrier(), uint32_t(count * share * kThreads * 8));
  }
  __device__ uint32_t offset(int part, int pair) const {
    return T::kParts + ((part * share + (pair & (share - 1))) * kThreads + threadIdx.x) * 8;
  }
  template <class V>
  __device__ void send(int part, const V* v) const {
    send_pairs<T::kPairs>(base, barrier() - base, share, v, [&](int pair) { return offset(part, pair); });
  }
};

/// Scales or adds the parts that have arrived, in ascending order, and stores this block's share.
template <class T>
__device__ void join_parts(const GemmArgs& p, const uint8_t* shared, const Parts<T>& parts, int rank, int n,
                           int n_scales, int m0) {
  constexpr bool kInt8 = kIntegers<T::X>;
  const int t = threadIdx.x & 3, first = rank * parts.share;
  if (first >= T::kPairs) return;
  const float2 bias = bias_pair(p, n);
  const float* scales = p.scales + n_scales;
  const float2 row_scales =
      __ldg(reinterpret_cast<const float2*>(scales));  // before the wait, like the first scale of x
  float xs_ahead = kInt8 ? x_row_scale(p, m0 + 8 * (first / 2) + 2 * t + first % 2) : 1.0f;
  barrier_wait(parts.barrier(), 0);
  for (int pair = first; pair < first + parts.share; ++pair) {
    const int m = m0 + 8 * (pair / 2) + 2 * t + pair % 2;
    auto part = [&](int i) { return *reinterpret_cast<const uint2*>(shared + parts.offset(i, pair)); };
    float2 acc = {0.0f, 0.0f};
    if constexpr (kInt8) {
      if (p.groups > 1) {
#pragma unroll 8
        for (int g = 0; g < p.groups; ++g) {
          const float2 s = __ldg(reinterpret_cast<const float2*>(scales + int64_t(g) * p.n_padded));
          const uint2 sums = part(g);
          const float xs = x_group_scale(p, m, g);
          acc.x = __fmaf_rn(__fmul_rn(any_sum<T::X, T::kBits>(int(sums.x)), xs), s.x, acc.x);
          acc.y = __fmaf_rn(__fmul_rn(any_sum<T::X, T::kBits>(int(sums.y)), xs), s.y, acc.y);
        }
      } else {
        int sum[2] = {0, 0};
        for (int i = 0; i < p.split; ++i) sum[0] += int(part(i).x), sum[1] += int(part(i).y);
        if constexpr (T::X == GemmActivation::kBit) {
          const int2 of_w = __ldg(reinterpret_cast<const int2*>(p.w_terms + min(n, p.n_padded - 2)));
          const int of_x = m < p.m ? p.x_terms[m] : 0;
          sum[0] = 4 * sum[0] + of_w.x + of_x, sum[1] = 4 * sum[1] + of_w.y + of_x;
        }
        const float2 s = row_scales;
        acc.x = scale_accumulate_one<T::X, T::kBits>(p, sum[0], s.x, m, n, 0, 0.0f);
        acc.y = scale_accumulate_one<T::X, T::kBits>(p, sum[1], s.y, m, n + 1, 0, 0.0f);
      }
    } else {
      for (int i = 0; i < p.split; ++i) acc.x += __uint_as_float(part(i).x), acc.y += __uint_as_float(part(i).y);
    }
    finish_pair<T::X>(p, m, n, acc, bias, xs_ahead);
    if (kInt8 && pair + 1 < first + parts.share)
      xs_ahead = x_row_scale(p, m0 + 8 * ((pair + 1) / 2) + 2 * t + (pair + 1) % 2);
  }
}

/// Scales of a tile's tokens: a lane of a warpgroup has one of them, all find them in shared memory.
template <class T>
struct XScales {
  float* shared;  // [128]
  int warpgroup, lane128;
  __device__ __forceinline__ XScales(uint8_t* memory, int of)
      : shared(reinterpret_cast<float*>(memory + T::kXScales) + of * 128),
        warpgroup(of),
        lane128(int(threadIdx.x & 127)) {}
  template <int Rows = T::kBm>
  __device__ __forceinline__ void share(float own) const {
    named_barrier(1 + warpgroup, 128);  // the last ones have been read
    if (lane128 < Rows) shared[lane128] = own;
    named_barrier(1 + warpgroup, 128);
  }
  /// Of token 8 j + c of a lane.
  __device__ __forceinline__ float operator()(int j, int c) const {
    return kIntegers<T::X> ? shared[8 * j + 2 * (threadIdx.x & 3) + c] : 1.0f;
  }
};

/// A tile of one scale per row: Rows tokens from m0 on, a lane's rows of weights from n on. `first`: the block's first
/// one.
template <class T, int Rows>
__device__ __forceinline__ void multiply_rows(const GemmArgs& p, Lane<T>& at, const CUtensorMap* y_map, uint8_t* shared,
                                              const XScales<T>& x_scales, int n, int m0, int blocks, bool first) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, warpgroup = at.warpgroup;
  const float x_scale = kIntegers<T::X> && at.lane128 < Rows ? x_row_scale(p, m0 + at.lane128) : 1.0f;
  float2 scales[T::kPacks], bias[T::kPacks];
#pragma unroll
  for (int u = 0; u < T::kPacks; ++u) {  // packs behind the last one compute nothing that is stored
    scales[u] = __ldg(reinterpret_cast<const float2*>(p.scales + min(n + 64 * u, p.n_padded - 64 + n % 64)));
    bias[u] = bias_pair(p, n + 64 * u);
  }
  // Two warpgroups in step would store their outputs at the same time and leave the tensor cores idle: the second one
  // begins half of the stages later, and stays behind.
  static_assert(T::kWarpgroups == 2);
  if (first && warpgroup == 1) named_barrier(kStagger, 256);
  sum_tile<T, Rows>(at, blocks, first && warpgroup == 0 ? min(T::kStages / 2, blocks) - 1 : -1);
  if constexpr (T::X == GemmActivation::kBit) {
#pragma unroll
    for (int u = 0; u < T::kPacks; ++u) add_bit_terms<Rows>(p, n + 64 * u, m0, at.d[u]);
  }
  const auto value = [&](int u, int i) {
    return __fmaf_rn(row_sum<T::X, T::kBits>(at.d[u][i]), i & 2 ? scales[u].y : scales[u].x, 0.0f);
  };
  if (Rows != T::kBm || p.boxes) {
    // Boxes, one thread for each warpgroup: a copy per row kept its lanes busy for 2.5 us of every tile.
    if (at.lane128 == 0) store_wait();  // the tile's before this one
    x_scales.template share<Rows>(x_scale);
    const int row0 = 2 * (lane & 3), chunk = 2 * warp + (lane >> 4);
    uint8_t* const out = shared + T::kOutputs + warpgroup * T::kPacks * T::kOutBox;
#pragma unroll
    for (int u = 0; u < T::kPacks; ++u) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint8_t* const at_pair =
            out + u * T::kOutBox + (row0 + c) * 128 + ((chunk ^ (row0 + c)) << 4) + (lane >> 2 & 3) * 4;
#pragma unroll
        for (int j = 0; j < Rows / 8; ++j)
          *reinterpret_cast<uint32_t*>(at_pair + j * 1024) =
              to_halves(p, finished<T::X>(value(u, 4 * j + c), x_scales(j, c), bias[u].x),
                        finished<T::X>(value(u, 4 * j + 2 + c), x_scales(j, c), bias[u].y));
      }
    }
    fence_async();
    named_barrier(1 + warpgroup, 128);
    if (at.lane128 == 0)
#pragma unroll
      for (int u = 0; u < T::kPacks; ++u)
        box_store(y_map, n - n % 64 + 64 * u, m0, shared_address(out + u * T::kOutBox));
  } else {
    x_scales.template share<Rows>(x_scale);
#pragma unroll
    for (int u = 0; u < T::kPacks; ++u)
      finish<T::X, Rows>(
          p, n + 64 * u, m0, bias[u], [&](int i) { return value(u, i); }, x_scales);
  }
}

/// All columns of K, by the way that this tile's groups allow: add(scales, sums) where nothing but that is asked for,
/// end(group, scales, sums) else.
template <class T, class Add, class End>
__device__ __forceinline__ void sum_range(const GemmArgs& p, Lane<T>& at, const BlockRange& range, int n, int m0,
                                          bool first, Add add, End end) {
  if constexpr (T::kScaleAt == ScaleAt::kEveryBlock && T::kSumsAhead) {
    if (p.group % (2 * T::Order::kPackK) == 0)
      sum_ahead<T, 2>(at, range, add);
    else
      sum_ahead<T, 1>(at, range, add);
  } else if constexpr (T::kScaleAt == ScaleAt::kEveryBlock) {
    // The common case, without a branch: those cost a fetch of instructions per block of K.
    sum_every_block(at, p, range, [&](int g, float2 scales, const typename T::Sum* d) {
      if (g < 0 || g >= p.groups) scales = {0.0f, 0.0f};  // outside nothing was loaded, and the sums are 0
      add(scales, d);
    });
  } else if constexpr (T::kScaleAt == ScaleAt::kBatches) {
    sum_groups(at, p, range, end);
  } else if (p.groups == 1) {
    const float2 scales = sum_tile(at, range.count);
    if constexpr (T::X == GemmActivation::kBit)
      if (p.split == 1) add_bit_terms<T::kBm>(p, n, m0, at.d[0]);
    if (p.split == 1)
      add(scales, at.d[0]);
    else
      end(0, scales, at.d[0]);
  } else {
    bool done = false;
    if constexpr (T::kSumsAhead || T::kTakesTurns) {
      if (p.group == T::Order::kPackK && p.split == 1 && p.x_scale_group == 0) {
        if constexpr (T::kSumsAhead)
          sum_ahead<T, 1>(at, range, add);
        else
          sum_turns(at, range, add, first);
        done = true;
      }
    }
    if (!done) sum_groups(at, p, range, end);
  }
}

/// A tile with scales per group. A lane's rows of weights are n and n + 1.
template <class T>
__device__ __forceinline__ void multiply_groups(const GemmArgs& p, Lane<T>& at, const uint8_t* shared,
                                                const XScales<T>& x_scales, uint32_t base, int n, int m0,
                                                const BlockRange& range, int rank, bool first) {
  constexpr bool kInts = kIntegers<T::X>;
  const int n_scales = min(n, p.n_padded - 64 + n % 64);  // packs behind the last one compute nothing that is stored
  const float2 bias = bias_pair(p, n);
  const bool has_token = at.lane128 < T::kBm;
  const float x_scale = kInts && has_token ? x_row_scale(p, m0 + at.lane128) : 1.0f;
  // Scales of x per group: each is asked for a group ahead.
  const auto ask = [&](int g) { return has_token && g < p.groups ? x_group_scale(p, m0 + at.lane128, g) : 1.0f; };
  float next_x_scale = kInts && p.x_scale_group != 0 ? ask(0) : 1.0f;
  const float acc_factor = kInts && p.x_scale_group == 0 ? 1.0f / float(1 << kFactor<T::kBits>) : 1.0f;  // of acc
  const Parts<T> parts(p, base);
  float acc[T::kSums];
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) acc[i] = 0.0f;
  const auto add = [&](float2 scales, const typename T::Sum* d) {
    scale_accumulate_factored<T::X, T::kBits, T::kBm>(d, scales, acc);
  };
  const auto end = [&](int g, float2 scales, const typename T::Sum* d) {
    if (g < 0 || g >= p.groups) scales = {0.0f, 0.0f};  // outside nothing was loaded, and the sums are 0
    if (p.split == 1) {
      if (p.x_scale_group != 0) {  // can_run(): groups are narrow then
        x_scales.share(next_x_scale);
        next_x_scale = ask(g + 1);
        scale_accumulate_sums<T::X, T::kBits, T::kBm, true, true>(d, scales, x_scales.shared, acc);
      } else {
        add(scales, d);
      }
    } else if (g >= 0 && g < p.groups) {
      parts.send(p.groups > 1 ? g : rank, d);
    }
  };
  sum_range(p, at, range, n, m0, first, add, end);
  if (p.split == 1) {
    if (kInts) x_scales.share(x_scale);
    finish<T::X, T::kBm>(
        p, n, m0, bias, [&](int i) { return __fmul_rn(acc[i], acc_factor); }, x_scales);
  } else {
    if (!kInts) parts.send(rank, acc);
    join_parts<T>(p, shared, parts, rank, n, n_scales, m0);
  }
}

/// A multiplying lane. Its rows of weights are n and n + 1 (of the second pack: 64 further).
template <class T>
__device__ void consume(const GemmArgs& p, const CUtensorMap& y_map, const CUtensorMap& narrow_y_map, uint8_t* shared,
                        uint32_t base, int first_tile, int rank, int tile_step) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, warpgroup = warpgroup_of_thread();
  Lane<T> at{{base}, shared, int(threadIdx.x & 127), warpgroup, p.half_zero};
  const BlockRange range = k_range(p, rank);
  const XScales<T> x_scales(shared, warpgroup);
  if (p.split > 1) cluster_wait();  // every block of the cluster has begun
  wait_for_previous_kernel();
  for (int tile = first_tile; tile < p.tile_count; tile += tile_step) {
    const TileOrigin where = tile_origin<T>(p, tile);
    const int m0 = where.m0;
    const int n = 64 * (where.n * T::kTilePacks + warpgroup * T::kPacks) + 16 * warp + lane / 4 * 2;
    if constexpr (T::kGrouped) {
      multiply_groups<T>(p, at, shared, x_scales, base, n, m0, range, rank, tile == first_tile);
    } else {
      if (where.narrow)
        multiply_rows<T, kNarrowRows>(p, at, &narrow_y_map, shared, x_scales, n, m0, range.count, tile == first_tile);
      else
        multiply_rows<T, T::kBm>(p, at, &y_map, shared, x_scales, n, m0, range.count, tile == first_tile);
    }
  }
  if constexpr (!T::kGrouped) store_wait();
}

/// Nanoseconds per block of K, a third of what the others need, that a block without a tile (spread_evenly()) stays
/// behind the previous launch's end: until the next launch's blocks are resident. If it goes at once a multiprocessor
/// takes two of them.
inline constexpr int kIdleSleep = 64;

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kSmall ? 2 : 1)
    gemm_wgmma(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap y_map,
               const __grid_constant__ CUtensorMap narrow_y_map, const __grid_constant__ GemmArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int rank = blockIdx.x % p.split;  // in the cluster; the compiler sees that it is the same for all threads
  const int first_tile = blockIdx.x / p.split, tile_step = p.split > 1 ? 1 << 30 : int(gridDim.x);
  if (threadIdx.x == 0) {
    for (Pipeline<T> r{base}; r.phase == 0; r.next()) {
      barrier_init(r.full(), T::kEnds > 0 ? 3 : 2);  // the copying threads
      barrier_init(r.empty(), 4 * T::kWarpgroups);
    }
    if constexpr (T::kGrouped)
      if (p.split > 1) Parts<T>(p, base).expect(rank);
    barrier_init_done();
  }
  let_next_kernel_start();
  if (p.split > 1) cluster_arrive();
  __syncthreads();
  if (warpgroup_of_thread() >= T::kWarpgroups) {
    give_registers<T::kSmall && T::kWarpgroups == 2 ? 32 : 40>();
    const int role = (threadIdx.x - T::kMathThreads) / 32;
    if (role == 0) {
      if (elected()) produce<T, Copies::kWeights>(p, &map, base, first_tile, rank, tile_step);
    } else if (role == 1) {
      if (elected()) {
        prefetch_map(&map);
        produce<T, Copies::kX>(p, &map, base, first_tile, rank, tile_step);
      }
    } else if (role == 2 && T::kEnds > 0) {
      if (elected()) produce<T, Copies::kScales>(p, &map, base, first_tile, rank, tile_step);
    }
    __syncwarp();
    if (p.split > 1) cluster_wait();
  } else {
    take_registers<T::kMathRegisters>();
    consume<T>(p, y_map, narrow_y_map, shared, base, first_tile, rank, tile_step);
    if (first_tile >= p.tile_count) __nanosleep(min(2000, kIdleSleep * p.k_blocks));
  }
#endif
}

template <class T>
constexpr WgmmaKernel wgmma_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&gemm_wgmma<T>),
          name,
          T::kThreads,
          T::kBm,
          T::kTilePacks,
          int(T::kScaleAt),
          T::kParts,
          T::kGrouped ? T::kWarpgroups * 128 * 8 : 0,
          T::kPairs,
          T::kSmall ? 2 : 1};
}

}  // namespace lowbit::cuda
