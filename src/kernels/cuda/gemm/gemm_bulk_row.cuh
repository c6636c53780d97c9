#pragma once
// The sm_90a pipeline for one row of 16-bit x and many rows of weights. A block is 64 rows of weights and all of K, its four
// warpgroups share K; bulk copies bring weights, most of them before the previous kernel has ended, since two blocks fit a
// multiprocessor.
//
// Shapes:   k a multiple of 128; groups of multiples of 128 columns, or one; x 16-byte aligned.
// x:        as in gemm_one_row.cuh: [block of K][lane t][word].
// Numerics: as gemm_one_row.cuh: one fma with the scale per 128 columns; parts of K added in ascending order.
// Limits:   memory; behind the previous kernel decoding, about 110 instructions for 16 rows by 128 columns.

#include "kernels/cuda/gemm/bulk_row.h"
#include "kernels/cuda/gemm/fragments.cuh"
#include "kernels/cuda/gemm/mma.cuh"
#include "kernels/cuda/gemm/ptx.cuh"

namespace lowbit::cuda {

template <GemmActivation X_, int Bits_>
struct BulkRow {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kThreads = 128 * kBulkRowDepth;
  using Order = FragmentOrder<kBits, 2>;
  static constexpr int kWords = Order::kLaneWords, kUnitBytes = Order::kUnitBytes;
  static constexpr int kPlace = kBulkRowCopy * kUnitBytes;
  static_assert(kWords == 2);  // 4 bits: a lane's words of a batch have room for two sums
};

/// A warpgroup's share of K in copies of kBulkRowCopy blocks; they take turns in kBulkRowPlaces places.
template <class T>
struct BulkRowLane {
  const GemmArgs& p;
  uint32_t base, barriers;
  int depth, first, count;  // blocks of K
  __device__ BulkRowLane(const GemmArgs& args, uint32_t base_)
      : p(args), base(base_), depth(warpgroup_of_thread()), first(depth * p.depth_blocks) {
    count = max(0, min(p.depth_blocks, p.unit_blocks - first));
    barriers = base + p.barriers_at + 8 * kBulkRowPlaces * depth;
  }
  __device__ uint32_t place(int turn) const { return p.weights_at + (depth * kBulkRowPlaces + turn) * T::kPlace; }
  /// By one thread: copy `nth` to place `turn`.
  __device__ void ask(int nth, int turn) const {
    const int block = nth * kBulkRowCopy, blocks = min(kBulkRowCopy, count - block);
    if (blocks <= 0) return;
    const uint32_t barrier = barriers + 8 * turn;
    barrier_expect(barrier, blocks * T::kUnitBytes);
    const uint8_t* from = p.tiles + unit_index(blockIdx.x, first + block, p.unit_blocks) * T::kUnitBytes;
    for (int i = 0; i < blocks; ++i)
      bulk_load(base + place(turn) + i * T::kUnitBytes, from + i * (kPanelUnits * T::kUnitBytes), T::kUnitBytes,
                barrier);
  }
};

/// Scales of all groups for the block's rows: [group][row].
__device__ __forceinline__ void bulk_row_ask_scales(const GemmArgs& p, uint32_t to) {
  for (int i = threadIdx.x; p.groups > 1 && i < 16 * p.groups; i += blockDim.x)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 16 * i),
                 "l"(p.scales + int64_t(i >> 4) * p.n_padded + kUnitRows * blockIdx.x + 4 * (i & 15))
                 : "memory");
}
__device__ __forceinline__ void bulk_row_stage_x(const GemmArgs& p, uint32_t* to) {
  const auto* const x = static_cast<const uint4*>(p.x);
  for (int c = threadIdx.x; c < 8 * p.unit_blocks; c += blockDim.x) {
    const uint4 v = x[c];
    uint32_t* const place = to + (c >> 3) * 32 + (c & 7);
    place[0] = v.x, place[8] = v.y, place[16] = v.z, place[24] = v.w;
  }
}

/// 128 columns by 16 rows: words of four batches, x of two blocks of K.
template <class T>
__device__ __forceinline__ void bulk_row_step(const uint8_t* words, const uint4* x, uint32_t half_zero, float2 s,
                                              float* acc) {
  float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, e[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    uint32_t w[T::kWords], a[8];
    const uint8_t* const at = words + b * (kUnitLanes * T::kWords * 4);
    const uint2 v = *reinterpret_cast<const uint2*>(at);
    w[0] = v.x, w[1] = v.y;
    const uint4 of_x = x[b / 2 * 8 + b % 2];
    decode<T::X, T::kBits>(w, half_zero, a);
    mma<T::X>(b % 2 == 0 ? d : e, a, of_x.x, of_x.y);
    mma<T::X>(b % 2 == 0 ? d : e, a + 4, of_x.z, of_x.w);
  }
  acc[0] = __fmaf_rn(d[0] + e[0], s.x, acc[0]), acc[1] = __fmaf_rn(d[2] + e[2], s.y, acc[1]);
}

template <class T>
__device__ __forceinline__ void bulk_row_sum(const GemmArgs& p, const BulkRowLane<T>& at, const uint8_t* shared,
                                             float2 row_scales, float* acc) {
  const int lane128 = threadIdx.x & 127, row = lane128 / 32 * 16 + lane128 % 32 / 4 * 2;
  const bool many = p.groups > 1, leader = lane128 < 32;
  const auto* x = reinterpret_cast<const uint4*>(shared + p.x_at) + at.first * 8 + 2 * (lane128 & 3);
  const int group = at.first / p.group_blocks;
  const auto* scales = reinterpret_cast<const float2*>(shared + p.scales_at) + row / 2 + group * (kUnitRows / 2);
  int turn = 0, left = (group + 1) * p.group_blocks - at.first;  // blocks of this group
  uint32_t phase = 0;
#pragma unroll 1
  for (int nth = 0; nth * kBulkRowCopy < at.count; ++nth) {
    barrier_wait(at.barriers + 8 * turn, phase);
    const uint8_t* words = shared + at.place(turn) + lane128 * (T::kWords * 4);
    const int pairs = min(kBulkRowCopy, at.count - nth * kBulkRowCopy) / 2;
#pragma unroll 2
    for (int i = 0; i < pairs; ++i) {
      const float2 s = many ? *scales : row_scales;
      bulk_row_step<T>(words, x, p.half_zero, s, acc);
      words += 2 * T::kUnitBytes, x += 16, left -= 2;
      scales += left == 0 ? kUnitRows / 2 : 0, left = left == 0 ? p.group_blocks : left;
    }
    if ((nth + kBulkRowPlaces) * kBulkRowCopy < at.count) {
      named_barrier(1 + at.depth, 128);  // all warps have read it
      if (leader && elected()) at.ask(nth + kBulkRowPlaces, turn);
      __syncwarp();
    }
    if (++turn == kBulkRowPlaces) turn = 0, phase ^= 1;
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 2) gemm_bulk_row(const __grid_constant__ GemmArgs p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kBulkRowDepth * kBulkRowPlaces; ++i) barrier_init(base + p.barriers_at + 8 * i, 1);
    barrier_init_done();
  }
  let_next_kernel_start();
  __syncthreads();
  const BulkRowLane<T> at(p, base);
  const int lane128 = threadIdx.x & 127, n0 = kUnitRows * blockIdx.x;
  if (lane128 < 32 && elected())
    for (int i = 0; i < kBulkRowPlaces; ++i) at.ask(i, i);
  __syncwarp();
  bulk_row_ask_scales(p, base + p.scales_at);
  const int row = lane128 / 32 * 16 + lane128 % 32 / 4 * 2, n = n0 + threadIdx.x;
  const float2 row_scales = __ldg(reinterpret_cast<const float2*>(p.scales + n0 + row));
  const bool mine = threadIdx.x < kUnitRows && n < p.n;
  const float bias = mine && p.bias != nullptr ? __ldg(p.bias + n) : 0.0f;
  wait_for_previous_kernel();
  bulk_row_stage_x(p, reinterpret_cast<uint32_t*>(shared + p.x_at));
  asm volatile("cp.async.wait_all;" ::: "memory");  // scales
  __syncthreads();
  float acc[2] = {0.0f, 0.0f};
  bulk_row_sum<T>(p, at, shared, row_scales, acc);
  // Sums lie where the lane that has them had its own words of the first place: nobody else reads those.
  if ((lane128 & 3) == 0)
    *reinterpret_cast<float2*>(shared + at.place(0) + lane128 * (T::kWords * 4)) = {acc[0], acc[1]};
  __syncthreads();
  if (!mine) return;
  const int own = (threadIdx.x / 16 * 32 + threadIdx.x % 16 / 2 * 4) * (T::kWords * 4) + threadIdx.x % 2 * 4;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kBulkRowDepth; ++i)
    sum = __fadd_rn(sum, *reinterpret_cast<const float*>(shared + p.weights_at + i * kBulkRowPlaces * T::kPlace + own));
  store_one(p, n, finished<T::X>(sum, 1.0f, bias));
#endif
}

template <class T>
constexpr WgmmaKernel bulk_row_kernel(const char* name) {
  return {reinterpret_cast<const void*>(&gemm_bulk_row<T>), name, T::kThreads, 1, 1, kBulkRowFold, 0, 0, 1, 2};
}

}  // namespace lowbit::cuda
