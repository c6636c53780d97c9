// The product of FP8 codes for many rows of a, on compute capability 9.0: docs/kernels.md#on-a-gpu.
//
// A grid that stays: each thread block takes tile after tile. One warp fetches, always stages ahead and across tiles;
// two or three warpgroups multiply, each its own rows, and while one adds the sums of a block of K to its results the
// others keep the tensor cores busy.

#include <algorithm>

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/groups.cuh"
#include "kernels/cuda/fp8/pipeline.cuh"
#include "kernels/cuda/fp8/tensor_maps.h"

namespace lowbit::cuda::fp8 {
namespace {

constexpr int kMostShared = 227 << 10;

/// 64 Waves rows of a for each of Groups warpgroups, by Q_ of b, each with a scale of its own (RowScales) or not.
template <int Groups, int Waves, int Q_, bool RowScales = false>
struct Tile : RingLayout<64 * Groups * Waves, Q_, 64 * Groups * Waves, RowScales ? Q_ : 2, kMostShared> {
  static constexpr int kGroups = Groups, kThreads = 128 * (kGroups + 1), kWaves = Waves;
  static constexpr int kFetchRegisters = Groups == 2 ? 56 : 40, kSumRegisters = Groups == 2 ? 224 : 152;
  static constexpr int kSums = Q_ / 2;              // of a lane and a wave
  static constexpr bool kOneScale = 128 % Q_ == 0;  // no tile has rows of two blocks of b
  static constexpr bool kRowScales = RowScales;
};

/// Which tile is whose.
struct Order {
  int down, across, tiles, depth;  // depth: tiles down before the next column of them. tiles: of groups, the most
  int blocks;                      // of K
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct TilePlace {
  int p0, q0;   // rows of a and of b
  int64_t end;  // of rows of a
  int group;
};
template <class T>
__device__ __forceinline__ TilePlace tile_place(const Order& o, int down, int tile, int64_t first, int64_t end,
                                                int group) {
  const int band = o.depth * o.across, top = tile / band * o.depth, in = tile % band, height = min(o.depth, down - top);
  return {int(first) + (top + in % height) * T::kP, in / height * T::kQ, end, group};
}
/// False: there is no such tile, nor one behind it.
template <class T, bool kGroups>
__device__ __forceinline__ bool find_tile(const DeviceGemm& g, const Fp8Groups& groups, const Order& o, int tile,
                                          TilePlace& at) {
  if (tile >= o.tiles) return false;
  if constexpr (kGroups) {
    const TileOfGroup found = tile_of_groups<T::kP>(groups, g.m, tile, o.across);
    const int down = int((found.last - found.first + T::kP - 1) / T::kP);
    if (found.exists()) at = tile_place<T>(o, down, found.tile, found.first, found.last, found.group);
    return found.exists();
  } else {
    at = tile_place<T>(o, o.down, tile, 0, g.m, 0);
    return true;
  }
}

/// Codes of b for the first stages of the first tile; fetch_tiles() completes them. By one thread. The stages.
template <class T>
__device__ __forceinline__ int fetch_weights(Pipeline<T> pipeline, const CUtensorMap* q_map, const Order& o) {
  const int row0 = tile_place<T>(o, o.down, int(blockIdx.x), 0, 0, 0).q0, count = min(o.blocks, T::kStages);
  for (int b = 0; b < count; ++b, pipeline.next()) box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
  return count;
}

/// `early`: stages whose weights are under way already.
template <class T, bool kGroups>
__device__ __forceinline__ void fetch_tiles(Pipeline<T> pipeline, const CUtensorMap* p_map, const CUtensorMap* q_map,
                                            const DeviceGemm& g, const Fp8Groups& groups, const Order& o, int early) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const bool by_column =
      g.a_scales_by_column && g.lda_scales % 4 == 0 && reinterpret_cast<uintptr_t>(g.a_scales) % 16 == 0;
  TilePlace at;
  for (int tile = int(blockIdx.x); find_tile<T, kGroups>(g, groups, o, tile, at); tile += int(gridDim.x)) {
    const ScaleCopies<T> scales(g, at.p0, at.q0, at.group);
    const bool in_bulk = by_column && at.p0 % 4 == 0 && at.p0 + T::kP <= g.m;  // scales of a by one copy
    const int row0 = int(at.group * g.n) + at.q0;                              // of b
    for (int b = 0; b < o.blocks; ++b, pipeline.next()) {
      barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      if (first_lane) {
        barrier_expect(pipeline.full(), T::kCodes + (in_bulk ? 4 * T::kP : 0));
        box_load(pipeline.p(), p_map, b * 128, at.p0, pipeline.full());
        if (early > 0)
          --early;
        else
          box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
        if (in_bulk) bulk_load(pipeline.scales(), g.a_scales + b * g.lda_scales + at.p0, 4 * T::kP, pipeline.full());
      }
      __syncwarp();
      if (!in_bulk) scales.copy_a(pipeline.scales(), b);
      scales.copy_b(pipeline.scales(), b);
      copies_arrive(pipeline.full());
    }
  }
}

/// acc += s times the scales: rows[0] and rows[1] for the columns below `edge`, rows[2] and rows[3] for the others.
template <class T>
__device__ __forceinline__ void scale_accumulate(const float (&s)[T::kSums], const float (&rows)[4], int edge,
                                                 float (&acc)[T::kSums]) {
#pragma unroll
  for (int j = 0; j < T::kQ / 8; ++j) {
    const bool second = !T::kOneScale && 8 * j >= edge;
    const float upper = second ? rows[2] : rows[0], lower = second ? rows[3] : rows[1];
    acc[4 * j] = __fmaf_rn(s[4 * j], upper, acc[4 * j]);
    acc[4 * j + 1] = __fmaf_rn(s[4 * j + 1], upper, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(s[4 * j + 2], lower, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(s[4 * j + 3], lower, acc[4 * j + 3]);
  }
}

/// acc += s times the scales of a's two rows and b's columns, which are at `of_b` in shared memory.
template <class T>
__device__ __forceinline__ void scale_accumulate_rows(const float (&s)[T::kSums], float upper, float lower,
                                                      uint32_t of_b, float (&acc)[T::kSums]) {
#pragma unroll
  for (int j = 0; j < T::kQ / 8; ++j) {
    const float2 b = load_two_scales(of_b + 32 * j + 8 * (threadIdx.x % 4));
    acc[4 * j] = __fmaf_rn(s[4 * j] * upper, b.x, acc[4 * j]);
    acc[4 * j + 1] = __fmaf_rn(s[4 * j + 1] * upper, b.y, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(s[4 * j + 2] * lower, b.x, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(s[4 * j + 3] * lower, b.y, acc[4 * j + 3]);
  }
}

/// Columns [j, j + 2) of row i; j is even.
__device__ __forceinline__ void store_pair(const DeviceGemm& g, int64_t end, int64_t i, int64_t j, float v, float w) {
  const int bytes = g.element == Fp8Element::kF32 ? 8 : 4;
  if (g.ldc % 2 != 0 || j + 1 >= g.n || i >= end || reinterpret_cast<uintptr_t>(g.c) % bytes != 0) {
    store_one(g, end, i, j, v);
    store_one(g, end, i, j + 1, w);
    return;
  }
  const int64_t at = i * g.ldc + j;
  if (g.element == Fp8Element::kF32)
    *reinterpret_cast<float2*>(static_cast<float*>(g.c) + at) = float2{v, w};
  else
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(g.c) + at) = two_halves(g.element, v, w);
}

/// Lane t of four gets word t of each of them.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

template <class T>
__device__ __forceinline__ void add_bias(const DeviceGemm& g, int q0, float (&acc)[T::kSums]) {
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) {
    const int j = q0 + i / 4 * 8 + int(threadIdx.x) % 4 * 2 + i % 2;
    if (j < g.n) acc[i] += g.bias[j];
  }
}

template <class T>
__device__ __forceinline__ void store_tile(const DeviceGemm& g, int64_t end, int row, int q0,
                                           const float (&acc)[T::kSums]) {
  const int t = threadIdx.x % 4;
  const bool wide = g.element != Fp8Element::kF32 && g.ldc % 8 == 0 && reinterpret_cast<uintptr_t>(g.c) % 16 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
#pragma unroll
    for (int j = 0; j < T::kQ / 8; j += 4) {
      if (wide && j + 4 <= T::kQ / 8 && q0 + 8 * j + 32 <= g.n) {
        uint32_t w[4];
#pragma unroll
        for (int x = 0; x < 4; ++x)
          w[x] = two_halves(g.element, acc[4 * (j + x) + 2 * half], acc[4 * (j + x) + 2 * half + 1]);
        transpose_quad(w);
        if (i < end)
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(g.c) + i * g.ldc + q0 + 8 * (j + t)) =
              uint4{w[0], w[1], w[2], w[3]};
      } else {
#pragma unroll
        for (int x = j; x < j + 4 && x < T::kQ / 8; ++x)
          store_pair(g, end, i, q0 + 8 * x + 2 * t, acc[4 * x + 2 * half], acc[4 * x + 2 * half + 1]);
      }
    }
  }
}

/// A warp has read the stage.
template <class T>
__device__ __forceinline__ void release(const Pipeline<T>& pipeline) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(pipeline.empty());
}

template <class T>
__device__ __forceinline__ void sum_blocks(Pipeline<T>& pipeline, int blocks, int group, int own, int edge,
                                           float (&acc)[T::kWaves][T::kSums]) {
  for (int b = 0; b < blocks; ++b, pipeline.next()) {
    barrier_wait(pipeline.full(), pipeline.phase);
    float2 of_b{1, 1};
    if constexpr (!T::kRowScales) of_b = load_two_scales(pipeline.scales() + 4 * T::kP);
    const uint64_t q = tile_descriptor(pipeline.q());
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w) {
      const float upper = load_scale(pipeline.scales() + 4 * (own + 64 * w));
      const float lower = load_scale(pipeline.scales() + 4 * (own + 64 * w + 8));
      const uint64_t p = tile_descriptor(pipeline.p() + (group * T::kWaves + w) * 64 * 128);
      float s[T::kSums];
      multiply_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) multiply(s, p + 2 * step, q + 2 * step, step > 0);
      multiply_commit();
      const float rows[4] = {upper * of_b.x, lower * of_b.x, upper * of_b.y, lower * of_b.y};
      multiply_wait();
      if constexpr (T::kRowScales) scale_accumulate_rows<T>(s, upper, lower, pipeline.scales() + 4 * T::kP, acc[w]);
      if (w + 1 == T::kWaves) release(pipeline);
      if constexpr (!T::kRowScales) scale_accumulate<T>(s, rows, edge, acc[w]);
    }
  }
}

template <class T, bool kGroups>
__device__ __forceinline__ void multiply_tiles(Pipeline<T> pipeline, const DeviceGemm& g, const Fp8Groups& groups,
                                               const Order& o) {
  const int group = warpgroup_of_thread();
  const int own =
      group * T::kWaves * 64 + int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;  // of the first wave
  TilePlace at;
  for (int tile = int(blockIdx.x); find_tile<T, kGroups>(g, groups, o, tile, at); tile += int(gridDim.x)) {
    const int edge = T::kOneScale || T::kRowScales ? T::kQ : int(g.b_rows - at.q0 % g.b_rows);
    float acc[T::kWaves][T::kSums];
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w)
#pragma unroll
      for (int i = 0; i < T::kSums; ++i) acc[w][i] = 0;
    sum_blocks<T>(pipeline, o.blocks, group, own, edge, acc);
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w) {
      if (g.bias != nullptr) add_bias<T>(g, at.q0, acc[w]);
      store_tile<T>(g, at.end, at.p0 + own + 64 * w, at.q0, acc[w]);
    }
  }
}

#endif

template <class T, bool kGroups>
__global__ void __launch_bounds__(T::kThreads, 1)
    many_rows(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
              const __grid_constant__ DeviceGemm g, const __grid_constant__ Fp8Groups groups,
              const __grid_constant__ Order o) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  const Pipeline<T> pipeline{(shared_address(raw) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    prefetch_map(&p_map);
    prefetch_map(&q_map);
    pipeline.init(4 * T::kGroups);
  }
  __syncthreads();
  let_next_kernel_start();
  if (warpgroup_of_thread() == T::kGroups) {
    give_registers<T::kFetchRegisters>();
    int early = 0;
    if (!kGroups && !g.new_weights && threadIdx.x == 128 * T::kGroups) early = fetch_weights<T>(pipeline, &q_map, o);
    wait_for_previous_kernel();
    if (threadIdx.x / 32 == 4 * T::kGroups) fetch_tiles<T, kGroups>(pipeline, &p_map, &q_map, g, groups, o, early);
  } else {
    take_registers<T::kSumRegisters>();
    wait_for_previous_kernel();
    multiply_tiles<T, kGroups>(pipeline, g, groups, o);
  }
#endif
}

template <class T, bool kGroups>
bool launch_tile(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream,
                 cudaError_t* error) {
  CUtensorMap p_map, q_map;
  const int64_t rows_of_b = g.n * std::max<int64_t>(groups.count, 1);
  if (!make_map(g.a, g.m, g.k, g.lda, T::kP, &p_map) || !make_map(g.b, rows_of_b, g.k, g.ldb, T::kQ, &q_map))
    return false;
  const int64_t down = most_group_tiles(groups, g.m, T::kP), across = tiles_of(g.n, T::kQ);
  constexpr int64_t kMostTiles = 1 << 30;
  constexpr int kDepth = (1024 + T::kP - 1) / T::kP;  // 1,024 rows of a stay in the second-level cache
  if (down * across > kMostTiles) return false;
  const Order order{int(down), int(across), int(down * across), kDepth, int(tiles_of(g.k, kFp8Block))};
  *error = allow_shared(reinterpret_cast<const void*>(&many_rows<T, kGroups>), device);
  if (*error != cudaSuccess) return true;
  *error = launch(many_rows<T, kGroups>, dim3(unsigned(std::min(order.tiles, device.processors))), dim3(T::kThreads),
                  size_t{T::kShared}, stream, true, p_map, q_map, g, groups, order);
  return true;
}

}  // namespace

bool launch_many_rows(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                      cudaStream_t stream, cudaError_t* error) {
  const auto start = [&]<int Groups, int Waves, int Q>() {
    return launch_tile<Tile<Groups, Waves, Q>, false>(g, groups, device, stream, error);
  };
  const auto start_groups = [&]<int Waves, int Q>() {
    return launch_tile<Tile<2, Waves, Q>, true>(g, groups, device, stream, error);
  };
  if (groups.count > 0) {
    if (cut.p == 256) return start_groups.template operator()<2, 128>();
    return cut.q == 64 ? start_groups.template operator()<1, 64>() : start_groups.template operator()<1, 128>();
  }
  if (g.b_rows == 1) {
    const auto start_row_scales = [&]<int Groups, int Waves, int Q>() {
      return launch_tile<Tile<Groups, Waves, Q, true>, false>(g, groups, device, stream, error);
    };
    if (cut.p == 192) return start_row_scales.template operator()<3, 1, 128>();
    return cut.q == 64 ? start_row_scales.template operator()<2, 1, 64>()
                       : start_row_scales.template operator()<2, 1, 128>();
  }
  if (cut.p == 256) return start.template operator()<2, 2, 128>();
  if (cut.p == 192) return start.template operator()<3, 1, 128>();
  switch (cut.q) {
    case 64:
      return start.template operator()<2, 1, 64>();
    case 96:
      return start.template operator()<2, 1, 96>();
    case 128:
      return start.template operator()<2, 1, 128>();
    case 144:
      return start.template operator()<2, 1, 144>();
    case 192:
      return start.template operator()<2, 1, 192>();
    default:
      return false;
  }
}

}  // namespace lowbit::cuda::fp8
