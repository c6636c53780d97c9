// The product of FP8 codes in blocks on the tensor cores of compute capability 9.0: docs/kernels.md#on-a-gpu.
//
// P is the operand that gives wgmma's 64 rows, Q the one that gives its columns. With many rows of a, P is a and Q is b; with few, b is
// P, so that no tile is wider than a has rows, and thread blocks of a cluster share the columns of K.

#include <algorithm>

#include "base/float.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace lowbit::cuda {
namespace {

using namespace fp8;  // NOLINT

/// kP rows of P by Q_ rows of Q; kSwapped: P is b.
template <int Groups, int Q_, bool Swapped>
struct Tile {
  static constexpr int kGroups = Groups, kP = 64 * kGroups, kQ = Q_, kThreads = 128 * kGroups + 32;
  static constexpr bool kSwapped = Swapped;
  static constexpr int kStage = (kP + kQ) * 128, kBudget = Swapped ? 100 << 10 : 200 << 10;
  static constexpr int kStages = kBudget / kStage, kRing = kStages * kStage;
  static constexpr int kShared = 1024 + kRing + 16 * kStages;
  static constexpr int kSums = kQ / 2;  // of a lane
  static_assert(kSums * 128 * kGroups == kP * kQ && kStages > 1);
  static_assert(kP * kQ * 4 <= kRing || !Swapped);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ float a_scale(const Fp8Gemm& g, int64_t row, int64_t block) {
  if (row >= g.m) return 0.0f;
  return g.a_scales[g.a_scales_by_column ? block * g.lda_scales + row : row * g.lda_scales + block];
}
__device__ __forceinline__ float b_scale(const Fp8Gemm& g, int64_t row, int64_t block) {
  return g.b_scales[min(row, g.n - 1) / g.b_rows * g.ldb_scales + block];
}
__device__ __forceinline__ void store_one(const Fp8Gemm& g, int64_t i, int64_t j, float v) {
  if (i >= g.m || j >= g.n) return;
  const int64_t at = i * g.ldc + j;
  if (g.element == Fp8Element::kF32) {
    static_cast<float*>(g.c)[at] = v;
  } else {
    static_cast<uint16_t*>(g.c)[at] = g.element == Fp8Element::kF16 ? f16_nearest(v) : f32_to_bf16(v);
  }
}
/// Columns j and j + 1; j is even.
__device__ __forceinline__ void store_pair(const Fp8Gemm& g, int64_t i, int64_t j, float v, float w) {
  if (g.element == Fp8Element::kF32 || g.ldc % 2 != 0 || j + 1 >= g.n || i >= g.m ||
      reinterpret_cast<uintptr_t>(g.c) % 4 != 0) {
    store_one(g, i, j, v);
    store_one(g, i, j + 1, w);
    return;
  }
  const bool f16 = g.element == Fp8Element::kF16;
  const uint32_t low = f16 ? f16_nearest(v) : f32_to_bf16(v), high = f16 ? f16_nearest(w) : f32_to_bf16(w);
  *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(g.c) + i * g.ldc + j) = low | high << 16;
}

template <class T>
struct Ring {
  uint32_t base;
  int stage = 0;
  uint32_t phase = 0;
  __device__ uint32_t p() const { return base + stage * T::kStage; }
  __device__ uint32_t q() const { return p() + T::kP * 128; }
  __device__ uint32_t full() const { return base + T::kRing + 16 * stage; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

template <class T>
__device__ __forceinline__ void load_blocks(Ring<T> ring, const CUtensorMap* p_map, const CUtensorMap* q_map, int p0,
                                            int q0, int first, int count) {
  for (int b = first; b < first + count; ++b, ring.next()) {
    barrier_wait(ring.empty(), ring.phase ^ 1);
    barrier_expect(ring.full(), T::kStage);
    box_load(ring.p(), p_map, b * 128, p0, ring.full());
    box_load(ring.q(), q_map, b * 128, q0, ring.full());
  }
}

/// What a lane multiplies its sums of a block with: for its two rows of P, or for its columns of Q.
template <class T>
struct Scales {
  float rows[2], columns[T::kSwapped ? T::kQ / 4 : 1];
  __device__ __forceinline__ void load(const Fp8Gemm& g, int row, int q0, int block) {
    if constexpr (T::kSwapped) {
      rows[0] = b_scale(g, row, block);
#pragma unroll
      for (int j = 0; j < T::kQ / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          columns[2 * j + i] = a_scale(g, q0 + 8 * j + 2 * (threadIdx.x % 4) + i, block) * rows[0];
    } else {
      const float b = b_scale(g, q0, block);
      rows[0] = a_scale(g, row, block) * b;
      rows[1] = a_scale(g, row + 8, block) * b;
    }
  }
  __device__ __forceinline__ float of(int i) const {
    if constexpr (T::kSwapped) return columns[i / 4 * 2 + i % 2];
    return rows[i / 2 % 2];
  }
};

template <class T>
__device__ __forceinline__ void sum_blocks(Ring<T> ring, const Fp8Gemm& g, int row, int q0, int first, int count,
                                           float (&acc)[T::kSums]) {
  const int group = warpgroup_of_thread();
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) acc[i] = 0;
  for (int b = first; b < first + count; ++b, ring.next()) {
    Scales<T> scales;
    scales.load(g, row, q0, b);
    float s[T::kSums];
    barrier_wait(ring.full(), ring.phase);
    const uint64_t p = tile_descriptor(ring.p() + group * 64 * 128), q = tile_descriptor(ring.q());
    multiply_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply(s, p + 2 * step, q + 2 * step, step > 0);
    multiply_commit();
    multiply_wait();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty());
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) acc[i] = __fmaf_rn(s[i], scales.of(i), acc[i]);
  }
}

__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The sums of all thread blocks of the cluster, added in the order of their columns of K, to memory. Each takes its share.
template <class T>
__device__ __forceinline__ void add_parts(const Fp8Gemm& g, uint32_t base, int rank, int ranks, int p0, int q0) {
  constexpr int kAll = T::kP * T::kQ;
  for (int at = rank * T::kThreads + int(threadIdx.x); at < kAll; at += ranks * T::kThreads) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) {
      float part;
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(part) : "r"(shared_of(base + 4 * at, r)) : "memory");
      sum = __fadd_rn(sum, part);
    }
    store_one(g, q0 + at / T::kP, p0 + at % T::kP, sum);
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kSwapped ? 2 : 1)
    multiply_tiles(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ Fp8Gemm g, int blocks, int split_blocks) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023) / 1024 * 1024;
  const int rank = blockIdx.x, p0 = blockIdx.y * T::kP, q0 = blockIdx.z * T::kQ;
  const int first = rank * split_blocks, count = max(0, min(split_blocks, blocks - first));
  Ring<T> ring{base};
  if (threadIdx.x == 0) {
    for (Ring<T> at{base}; at.phase == 0; at.next()) {
      barrier_init(at.full(), 1);
      barrier_init(at.empty(), 4 * T::kGroups);
    }
    barrier_init_done();
    fence_async();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4;  // of the tile; 64 to a warpgroup
  float acc[T::kSums];
  if (warp == 4 * T::kGroups) {
    if (lane == 0) load_blocks<T>(ring, &p_map, &q_map, p0, q0, first, count);
    __syncwarp();
  } else {
    sum_blocks<T>(ring, g, p0 + row, q0, first, count, acc);
  }
  if constexpr (!T::kSwapped) {
    if (warp == 4 * T::kGroups) return;
#pragma unroll
    for (int i = 0; i < T::kSums; i += 2)
      store_pair(g, p0 + row + i / 2 % 2 * 8, q0 + i / 4 * 8 + 2 * (lane % 4), acc[i], acc[i + 1]);
  } else {
    __syncthreads();  // nothing is under way to the ring, and nobody reads it
    float* const parts = reinterpret_cast<float*>(raw + (base - shared_address(raw)));
    if (warp < 4 * T::kGroups)
#pragma unroll
      for (int i = 0; i < T::kSums; ++i)
        parts[(i / 4 * 8 + 2 * (lane % 4) + i % 2) * T::kP + row + i / 2 % 2 * 8] = acc[i];
    cluster_meet();
    add_parts<T>(g, base, rank, int(gridDim.x), p0, q0);
    cluster_meet();  // others read this block's shared memory
  }
#endif
}

/// Boxes of `rows` rows by 128 codes; zeros outside.
bool make_map(const uint8_t* codes, int64_t rows, int64_t columns, int64_t ld, int box_rows, CUtensorMap* map) {
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {cuuint64_t(ld)};
  const cuuint32_t box[2] = {128, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(codes), sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int64_t tiles_of(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

template <class T>
bool launch_tiles(const Fp8Gemm& g, const Device& device, cudaStream_t stream, cudaError_t* error) {
  const int64_t p_rows = T::kSwapped ? g.n : g.m, q_rows = T::kSwapped ? g.m : g.n;
  const int64_t p_tiles = tiles_of(p_rows, T::kP), q_tiles = tiles_of(q_rows, T::kQ);
  constexpr int64_t kMostTiles = 65535;
  if (p_tiles > kMostTiles || q_tiles > kMostTiles) return false;
  CUtensorMap p_map, q_map;
  const bool made =
      T::kSwapped ? make_map(g.b, g.n, g.k, g.ldb, T::kP, &p_map) && make_map(g.a, g.m, g.k, g.lda, T::kQ, &q_map)
                  : make_map(g.a, g.m, g.k, g.lda, T::kP, &p_map) && make_map(g.b, g.n, g.k, g.ldb, T::kQ, &q_map);
  if (!made) return false;
  const auto blocks = static_cast<int>(tiles_of(g.k, kFp8Block));
  int split = 1;
  constexpr int kMostSplit = 8, kLeastBlocks = 4;
  if (T::kSwapped)  // two thread blocks stay on a multiprocessor
    while (split < kMostSplit && 2 * split * p_tiles * q_tiles <= 2 * device.processors &&
           blocks >= 2 * split * kLeastBlocks)
      split *= 2;
  *error = allow_shared(reinterpret_cast<const void*>(&multiply_tiles<T>), device);
  if (*error != cudaSuccess) return true;
  *error = launch_cluster(multiply_tiles<T>, dim3(unsigned(split), unsigned(p_tiles), unsigned(q_tiles)),
                          dim3(T::kThreads), dim3(unsigned(split)), size_t{T::kShared}, stream, false, p_map, q_map, g,
                          blocks, int(tiles_of(blocks, split)));
  return true;
}

bool in_sixteens(const void* p, int64_t stride) { return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 16 == 0; }

}  // namespace

bool gemm_fp8_wgmma(const Fp8Gemm& g, cudaStream_t stream, cudaError_t* error) {
#if defined(LOWBIT_WGMMA)
  Device device;
  if (current_device(&device) != cudaSuccess || device.arch < 90 || device.arch >= 100 || encode_tiled() == nullptr)
    return false;
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  if (g.k == 0 || g.k > kLargest || g.m > kLargest || g.n > kLargest || g.b_rows % kFp8Block != 0) return false;
  if (!in_sixteens(g.a, g.lda) || !in_sixteens(g.b, g.ldb)) return false;
  if (g.m <= 16) return launch_tiles<Tile<1, 16, true>>(g, device, stream, error);
  if (g.m <= 128) return launch_tiles<Tile<1, 64, true>>(g, device, stream, error);
  return launch_tiles<Tile<2, 128, false>>(g, device, stream, error);
#else
  (void)g, (void)stream, (void)error;
  return false;
#endif
}

}  // namespace lowbit::cuda
