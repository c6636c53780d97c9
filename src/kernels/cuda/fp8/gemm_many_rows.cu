// The product of FP8 codes for many rows of a, on compute capability 9.0: docs/kernels.md#on-a-gpu.
//
// A grid that stays: each thread block takes tile after tile. Four warps fetch, always stages ahead and across tiles;
// two or three warpgroups multiply, each its own rows or, of few rows, its own blocks of K, and while one adds the sums
// of a block of K to its results the others keep the tensor cores busy. The copy engine stores results of two bytes.

#include <algorithm>

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/groups.cuh"
#include "kernels/cuda/fp8/pipeline.cuh"
#include "kernels/cuda/fp8/store_tile.cuh"
#include "kernels/cuda/fp8/tensor_maps.h"

namespace lowbit::cuda::fp8 {
namespace {

constexpr int kMostShared = 227 << 10;

/// 64 Waves rows of a for each of Groups / Turns warpgroups, by Q_ of b, each with a scale of its own (RowScales) or
/// not. Turns warpgroups have the same rows and take stages in turn; their sums meet in shared memory. Stores: the copy
/// engine may store results, which needs shared memory for them.
template <int Groups, int Waves, int Q_, bool RowScales, int Turns, bool Stores>
struct TileShape {
  static constexpr int kRows = 64 * Groups / Turns * Waves;
  static constexpr bool kBoxes = Stores && Q_ % kBoxColumns == 0 && Turns == 1;
  // Bytes of shared memory for results, or for a turn's sums.
  static constexpr int kBehind = kBoxes ? kRows * Q_ * 2 : (Turns - 1) * kRows * Q_ * 4;
  using Layout = RingLayout<kRows, Q_, kRows, RowScales ? Q_ : 2, kMostShared - kBehind - 1024, Turns>;
  static_assert(Turns == 1 || (Groups == Turns && Waves == 1));
};
template <int Groups, int Waves, int Q_, bool RowScales = false, int Turns = 1, bool Stores = true>
struct Tile : TileShape<Groups, Waves, Q_, RowScales, Turns, Stores>,
              TileShape<Groups, Waves, Q_, RowScales, Turns, Stores>::Layout {
  static constexpr int kGroups = Groups, kThreads = 128 * (kGroups + 1), kWaves = Waves, kTurns = Turns;
  static constexpr int kBehindAt = (Tile::kBarriersAt + 16 * Tile::kStages + 1023) / 1024 * 1024;
  static constexpr int kAllShared = 1024 + kBehindAt + Tile::kBehind;
  // Warps that fetch. A stage is always filled by the same one, and read by the same turn: else one that is late would
  // let the others take a barrier's last phase for the next.
  static constexpr int kFetchers = 4;
  static constexpr int kFetchRegisters = Groups == 2 ? 56 : 40, kSumRegisters = Groups == 2 ? 224 : 152;
  static constexpr int kSums = Q_ / 2;              // of a lane and a wave
  static constexpr bool kOneScale = 128 % Q_ == 0;  // no tile has rows of two blocks of b
  static constexpr bool kRowScales = RowScales;
};

/// Which tile is whose.
struct Order {
  int down, across, tiles, depth;  // depth: tiles down before the next column of them. tiles: of groups, the most
  int blocks;                      // of K
  int box_rows;                    // of a
  bool boxes;                      // the copy engine stores results
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

/// Codes of b for the first stages of the first tile, by one thread; fetch_tiles() completes them. The stages.
template <class T>
__device__ __forceinline__ int fetch_weights(Pipeline<T> pipeline, const CUtensorMap* q_map, const Order& o) {
  const int row0 = tile_place<T>(o, o.down, int(blockIdx.x), 0, 0, 0).q0, count = min(o.blocks, T::kStages);
  if (threadIdx.x == 128 * T::kGroups)
    for (int b = 0; b < count; ++b, pipeline.next()) box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
  return count;
}

/// `early`: stages whose weights are under way already.
template <class T, bool kGroups>
__device__ __forceinline__ void fetch_tiles(Pipeline<T> pipeline, const CUtensorMap* p_map, const CUtensorMap* q_map,
                                            const DeviceGemm& g, const Fp8Groups& groups, const Order& o, int early) {
  const bool first_lane = threadIdx.x % 32 == 0;
  const int fetcher = int(threadIdx.x) / 32 - 4 * T::kGroups;
  int count = 0;  // of stages
  TilePlace at;
  for (int tile = int(blockIdx.x); find_tile<T, kGroups>(g, groups, o, tile, at); tile += int(gridDim.x)) {
    const ScaleCopies<T> scales(g, at.p0, at.q0, at.group);
    const int bulk = rows_in_bulk(g, at.p0, T::kP);
    const int row0 = int(at.group * g.n) + at.q0;  // of b
    for (int b = 0; b < o.blocks; ++b, ++count, pipeline.next()) {
      if (pipeline.stage % T::kFetchers != fetcher) continue;
      barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
      if (first_lane) {
        barrier_expect(pipeline.full(), (o.box_rows + T::kQ) * 128 + 4 * bulk);
        box_load(pipeline.p(), p_map, b * 128, at.p0, pipeline.full());
        if (count >= early) box_load(pipeline.q(), q_map, b * 128, row0, pipeline.full());
        if (bulk != 0) bulk_load(pipeline.scales(), g.a_scales + b * g.lda_scales + at.p0, 4 * bulk, pipeline.full());
      }
      __syncwarp();
      if (bulk == 0) scales.copy_a(pipeline.scales(), b);
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

__device__ __forceinline__ void store_four_sums(uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ float4 load_four_sums(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

/// A warp has read the stage.
template <class T>
__device__ __forceinline__ void release(const Pipeline<T>& pipeline) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(pipeline.empty());
}

template <class T>
__device__ __forceinline__ void sum_blocks(Pipeline<T>& pipeline, int blocks, int group, int turn, int own, int edge,
                                           float (&acc)[T::kWaves][T::kSums]) {
  for (int b = 0; b < blocks; ++b, pipeline.next()) {
    if (T::kTurns > 1 && pipeline.stage % T::kTurns != turn) continue;
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

/// The sums of both turns, in the first one's lanes.
template <class T>
__device__ __forceinline__ void add_turns(uint32_t parts, int turn, float (&acc)[T::kSums]) {
  constexpr int kTaken = 1, kThere = 2, kBoth = 256;
  const uint32_t own = parts + 16 * (threadIdx.x % 128);
  if (turn > 0) {
    named_barrier(kTaken, kBoth);
#pragma unroll
    for (int i = 0; i < T::kSums; i += 4) store_four_sums(own + 512 * i, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
    named_arrive(kThere, kBoth);
    return;
  }
  named_arrive(kTaken, kBoth);
  named_barrier(kThere, kBoth);
#pragma unroll
  for (int i = 0; i < T::kSums; i += 4) {
    const float4 other = load_four_sums(own + 512 * i);
    acc[i] += other.x, acc[i + 1] += other.y, acc[i + 2] += other.z, acc[i + 3] += other.w;
  }
}

template <class T, bool kGroups>
__device__ __forceinline__ void multiply_tiles(Pipeline<T> pipeline, const CUtensorMap* c_map, const DeviceGemm& g,
                                               const Fp8Groups& groups, const Order& o) {
  const int group = warpgroup_of_thread() / T::kTurns, turn = warpgroup_of_thread() % T::kTurns;
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
    sum_blocks<T>(pipeline, o.blocks, group, turn, own, edge, acc);
    if constexpr (T::kTurns > 1) {
      add_turns<T>(pipeline.base + T::kBehindAt, turn, acc[0]);
      if (turn > 0) continue;
    }
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w)
      if (g.bias != nullptr) add_bias<T>(g, at.q0, acc[w]);
    if constexpr (T::kBoxes) {
      if (o.boxes) {
        if (threadIdx.x % 32 == 0) store_wait();  // the last tile's boxes may be written again
        __syncwarp();
        const int first = int(threadIdx.x) / 32 % 4 * 16 + group * T::kWaves * 64;  // row of the warp
#pragma unroll
        for (int w = 0; w < T::kWaves; ++w)
          store_boxes<T>(g, c_map, at.p0 + first + 64 * w, at.q0,
                         pipeline.base + T::kBehindAt + (first + 64 * w) * T::kQ * 2, acc[w]);
        continue;
      }
    }
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w) store_tile<T>(g, at.end, at.p0 + own + 64 * w, at.q0, acc[w]);
  }
}

#endif

template <class T, bool kGroups>
__global__ void __launch_bounds__(T::kThreads, 1)
    many_rows(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
              const __grid_constant__ CUtensorMap c_map, const __grid_constant__ DeviceGemm g,
              const __grid_constant__ Fp8Groups groups, const __grid_constant__ Order o) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  const Pipeline<T> pipeline{(shared_address(raw) + 1023) / 1024 * 1024};
  if (threadIdx.x == 0) {
    prefetch_map(&p_map);
    prefetch_map(&q_map);
    if (o.boxes) prefetch_map(&c_map);
    pipeline.init(4 * T::kGroups / T::kTurns);
  }
  __syncthreads();
  let_next_kernel_start();
  if (warpgroup_of_thread() == T::kGroups) {
    give_registers<T::kFetchRegisters>();
    int early = 0;
    if (!kGroups && !g.new_weights) early = fetch_weights<T>(pipeline, &q_map, o);
    wait_for_previous_kernel();
    fetch_tiles<T, kGroups>(pipeline, &p_map, &q_map, g, groups, o, early);
  } else {
    take_registers<T::kSumRegisters>();
    wait_for_previous_kernel();
    multiply_tiles<T, kGroups>(pipeline, &c_map, g, groups, o);
    if (T::kBoxes && threadIdx.x % 32 == 0) store_wait();
  }
#endif
}

/// Boxes that a warp of store_boxes() fills.
bool make_result_map(const DeviceGemm& g, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(g.n), cuuint64_t(g.m)}, strides[1] = {cuuint64_t(g.ldc) * 2};
  const cuuint32_t box[2] = {kBoxColumns, kBoxRows}, steps[2] = {1, 1};
  return encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, g.c, sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class T, bool kGroups>
bool launch_tile(const DeviceGemm& g, const Fp8Groups& groups, const Device& device, cudaStream_t stream,
                 cudaError_t* error) {
  CUtensorMap p_map, q_map, c_map{};
  const int64_t rows_of_b = g.n * std::max<int64_t>(groups.count, 1);
  // Rows that are not there are slow to fetch.
  const int box_rows = groups.count > 0 ? T::kP : int(std::min<int64_t>(T::kP, g.m));
  if (!make_map(g.a, g.m, g.k, g.lda, box_rows, &p_map) || !make_map(g.b, rows_of_b, g.k, g.ldb, T::kQ, &q_map))
    return false;
  const int64_t down = most_group_tiles(groups, g.m, T::kP), across = tiles_of(g.n, T::kQ);
  // Rows that the engine stores begin and end with 16 bytes.
  const bool boxes = T::kBoxes && g.element != Fp8Element::kF32 && g.n % 8 == 0 && g.ldc % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(g.c) % 16 == 0 && make_result_map(g, &c_map);
  constexpr int64_t kMostTiles = 1 << 30;
  constexpr int kDepth = 2048 / T::kP;  // so that thread blocks at work have as many rows of a as of b, or nearly
  if (down * across > kMostTiles) return false;
  const Order order{int(down), int(across), int(down * across), kDepth, int(tiles_of(g.k, kFp8Block)), box_rows, boxes};
  *error = allow_shared(reinterpret_cast<const void*>(&many_rows<T, kGroups>), device);
  if (*error != cudaSuccess) return true;
  *error = launch(many_rows<T, kGroups>, dim3(unsigned(std::min(order.tiles, device.processors))), dim3(T::kThreads),
                  size_t{T::kAllShared}, stream, true, p_map, q_map, c_map, g, groups, order);
  return true;
}

}  // namespace

bool launch_many_rows(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                      cudaStream_t stream, cudaError_t* error) {
  const auto start = [&]<int Groups, int Waves, int Q>() {
    return launch_tile<Tile<Groups, Waves, Q>, false>(g, groups, device, stream, error);
  };
  const auto start_groups = [&]<int Waves, int Q>() {
    return launch_tile<Tile<2, Waves, Q, false, 1, false>, true>(g, groups, device, stream, error);
  };
  if (groups.count > 0) {
    if (cut.p == 256) return start_groups.template operator()<2, 128>();
    return cut.q == 64 ? start_groups.template operator()<1, 64>() : start_groups.template operator()<1, 128>();
  }
  const auto start_turns = [&]<int Q, bool RowScales>() {
    return launch_tile<Tile<2, 1, Q, RowScales, 2>, false>(g, groups, device, stream, error);
  };
  if (g.b_rows == 1) {
    const auto start_row_scales = [&]<int Groups, int Waves, int Q>() {
      return launch_tile<Tile<Groups, Waves, Q, true>, false>(g, groups, device, stream, error);
    };
    if (cut.p == 64 && cut.q == 32) return start_turns.template operator()<32, true>();
    if (cut.p == 64) return cut.q == 64 && start_turns.template operator()<64, true>();
    if (cut.p == 192) return start_row_scales.template operator()<3, 1, 128>();
    return cut.q == 64 ? start_row_scales.template operator()<2, 1, 64>()
                       : start_row_scales.template operator()<2, 1, 128>();
  }
  if (cut.p == 64 && cut.q == 32) return start_turns.template operator()<32, false>();
  if (cut.p == 64 && cut.q == 128) return start_turns.template operator()<128, false>();
  if (cut.p == 64) return cut.q == 64 && start_turns.template operator()<64, false>();
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
