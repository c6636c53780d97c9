#pragma once
// One to eight tokens with a scale per group of 32 columns (an activation group). A block is 16 rows of weights; its
// warps share K and take `warp_batches` batches of 64 columns each at a time, straight from global memory to registers,
// the first of them before the previous kernel has ended. An activation group is one tensor-core step.
//
// Shapes:   any n, k; any x; any number of activation groups to a scale of the weights. More tokens: a block for each
//           eight.
// Numerics: docs/numerics.md#matmul. Where a warp has whole groups of the weights it adds a group's activation groups
//           itself, and a thread per output scales and accumulates the groups in their order. Otherwise that thread
//           adds the activation groups, too.
// Limits:   latency below about 8 MB of weights, then memory.

#include "kernels/cuda/gemm/mainloop/gemm_skinny.cuh"
#include "kernels/cuda/gemm/schedule/activation_groups.h"

namespace lowbit::cuda {

/// The batches that a warp multiplies at a time: `count` of them from `first` on.
struct ActivationGroupShare {
  int first, count;
  __device__ ActivationGroupShare(const ActivationGroupArgs& p, int chunk) {
    const int batches = (p.k + 63) / 64;
    first = (chunk * p.depth + static_cast<int>(threadIdx.x) / 32) * p.warp_batches;
    count = static_cast<int>(threadIdx.x) / 32 < p.depth ? max(0, min(p.warp_batches, batches - first)) : 0;
  }
};

template <int Bits>
using ActivationGroupOrder = FragmentOrder<Bits, 1>;
template <int Bits>
using ActivationGroupWords = uint32_t[kActivationGroupSkinnyBatches][ActivationGroupOrder<Bits>::kLaneWords];

template <int Bits>
__device__ __forceinline__ void load_share(const ActivationGroupArgs& p, const ActivationGroupShare& share,
                                           ActivationGroupWords<Bits>& w, RowHistory<Bits>& history) {
  using Order = ActivationGroupOrder<Bits>;
  const int tile = static_cast<int>(blockIdx.x), lane128 = tile % 4 * 32 + static_cast<int>(threadIdx.x) % 32;
  const uint8_t* const tiles = p.tiles + pack_index(tile / 4, 0, p.k_blocks) * Order::kPackBytes;
#pragma unroll
  for (int i = 0; i < kActivationGroupSkinnyBatches; ++i) {
    const int batch = share.first + i;
    if (i < share.count)
      load_words<Order>(tiles + int64_t(batch / 2) * (kPanelPacks * Order::kPackBytes), batch % 2, lane128, w[i]);
  }
  if constexpr (Bits == kTrellis) {  // of the last lane of the quad in the batch before
    const int batch = share.first - 1;
    history = {};
    if (share.count > 0 && batch >= 0)
      load_words<Order>(tiles + int64_t(batch / 2) * (kPanelPacks * Order::kPackBytes), batch % 2, lane128 | 3,
                        history.plane);
  }
}

/// A lane's columns of x in a share, and the scales of its tokens: what is asked for before anything is multiplied.
struct ActivationGroupX {
  uint32_t words[kActivationGroupSkinnyBatches][4];
  float2 scales[kActivationGroupSkinnyBatches][2];

  __device__ __forceinline__ void load(const ActivationGroupArgs& p, const ActivationGroupShare& share, int m0,
                                       int rows, bool with_scales) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const auto* const x = static_cast<const uint8_t*>(p.x) + (m0 + min(g, rows - 1)) * p.x_row_bytes;
    const float* const xs = p.x_scale + (m0 + min(2 * t, rows - 1)) * p.x_scale_row;
    const int64_t second = 2 * t + 1 < rows ? p.x_scale_row : 0;
#pragma unroll
    for (int i = 0; i < kActivationGroupSkinnyBatches; ++i) {
      if (i >= share.count) continue;
      const int column = 64 * (share.first + i);
#pragma unroll
      for (int part = 0; part < 4; ++part) words[i][part] = g < rows ? x_word(x, column + 16 * part + 4 * t, p.k) : 0;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int x_group = 2 * (share.first + i) + step;
        const bool there = with_scales && x_group < p.groups;
        scales[i][step] = {there ? xs[x_group] : 0.0f, there ? xs[second + x_group] : 0.0f};
      }
    }
  }
};

/// A lane's four results into their slot [m][16]: rows 2 g and 2 g + 1 of the weights, 2 t and 2 t + 1 of x.
__device__ __forceinline__ void put_results(float* slot, int rows, const float (&v)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (2 * t < rows) *reinterpret_cast<float2*>(slot + 2 * t * 16 + 2 * g) = {v[0], v[2]};
  if (2 * t + 1 < rows) *reinterpret_cast<float2*>(slot + (2 * t + 1) * 16 + 2 * g) = {v[1], v[3]};
}

/// Multiplies a share. Whole: results are those of the weights' groups, else of activation groups.
template <int Bits, bool Whole>
__device__ __forceinline__ void multiply_share(const ActivationGroupArgs& p, const ActivationGroupShare& share,
                                               const ActivationGroupWords<Bits>& w, RowHistory<Bits> history,
                                               const ActivationGroupX& x, int rows, float* results) {
  constexpr GemmActivation kX = GemmActivation::kInt8;
  const int first = static_cast<int>(threadIdx.x) / 32 * p.warp_batches * 2;  // activation group, within the chunk
  float* slot = results + (Whole ? first / p.per_scale : first) * rows * 16;
  float part[4] = {};
  int left = p.per_scale;
#pragma unroll
  for (int i = 0; i < kActivationGroupSkinnyBatches; ++i) {
    if (i >= share.count) break;
    uint32_t a[8];
    decode_int8<Bits>(w[i], p.table, history, a);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int x_group = 2 * (share.first + i) + step;
      if (x_group >= p.groups) break;
      int d[4] = {};
      mma<kX>(d, a + 4 * step, x.words[i][2 * step], x.words[i][2 * step + 1]);
      float v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) v[c] = narrow_sum<kX, Bits>(d[c]);
      if constexpr (Whole) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          part[c] = __fmaf_rn(v[c], c & 1 ? x.scales[i][step].y : x.scales[i][step].x, part[c]);
        if (--left != 0 && x_group + 1 != p.groups) continue;
        put_results(slot, rows, part);
        left = p.per_scale;
        part[0] = part[1] = part[2] = part[3] = 0.0f;
      } else {
        put_results(slot, rows, v);
      }
      slot += rows * 16;
    }
  }
}

/// One output of a block: row r of its weights, m of all tokens. Carried from chunk to chunk.
struct ActivationGroupEpilogue {
  int r, m, group = 0, x_group = 0;
  float acc = 0, part = 0;

  __device__ void end_group(const ActivationGroupArgs& p, float value, float scale) {
    acc = __fmaf_rn(value, scale, acc);
    if (p.offsets != nullptr) {
      const int64_t row = int64_t(group) * p.per_scale * p.n_padded + 16 * static_cast<int>(blockIdx.x) + r;
      acc = __fmaf_rn(p.x_sums[int64_t(m) * p.weight_groups + group], p.offsets[row], acc);
    }
    ++group;
  }
  /// Results of groups: from[0], from[step], ...
  __device__ void add_groups(const ActivationGroupArgs& p, const float* from, int step, int count,
                             const float* scales) {
    const float* scale = scales + group * 16 + r;
#pragma unroll 8
    for (int i = 0; i < count; ++i) end_group(p, from[i * step], scale[i * 16]);
  }
  __device__ void add_activation_groups(const ActivationGroupArgs& p, const float* from, int step, int count,
                                        const float* scales) {
    const float* const xs = p.x_scale + m * p.x_scale_row;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      part = __fmaf_rn(from[i * step], xs[x_group], part);
      ++x_group;
      if (x_group != (group + 1) * p.per_scale && x_group != p.groups) continue;
      end_group(p, part, scales[group * 16 + r]);
      part = 0.0f;
    }
  }
};

template <int Bits, bool Whole>
__global__ void __launch_bounds__(kActivationGroupSkinnyThreads)
    gemm_activation_groups_skinny(const __grid_constant__ ActivationGroupArgs p) {
  extern __shared__ __align__(16) float activation_group_shared[];
  skinny_let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x), n0 = 16 * static_cast<int>(blockIdx.x);
  const int m0 = kActivationGroupSkinnyTokens * static_cast<int>(blockIdx.y),
            rows = min(p.m - m0, kActivationGroupSkinnyTokens);
  float* const scales = activation_group_shared;
  float* const results = activation_group_shared + ActivationGroupSkinnyOffsets(p).results / 4;
  ActivationGroupWords<Bits> w;
  RowHistory<Bits> history;
  load_share<Bits>(p, ActivationGroupShare(p, 0), w, history);
  for (int i = thread; i < p.weight_groups * 16; i += static_cast<int>(blockDim.x))
    scales[i] = p.scales[int64_t(i / 16) * p.per_scale * p.n_padded + n0 + i % 16];
  skinny_wait_for_previous_kernel();
  ActivationGroupEpilogue epilogue{thread % 16, m0 + thread / 16};
  const bool has_output = thread < 16 * rows;
  const int of_chunk = p.depth * p.warp_batches * 2, chunks = (p.groups + of_chunk - 1) / of_chunk;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const ActivationGroupShare share(p, chunk);
    ActivationGroupX x;
    x.load(p, share, m0, rows, Whole);
    multiply_share<Bits, Whole>(p, share, w, history, x, rows, results);
    load_share<Bits>(p, ActivationGroupShare(p, chunk + 1), w, history);
    __syncthreads();
    const int x_groups = min(of_chunk, p.groups - chunk * of_chunk);
    const float* const mine = results + thread;  // [m][16]
    if (has_output && Whole)
      epilogue.add_groups(p, mine, rows * 16, (x_groups + p.per_scale - 1) / p.per_scale, scales);
    if (has_output && !Whole) epilogue.add_activation_groups(p, mine, rows * 16, x_groups, scales);
    if (chunk + 1 < chunks) __syncthreads();
  }
  const int n = n0 + epilogue.r;
  if (!has_output || n >= p.n) return;
  skinny_store(p, epilogue.m * p.ldy + n, __fadd_rn(epilogue.acc, p.bias == nullptr ? 0.0f : p.bias[n]));
}

}  // namespace lowbit::cuda
