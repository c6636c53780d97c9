// The product of FP8 codes for many rows of a, on compute capability 9.0: docs/kernels.md#on-a-gpu.
//
// A grid that stays: each thread block takes tile after tile. Four warps fetch, always stages ahead and across tiles;
// two or three warpgroups multiply, each its own rows or, of few rows, its own blocks of K, and while one adds the sums
// of a block of K to its results the others keep the tensor cores busy. The copy engine stores results of two bytes.

#include <algorithm>

#include "kernels/cuda/fp8/many_rows_sums.cuh"
#include "kernels/cuda/fp8/tensor_maps.h"

namespace lowbit::cuda::fp8 {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A tile's sums leave; `own`: the lane's first row of it.
template <class T>
__device__ __forceinline__ void leave(const Pipeline<T>& pipeline, const CUtensorMap* c_map, const DeviceGemm& g,
                                      const Order& o, const TilePlace& at, int group, int own,
                                      float (&acc)[T::kWaves][T::kSums]) {
#pragma unroll
  for (int w = 0; w < T::kWaves; ++w)
    if (g.bias != nullptr) add_bias<T>(g, at.q0, acc[w]);
  if constexpr (T::kBoxes) {
    if (o.boxes) {
      if constexpr (T::kSingle) {
        named_barrier(1, 128 * T::kGroups);  // all have read the stages
      } else {
        if (threadIdx.x % 32 == 0) store_wait();  // the last tile's boxes may be written again
        __syncwarp();
      }
      const int first = int(threadIdx.x) / 32 % 4 * 16 + group * T::kWaves * 64;  // row of the warp
#pragma unroll
      for (int w = 0; w < T::kWaves; ++w)
        store_boxes<T>(g, c_map, at.p0 + first + 64 * w, at.q0,
                       pipeline.base + T::kResultsAt + (first + 64 * w) * T::kQ * 2, acc[w]);
      return;
    }
  }
#pragma unroll
  for (int w = 0; w < T::kWaves; ++w) store_tile<T>(g, at.end, at.p0 + own + 64 * w, at.q0, acc[w]);
}

template <class T, bool kGroups>
__device__ __forceinline__ void multiply_tiles(Pipeline<T> pipeline, const CUtensorMap* c_map, const DeviceGemm& g,
                                               const Fp8Groups& groups, const Order& o) {
  const int group = warpgroup_of_thread() / T::kTurns, turn = warpgroup_of_thread() % T::kTurns;
  const int own =
      group * T::kWaves * 64 + int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;  // of the first wave
  int tile = int(blockIdx.x);
  TilePlace at;
  BlockScales<T> b_scales;
  const auto find = [&](TilePlace& place) {
    const bool found = find_tile<T, kGroups>(g, groups, o, tile, place);
    if (T::kAhead && found) b_scales.begin(g, o, place);
    return found;
  };
  for (bool there = find(at); there;) {
    const int edge = T::kOneScale || T::kRowScales ? T::kQ : int(o.of_b.by - divided(uint32_t(at.q0), o.of_b).y);
    float acc[T::kWaves][T::kSums];
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w)
#pragma unroll
      for (int i = 0; i < T::kSums; ++i) acc[w][i] = 0;
    if constexpr (T::kAhead)
      sum_blocks_ahead<T>(pipeline, o, b_scales, group, own, edge, acc[0]);
    else
      sum_blocks<T>(pipeline, o, group, turn, own, edge, acc);
    if constexpr (T::kTurns > 1) add_turns<T>(pipeline.base + T::kResultsAt, turn, acc[0]);
    const TilePlace done = at;
    tile += int(gridDim.x);
    if (T::kAhead) there = find(at);  // scales of the next tile come while this one leaves
    if (turn == 0) leave<T>(pipeline, c_map, g, o, done, group, own, acc);
    if (!T::kAhead) there = find(at);
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
    pipeline.init(4 * T::kGroups / T::kTurns, o.engine ? 1 : 1 + 32);
  }
  __syncthreads();
  let_next_kernel_start();
  if (warpgroup_of_thread() == T::kGroups) {
    give_registers<T::kFetchRegisters>();
    int early = 0;
    if (!kGroups && !g.new_weights) early = fetch_weights<T>(pipeline, &q_map, g, o);
    wait_for_previous_kernel();
    if constexpr (!kGroups && !T::kRowScales) {
      if (o.engine) return fetch_by_engine<T>(pipeline, &p_map, &q_map, g, o, early);
    }
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

/// Rows of scales begin at multiples of 16 bytes.
bool in_sixteens(const float* scales, int64_t stride) {
  return reinterpret_cast<uintptr_t>(scales) % 16 == 0 && stride % 4 == 0;
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
  if (down * across > kMostTiles) return false;
  const int64_t blocks = tiles_of(g.k, kFp8Block);
  const bool engine = groups.count == 0 && !T::kRowScales && g.a_scales_by_column &&
                      in_sixteens(g.a_scales, g.lda_scales) &&
                      (T::kAhead || (blocks % 4 == 0 && in_sixteens(g.b_scales, g.ldb_scales)));
  const int64_t lowest = (down - 1) % T::kDepth + 1;
  const Order order{int(down),
                    int(across),
                    int(down * across),
                    KnownDivisor(T::kDepth * across),
                    KnownDivisor(lowest),
                    KnownDivisor(g.b_rows),
                    int(blocks),
                    box_rows,
                    boxes,
                    engine};
  *error = allow_shared(reinterpret_cast<const void*>(&many_rows<T, kGroups>), device);
  if (*error != cudaSuccess) return true;
  // Neighbours share rows of b. In clusters of two they are on one pair of multiprocessors, which read them together:
  // up to 1.5 % with 512 rows of a, 11 % with 128 and tiles of 64 x 64. Not measured with more.
  const int grid = std::min(order.tiles, device.processors);
  const bool pairs = !kGroups && !T::kRowScales && g.m > 64 && g.m <= 512 && grid % 2 == 0;
  *error = launch_cluster(many_rows<T, kGroups>, dim3(unsigned(grid)), dim3(T::kThreads), dim3(pairs ? 2 : 1, 1, 1),
                          size_t{T::kAllShared}, stream, true, p_map, q_map, c_map, g, groups, order);
  return true;
}

}  // namespace

bool launch_many_rows(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                      cudaStream_t stream, cudaError_t* error) {
  const bool single = tiles_of(g.m, cut.p) * tiles_of(g.n, cut.q) <= device.processors;  // a thread block has one tile
  const auto start = [&]<int Groups, int Waves, int Q>() {
    if constexpr (Q == 128)
      if (single)
        return launch_tile<Tile<Groups, Waves, Q, false, 1, Results::kInStages>, false>(g, groups, device, stream,
                                                                                        error);
    return launch_tile<Tile<Groups, Waves, Q>, false>(g, groups, device, stream, error);
  };
  const auto start_groups = [&]<int Waves, int Q>() {
    return launch_tile<Tile<2, Waves, Q, false, 1, Results::kFromRegisters>, true>(g, groups, device, stream, error);
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
