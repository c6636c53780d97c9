// The product of FP8 codes for few rows of a, on compute capability 9.0: docs/kernels.md#on-a-gpu.
//
// Operands are exchanged: rows of b are wgmma's 64 rows, so that no tile is wider than a has rows. Thread blocks of a
// cluster share the columns of K, so that all multiprocessors fetch weights; their sums are added through the cluster's
// shared memory in the order of K.

#include <algorithm>

#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/groups.cuh"
#include "kernels/cuda/fp8/pipeline.cuh"
#include "kernels/cuda/fp8/tensor_maps.h"

namespace lowbit::cuda::fp8 {
namespace {

constexpr int kMostSplit = 8;

/// 64 rows of b, each with a scale of its own (RowScales) or not, by Q_ of a; Turns warpgroups take a stage in turn,
/// each with sums of its own. Blocks thread blocks on a multiprocessor.
template <int Turns, int Q_, int Blocks, bool RowScales>
struct Tile : RingLayout<64, Q_, Q_, RowScales ? 64 : 2, (227 << 10) / Blocks - 1024> {
  static constexpr bool kRowScales = RowScales;
  static constexpr int kTurns = Turns, kWarps = 4 * kTurns, kThreads = 32 * kWarps + 32, kBlocks = Blocks;
  static constexpr int kSums = Q_ / 2;    // of a lane
  static constexpr int kStride = 64 + 4;  // of the parts, a row for each row of a: no two lanes in one bank
  static constexpr int kPart = kStride * Q_;
  static_assert(kTurns * kPart * 4 <= Tile::kScalesAt);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The thread block's place in its cluster.
struct Member {
  int rank, ranks;
};

/// Codes of b for the first stages; fetch() completes them. By one thread.
template <class T>
__device__ __forceinline__ void fetch_weights(Pipeline<T> pipeline, const CUtensorMap* p_map, int row0, int first,
                                              int count) {
  for (int b = first; b < first + count; ++b, pipeline.next()) {
    barrier_expect(pipeline.full(), T::kCodes);
    box_load(pipeline.p(), p_map, b * 128, row0, pipeline.full());
  }
}

/// `early`: stages whose weights are under way already.
template <class T>
__device__ __forceinline__ void fetch(Pipeline<T> pipeline, const CUtensorMap* p_map, const CUtensorMap* q_map,
                                      const DeviceGemm& g, int p0, int q0, int group, int first, int count, int early) {
  const ScaleCopies<T> scales(g, q0, p0, group);
  const int row0 = int(group * g.n) + p0;  // of b
  for (int b = first; b < first + count; ++b, pipeline.next()) {
    barrier_wait(pipeline.empty(), pipeline.phase ^ 1);
    if (threadIdx.x % 32 == 0) {
      if (b >= first + early) fetch_weights<T>(pipeline, p_map, row0, b, 1);
      box_load(pipeline.q(), q_map, b * 128, q0, pipeline.full());
    }
    __syncwarp();
    scales.copy(pipeline.scales(), b);
    copies_arrive(pipeline.full());
  }
}

template <class T>
__device__ __forceinline__ void sum_blocks(Pipeline<T> pipeline, int count, float (&acc)[T::kSums]) {
  const int turn = warpgroup_of_thread();
  const int row = int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4;  // of b, and the one eight behind it
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) acc[i] = 0;
  for (int b = 0; b < count; ++b, pipeline.next()) {
    if (T::kTurns > 1 && b % T::kTurns != turn) continue;
    float s[T::kSums];
    barrier_wait(pipeline.full(), pipeline.phase);
    const uint64_t p = tile_descriptor(pipeline.p()), q = tile_descriptor(pipeline.q());
    multiply_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply(s, p + 2 * step, q + 2 * step, step > 0);
    multiply_commit();
    float scales[T::kQ / 4];
    const uint32_t scales_of_b = pipeline.scales() + 4 * T::kQ;
    const float of_b = T::kRowScales ? 1.0f : load_scale(scales_of_b);
    const float of_rows[2] = {T::kRowScales ? load_scale(scales_of_b + 4 * row) : 1.0f,
                              T::kRowScales ? load_scale(scales_of_b + 4 * row + 32) : 1.0f};
#pragma unroll
    for (int j = 0; j < T::kQ / 8; ++j) {
      const float2 of_a = load_two_scales(pipeline.scales() + 32 * j + 8 * (threadIdx.x % 4));
      scales[2 * j] = of_a.x * of_b, scales[2 * j + 1] = of_a.y * of_b;
    }
    multiply_wait();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(pipeline.empty());
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) {
      const float scale = scales[i / 4 * 2 + i % 2];
      if constexpr (T::kRowScales)
        acc[i] = __fmaf_rn(s[i] * scale, of_rows[i / 2 % 2], acc[i]);
      else
        acc[i] = __fmaf_rn(s[i], scale, acc[i]);
    }
  }
}

__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ float4 load_part(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// Columns [j, j + 4) of row i, which is there.
__device__ __forceinline__ void store_four(const DeviceGemm& g, int64_t i, int64_t j, float4 v) {
  const int bytes = g.element == Fp8Element::kF32 ? 16 : 8;
  if (g.ldc % 4 != 0 || j + 4 > g.n || reinterpret_cast<uintptr_t>(g.c) % bytes != 0) {
    store_one(g, i + 1, i, j, v.x), store_one(g, i + 1, i, j + 1, v.y);
    store_one(g, i + 1, i, j + 2, v.z), store_one(g, i + 1, i, j + 3, v.w);
    return;
  }
  const int64_t at = i * g.ldc + j;
  if (g.element == Fp8Element::kF32)
    *reinterpret_cast<float4*>(static_cast<float*>(g.c) + at) = v;
  else
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(g.c) + at) =
        uint2{two_halves(g.element, v.x, v.y), two_halves(g.element, v.z, v.w)};
}

/// The sums of all thread blocks that share these columns, added in the order of their ranks and turns, to memory. Each
/// takes its share.
template <class T>
__device__ __forceinline__ void add_parts(const DeviceGemm& g, uint32_t base, const Member& me, int p0, int q0,
                                          int64_t end) {
  constexpr int kFours = T::kP / 4;
  const int all = kFours * int(min(int64_t{T::kQ}, end - q0));
  for (int at = me.rank * T::kThreads + int(threadIdx.x); at < all; at += me.ranks * T::kThreads) {
    const int i = at / kFours, j = at % kFours * 4;
    const uint32_t from = base + 4 * (i * T::kStride + j);
    float4 part[kMostSplit][T::kTurns];
#pragma unroll
    for (int r = 0; r < kMostSplit; ++r)
#pragma unroll
      for (int t = 0; t < T::kTurns; ++t)
        if (r < me.ranks) part[r][t] = load_part(shared_of(from + 4 * t * T::kPart, r));
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < kMostSplit; ++r)
#pragma unroll
      for (int t = 0; t < T::kTurns; ++t)
        if (r < me.ranks) sum.x += part[r][t].x, sum.y += part[r][t].y, sum.z += part[r][t].z, sum.w += part[r][t].w;
    const int column = p0 + j;
    if (g.bias != nullptr) {
      if (column < g.n) sum.x += g.bias[column];
      if (column + 1 < g.n) sum.y += g.bias[column + 1];
      if (column + 2 < g.n) sum.z += g.bias[column + 2];
      if (column + 3 < g.n) sum.w += g.bias[column + 3];
    }
    store_four(g, q0 + i, column, sum);
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks)
    skinny(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
           const __grid_constant__ DeviceGemm g, const __grid_constant__ Fp8Groups groups, int blocks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023) / 1024 * 1024;
  const Member me{int(blockIdx.x), int(gridDim.x)};
  const int p0 = blockIdx.y * T::kP;
  const int first = int(int64_t{blocks} * me.rank / me.ranks);
  const int count = int(int64_t{blocks} * (me.rank + 1) / me.ranks) - first;
  const Pipeline<T> pipeline{base};
  if (threadIdx.x == 0) {
    prefetch_map(&p_map);
    prefetch_map(&q_map);
    pipeline.init(4);
  }
  __syncthreads();
  let_next_kernel_start();
  const int early = g.new_weights || groups.count > 0 ? 0 : min(count, T::kStages);
  if (threadIdx.x == 32 * T::kWarps) fetch_weights<T>(pipeline, &p_map, p0, first, early);
  wait_for_previous_kernel();
  TileOfGroup rows{0, g.m, 0, int(blockIdx.z)};
  if (groups.count > 0) rows = tile_of_groups<T::kQ>(groups, g.m, blockIdx.z, 1);
  if (!rows.exists()) return;  // nor for the other blocks of the cluster
  const int q0 = int(rows.first) + rows.tile * T::kQ;
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  float acc[T::kSums];
  if (warp == T::kWarps)
    fetch<T>(pipeline, &p_map, &q_map, g, p0, q0, rows.group, first, count, early);
  else
    sum_blocks<T>(pipeline, count, acc);
  __syncthreads();  // nothing is under way to the pipeline, and nobody reads it
  float* const parts = reinterpret_cast<float*>(raw + (base - shared_address(raw)));
  const int row = warp % 4 * 16 + lane / 4, turn = warp / 4;
  if (warp < T::kWarps)
#pragma unroll
    for (int i = 0; i < T::kSums; ++i)
      parts[turn * T::kPart + (i / 4 * 8 + 2 * (lane % 4) + i % 2) * T::kStride + row + i / 2 % 2 * 8] = acc[i];
  if (me.ranks == 1) {
    __syncthreads();
    add_parts<T>(g, base, me, p0, q0, rows.last);
    return;
  }
  cluster_meet();
  add_parts<T>(g, base, me, p0, q0, rows.last);
  cluster_meet();  // others read this block's shared memory
#endif
}

template <int Turns, int Q, int Blocks, bool RowScales>
bool launch_tile(const DeviceGemm& g, const Fp8Groups& groups, int split, const Device& device, cudaStream_t stream,
                 cudaError_t* error) {
  using T = Tile<Turns, Q, Blocks, RowScales>;
  const int64_t p_tiles = tiles_of(g.n, T::kP), q_tiles = most_group_tiles(groups, g.m, T::kQ);
  constexpr int64_t kMostTiles = 65535;
  if (p_tiles > kMostTiles || q_tiles > kMostTiles || split < 1 || split > kMostSplit) return false;
  CUtensorMap p_map, q_map;
  if (!make_map(g.b, g.n * std::max<int64_t>(groups.count, 1), g.k, g.ldb, T::kP, &p_map) ||
      !make_map(g.a, g.m, g.k, g.lda, T::kQ, &q_map))
    return false;
  *error = allow_shared(reinterpret_cast<const void*>(&skinny<T>), device);
  if (*error != cudaSuccess) return true;
  *error = launch_cluster(skinny<T>, dim3(unsigned(split), unsigned(p_tiles), unsigned(q_tiles)), dim3(T::kThreads),
                          dim3(unsigned(split)), size_t{T::kShared}, stream, true, p_map, q_map, g, groups,
                          int(tiles_of(g.k, kFp8Block)));
  return true;
}

/// Turns: with one or two thread blocks on a multiprocessor; three have no room for more than one.
template <int Turns, int Q, bool RowScales>
bool launch_blocks(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                   cudaStream_t stream, cudaError_t* error) {
  if (cut.blocks == 1) return launch_tile<Turns, Q, 1, RowScales>(g, groups, cut.split, device, stream, error);
  if (cut.blocks == 2) return launch_tile<Turns, Q, 2, RowScales>(g, groups, cut.split, device, stream, error);
  return cut.blocks == 3 && launch_tile<1, Q, 3, RowScales>(g, groups, cut.split, device, stream, error);
}

template <bool RowScales>
bool launch_rows(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                 cudaStream_t stream, cudaError_t* error) {
  switch (cut.q) {
    case 8:
      return launch_blocks<1, 8, RowScales>(g, groups, cut, device, stream, error);
    case 16:
      return launch_blocks<1, 16, RowScales>(g, groups, cut, device, stream, error);
    case 32:
      return launch_blocks<2, 32, RowScales>(g, groups, cut, device, stream, error);
    default:
      return false;
  }
}

}  // namespace

bool launch_skinny(const DeviceGemm& g, const Fp8Groups& groups, const Cut& cut, const Device& device,
                   cudaStream_t stream, cudaError_t* error) {
  return g.b_rows == 1 ? launch_rows<true>(g, groups, cut, device, stream, error)
                       : launch_rows<false>(g, groups, cut, device, stream, error);
}

}  // namespace lowbit::cuda::fp8
