#pragma once
// Split-K for 2 to 16 tokens of 16-bit x (sm_90a): mma.sync by warps that share nothing until their sums meet. A block
// is 64 rows of weights and a part of K; each of its eight warps takes all rows and its share of that part, so that x
// goes from shared memory to registers once. Weights lie where they arrive, before the previous kernel has ended; x
// comes behind it, in two stages of each warp, and a stage is asked for again behind the products of its x. Two blocks
// fit a multiprocessor; the next launch's weights are let go behind the first x, which they held up
// (docs/lab/gpu-few-tokens.md).
//
// Shapes:   k a multiple of 64, tokens at multiples of 16 bytes, groups of multiples of 64 columns or one.
// Numerics: one fma with the scale per 64 columns, ascending; parts of warps and blocks added in ascending order.
// Limits:   the path from the end of the previous kernel to the last output: x, the products, the exchange.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/primitives/ptx.cuh"
#include "kernels/cuda/gemm/schedule/split_k.h"

namespace lowbit::cuda {

template <GemmActivation X_, int Bits_>
struct SplitKHalfTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kThreads = 32 * kSplitKWarps;
  static constexpr int kXBlock = kSplitKTokens * 128,
                       kQuads = 8;  // of a lane: 4 tiles of 16 rows of weights, 2 of 8 tokens
  using Order = FragmentOrder<kBits, 2>;
  static constexpr int kWords = Order::kLaneWords;
  static_assert(kWords <= 2);
};

/// A warp's part of K.
template <class T>
struct SplitKWarp {
  uint32_t base;
  int warp, first, count;         // blocks of K
  uint32_t weights, x, barriers;  // shared addresses
  __device__ SplitKWarp(const GemmArgs& p, uint32_t base_, int rank)
      : base(base_), warp(__shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0)) {
    first = rank * p.split_blocks + warp * p.depth_blocks;
    count = max(0, min(p.depth_blocks, min(p.k_blocks, (rank + 1) * p.split_blocks) - first));
    weights = base + p.weights_at + warp * p.depth_blocks * T::Order::kPackBytes;
    x = base + warp * (kSplitKXStages * T::kXBlock);
    barriers = base + p.barriers_at + 8 * (1 + warp * p.depth_blocks);
  }
  __device__ uint32_t barrier(int i) const { return barriers + 8 * i; }
  __device__ uint32_t x_stage(int i) const { return x + i % kSplitKXStages * T::kXBlock; }
  /// By one lane: block i of x.
  __device__ void ask_x(const CUtensorMap* map, int i) const {
    barrier_expect(barrier(i), T::kXBlock);
    slab_load(x_stage(i), map, 0, 0, first + i, barrier(i));
  }
  /// By one lane: the weights of all blocks.
  __device__ void ask_weights(const GemmArgs& p, int pack) const {
    constexpr int kBytes = T::Order::kPackBytes;
    const uint8_t* from = p.tiles + pack_index(pack, first, p.k_blocks) * kBytes;
#pragma unroll 1
    for (int i = 0; i < count; ++i, from += kPanelPacks * kBytes) {
      barrier_expect(barrier(i), kBytes);
      bulk_load(weights + i * kBytes, from, kBytes, barrier(i));
    }
  }
};

/// Scales of a lane's rows, from block of K to block of K.
struct SplitKScales {
  const float* at;
  int left, per, stride;
  /// All of the warp's blocks: to the L2.
  __device__ SplitKScales(const GemmArgs& p, int n0, int first, int count) : per(p.group_blocks), stride(p.n_padded) {
    const bool many = p.groups > 1;
    const int lane = threadIdx.x & 31, group = many ? first / per : 0,
              groups = many ? (first + count - 1) / per + 1 : 0;
#pragma unroll 1
    for (int g = group + lane / 2; g < groups; g += 16)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p.scales + int64_t(g) * stride + n0 + 32 * (lane & 1)));
    left = many ? per - (first - group * per) : 1 << 30;
    at = p.scales + int64_t(group) * stride + n0 + lane / 4 * 2;
  }
  __device__ void next() {
    const bool end = --left == 0;
    at += end ? stride : 0, left = end ? per : left;
  }
  __device__ float2 load(int tile) const { return __ldg(reinterpret_cast<const float2*>(at + 16 * tile)); }
};

/// acc[tile]: sums of rows n0 + 16 tile + 2 g, + 1 and all tokens, over the warp's part of K.
template <class T>
__device__ __forceinline__ void split_k_sum_half(const SplitKWarp<T>& at, const GemmArgs& p, const CUtensorMap* map,
                                                 SplitKScales scales, float2 (&s)[4], float (&acc)[4][8]) {
  constexpr int kWordBytes = 4 * T::kWords, kPackBytes = T::Order::kPackBytes;
  // ldmatrix: lane l gives row l % 8 + 8 (l / 16) and 16 bytes l / 8 % 2 of a step; rows of 128 bytes, swizzled.
  const int lane = threadIdx.x & 31, row = (lane & 7) | (lane >> 1 & 8), chunk = lane >> 3 & 1;
  uint32_t from_x = at.x + row * 128 + ((chunk ^ (row & 7)) << 4);
  uint32_t words = at.weights + lane * kWordBytes;
  static_assert(kSplitKXStages == 2);
  int turn = T::kXBlock;
#pragma unroll 1
  for (int i = 0; i < at.count; ++i) {
    barrier_wait(at.barrier(i), 0);
    uint32_t x[kStepsPerPack][4];
#pragma unroll
    for (int step = 0; step < kStepsPerPack; ++step) load_matrices(x[step], from_x ^ (step << 5));
    if (i == 0) let_next_kernel_start();
    scales.next();
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        uint32_t w[2], a[8];
        const uint32_t from = words + b * (kPackLanes * kWordBytes) + tile * (32 * kWordBytes);
        if constexpr (T::kWords == 2)
          asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(from));
        else
          asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(from));
        decode<T::X, T::kBits>(w, p.half_zero, a);
#pragma unroll
        for (int step = 0; step < kStepsPerBatch; ++step) {
          const uint32_t* const of_x = x[kStepsPerBatch * b + step];
          mma<T::X>(d, a + 4 * step, of_x[0], of_x[1]);
          mma<T::X>(d + 4, a + 4 * step, of_x[2], of_x[3]);
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[tile][j] = __fmaf_rn(d[j], j & 2 ? s[tile].y : s[tile].x, acc[tile][j]);
      if (i + 1 < at.count) s[tile] = scales.load(tile);
    }
    if (i + kSplitKXStages < at.count) {
      fence_async();  // ldmatrix reads late: without, the next x was there before some of them
      __syncwarp();
      if (elected()) at.ask_x(map, i + kSplitKXStages);
    }
    words += kPackBytes;
    from_x += turn, turn = -turn;
  }
}

/// Sums meet. Lanes have them in quads, {row n, n + 1} x {row m, m + 1}. Warp i of a block adds quad i of its warps,
/// which they leave where their x was; blocks of a cluster finish an equal number of quads each, whose parts the others
/// send there.
template <class T>
struct SplitKReduction {
  uint32_t base, barrier, parts;
  int rank, split, share;
  __device__ SplitKReduction(const GemmArgs& p, uint32_t base_, int rank_)
      : base(base_), barrier(base_ + p.barriers_at), parts(base_ + p.parts_at), rank(rank_), split(p.split) {
    share = T::kQuads >> __popc(split - 1);
  }
  __device__ void expect() const {
    barrier_init(barrier, 1);
    barrier_expect(barrier, (split - 1) * share * 512);
  }
  __device__ static float4 load_quad(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from));
    return v;
  }
  __device__ static float4 added(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
  }
  /// Quad `warp` of the block's sums.
  __device__ float4 block_sum(const SplitKWarp<T>& at, const float (&acc)[4][8]) const {
    constexpr int kWarpBytes = kSplitKXStages * T::kXBlock;
    static_assert(T::kQuads * 512 <= kWarpBytes && T::kQuads == kSplitKWarps);
    const uint32_t lane_at = (threadIdx.x & 31) * 16;
    __syncwarp();
#pragma unroll
    for (int quad = 0; quad < T::kQuads; ++quad) {
      const float* const v = &acc[quad / 2][4 * (quad % 2)];
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at.x + quad * 512 + lane_at), "f"(v[0]), "f"(v[1]),
                   "f"(v[2]), "f"(v[3])
                   : "memory");
    }
    __syncthreads();
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint32_t from = base + at.warp * 512 + lane_at;
#pragma unroll
    for (int warp = 0; warp < kSplitKWarps; ++warp) sum = added(sum, load_quad(from + warp * kWarpBytes));
    return sum;
  }
  /// True for the warps that finish a quad of the tile: sum is all of it then.
  __device__ bool join(int warp, float4& sum) const {
    const int owner = warp >> __popc(share - 1), bytes = share * 512;
    const uint32_t slot = parts + (warp & (share - 1)) * 512 + (threadIdx.x & 31) * 16;
    if (owner != rank) {
      send_quad(shared_of(slot + (rank - (rank > owner)) * bytes, owner), sum, shared_of(barrier, owner));
      return false;
    }
    barrier_wait(barrier, 0);
    float4 all = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int from = 0; from < split; ++from)
      all = added(all, from == rank ? sum : load_quad(slot + (from - (from > rank)) * bytes));
    sum = all;
    return true;
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 2)
    gemm_split_k_half(const __grid_constant__ CUtensorMap map, const __grid_constant__ GemmArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int rank = blockIdx.x & (p.split - 1), tile = blockIdx.x >> __popc(p.split - 1), n0 = tile * kPackRows;
  const SplitKReduction<T> join(p, base, rank);
  if (threadIdx.x == 0) {
    join.expect();
    barrier_init_done();
  }
  cluster_arrive();
  if (tile >= p.n_tiles) {  // only there so that launches spread evenly over the multiprocessors
    cluster_wait();
    wait_for_previous_kernel();
    return;
  }
  const SplitKWarp<T> at(p, base, rank);
  if (elected()) {
#pragma unroll 1
    for (int i = 0; i < at.count; ++i) barrier_init(at.barrier(i), 2);  // weights, x
    barrier_init_done();
    fence_async();
    at.ask_weights(p, tile);
    prefetch_map(&map);
  }
  __syncwarp();
  const SplitKScales scales(p, n0, at.first, at.count);
  float2 s[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) s[i] = at.count > 0 ? scales.load(i) : float2{0.0f, 0.0f};
  // The output that this lane finishes, if its warp's quad is this block's.
  const int n = n0 + 16 * (at.warp / 2) + (threadIdx.x & 31) / 4 * 2, m0 = 8 * (at.warp % 2);
  const float2 bias = bias_pair(p, n);
  cluster_wait();
  wait_for_previous_kernel();
  if (elected())
#pragma unroll
    for (int j = 0; j < kSplitKXStages; ++j)
      if (j < at.count) at.ask_x(&map, j);
  __syncwarp();
  float acc[4][8];
#pragma unroll
  for (int j = 0; j < 32; ++j) acc[j / 8][j % 8] = 0.0f;
  split_k_sum_half<T>(at, p, &map, scales, s, acc);
  float4 sum = join.block_sum(at, acc);
  if (!join.join(at.warp, sum)) return;
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
  finish<T::X, 8>(
      p, n, m0, bias, [&](int i) { return values[i]; }, [](int, int) { return 1.0f; });
#endif
}

template <class T>
constexpr WgmmaKernel split_k_half_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&gemm_split_k_half<T>),
          name,
          T::kThreads,
          kSplitKTokens,
          1,
          int(SplitKSums::kScaled),
          0,
          0,
          T::kQuads,
          2};
}

}  // namespace lowbit::cuda
