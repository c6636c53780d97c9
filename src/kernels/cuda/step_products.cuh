#pragma once
// Products of one to eight rows of x with a scale per segment of 32 columns, and what stands before and behind them in a
// decoding step. A block has 16 rows of weights, or 16 of a gate's and the same 16 of its factor's; its warps share K.
//
// Memory:   weights go straight from global memory to registers, the first of them before the previous kernel has ended.
//           x becomes codes and scales in shared memory: copied, or made here from floats.
// Numerics: docs/numerics.md#matmul: a warp adds the segments of whole groups, a thread per output folds the groups.
// Limits:   latency: read x - norm - quantize - products - fold.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda_product_api.h"

namespace lowbit::cuda {

inline constexpr int kProductThreads = 256, kProductBatches = 4;  // batches of 64 columns of a warp at a time

struct ProductPart {
  const uint8_t* tiles;
  const float* scales;  // [segments, n_padded]
  const float* bias;
  float* y;
  int64_t ldy;
  int n, n_padded, first_block;
};

struct ProductArgs {
  ProductPart part[kMostStepProducts];
  int parts;
  const float* rows;  // or codes and x_scales
  const int8_t* codes;
  const float* x_scales;
  int64_t ldx;
  const float* norm;
  float eps;
  int m, k, k_blocks, segments, per_scale, weight_groups;
  int depth, warp_batches;  // warps that share K, and batches of one of them at a time
  ProductEnd end;
  // Byte positions in shared memory, and bytes of a row of codes.
  int results_at, codes_at, x_scales_at, rows_at, norm_at, code_pitch;
};

/// The batches of 64 columns that a warp multiplies at a time.
struct ProductShare {
  int first, count;
  __device__ __forceinline__ ProductShare(const ProductArgs& p, int chunk) {
    const int batches = (p.k + 63) / 64, warp = static_cast<int>(threadIdx.x) / 32;
    first = (chunk * p.depth + warp) * p.warp_batches;
    count = warp < p.depth ? max(0, min(p.warp_batches, batches - first)) : 0;
  }
};

template <int Bits>
using ProductWords = uint32_t[kProductBatches][FragmentOrder<Bits, 1>::kLaneWords];

template <int Bits>
__device__ __forceinline__ void load_product_words(const ProductArgs& p, const ProductPart& part, int tile,
                                                   const ProductShare& share, ProductWords<Bits>& w) {
  using Order = FragmentOrder<Bits, 1>;
  const int lane128 = tile % 4 * 32 + static_cast<int>(threadIdx.x) % 32;
  const uint8_t* const tiles = part.tiles + pack_index(tile / 4, 0, p.k_blocks) * Order::kPackBytes;
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
    const int batch = share.first + i;
    if (i < share.count)
      load_words<Order>(tiles + int64_t(batch / 2) * (kPanelPacks * Order::kPackBytes), batch % 2, lane128, w[i]);
  }
}

// ---- x

/// 1 / rms of the rows, half a warp each: norm_rows().
__device__ __forceinline__ float inverse_rms(const ProductArgs& p, const float* row) {
  float sum = 0;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % block::kLanes; i < p.k; i += block::kLanes)
    sum = __fmaf_rn(row[i], row[i], sum);
  const float dot = block::fold_lanes(sum);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(dot, static_cast<float>(p.k)), p.eps)));
}

/// Rows of floats into shared memory, and their norms' factors behind them. All threads.
__device__ __forceinline__ void stage_normed(const ProductArgs& p, uint8_t* shared, float* factors) {
  auto* const rows = reinterpret_cast<float*>(shared + p.rows_at);
  for (int i = static_cast<int>(threadIdx.x); i < p.m * p.k; i += kProductThreads) rows[i] = p.rows[i];
  __syncthreads();
  const int half = static_cast<int>(threadIdx.x) / block::kLanes;
  const float factor = inverse_rms(p, rows + min(half, p.m - 1) * p.k);  // whole warps take part
  if (half < p.m && threadIdx.x % block::kLanes == 0) factors[half] = factor;
  __syncthreads();
}

/// Codes and scales of x in shared memory, zeros behind column k; a warp takes a segment.
__device__ __forceinline__ void quantize_product_rows(const ProductArgs& p, uint8_t* shared) {
  auto* const scales = reinterpret_cast<float*>(shared + p.x_scales_at);
  auto* const codes = reinterpret_cast<int8_t*>(shared + p.codes_at);
  auto* const factors = reinterpret_cast<float*>(shared + p.results_at);  // until there are results
  if (p.norm != nullptr) stage_normed(p, shared, factors);
  const auto* const rows = p.norm != nullptr ? reinterpret_cast<const float*>(shared + p.rows_at) : p.rows;
  const auto* const by = reinterpret_cast<const float*>(shared + p.norm_at);
  const int lane = static_cast<int>(threadIdx.x) % 32, of_row = (p.k + 63) / 64 * 2;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) / 32; at < p.m * of_row; at += kProductThreads / 32) {
    const int row = at / of_row, segment = at % of_row, column = 32 * segment + lane;
    float v = column < p.k ? rows[row * p.k + column] : 0.0f;
    if (p.norm != nullptr && column < p.k) v = __fmul_rn(__fmul_rn(v, factors[row]), by[column]);
    const Quantizer q = quantizer_of(__reduce_max_sync(0xffffffffu, magnitude_bits(v)));
    codes[row * p.code_pitch + column] = static_cast<int8_t>(quantize_one(v, q.inverse));
    if (lane == 0 && segment < p.segments) scales[row * p.segments + segment] = q.scale;
  }
}

__device__ __forceinline__ void copy_product_codes(const ProductArgs& p, uint8_t* shared) {
  auto* const scales = reinterpret_cast<float*>(shared + p.x_scales_at);
  auto* const codes = reinterpret_cast<int8_t*>(shared + p.codes_at);
  const int padded = (p.k + 63) / 64 * 64;
  for (int row = 0; row < p.m; ++row) {
    for (int i = 4 * static_cast<int>(threadIdx.x); i < padded; i += 4 * kProductThreads)
      *reinterpret_cast<uint32_t*>(codes + row * p.code_pitch + i) =
          *reinterpret_cast<const uint32_t*>(p.codes + row * p.ldx + i);
    for (int i = static_cast<int>(threadIdx.x); i < p.segments; i += kProductThreads)
      scales[row * p.segments + i] = p.x_scales[row * p.segments + i];
  }
}

// ---- Products

/// A lane's four sums of a group into their slot [m][16]: rows 2 g and 2 g + 1 of the weights, 2 t and 2 t + 1 of x.
__device__ __forceinline__ void put_product(float* slot, int m, const float (&v)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (2 * t < m) *reinterpret_cast<float2*>(slot + 2 * t * 16 + 2 * g) = {v[0], v[2]};
  if (2 * t + 1 < m) *reinterpret_cast<float2*>(slot + (2 * t + 1) * 16 + 2 * g) = {v[1], v[3]};
}

/// A share's sums by groups of the weights, times the scales of x, into `results`.
template <int Bits>
__device__ __forceinline__ void multiply_product(const ProductArgs& p, const ProductShare& share, const uint8_t* shared,
                                                 const ProductWords<Bits>& w, float* results) {
  constexpr GemmActivation kX = GemmActivation::kInt8;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const uint8_t* const codes = shared + p.codes_at + min(g, p.m - 1) * p.code_pitch + 4 * t;
  const auto* const scales = reinterpret_cast<const float*>(shared + p.x_scales_at);
  const float *const even = scales + min(2 * t, p.m - 1) * p.segments, *const odd = scales + min(2 * t + 1, p.m - 1) *
                                                                                                 p.segments;
  const int first = static_cast<int>(threadIdx.x) / 32 * p.warp_batches * 2;  // segment, within the chunk
  float* slot = results + first / p.per_scale * p.m * 16;
  float part[4] = {};
  int left = p.per_scale;
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
    if (i >= share.count) break;
    uint32_t a[8];
    decode<kX, Bits>(w[i], 0, a);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int segment = 2 * (share.first + i) + step;
      if (segment >= p.segments) break;
      const auto* const x = reinterpret_cast<const uint32_t*>(codes + 32 * segment);
      int d[4] = {};
      mma<kX>(d, a + 4 * step, x[0], x[4]);
      const float by_even = even[segment], by_odd = odd[segment];
#pragma unroll
      for (int c = 0; c < 4; ++c) part[c] = __fmaf_rn(narrow_sum<kX, Bits>(d[c]), c & 1 ? by_odd : by_even, part[c]);
      if (--left != 0 && segment + 1 != p.segments) continue;
      put_product(slot, p.m, part);
      slot += p.m * 16;
      left = p.per_scale;
      part[0] = part[1] = part[2] = part[3] = 0.0f;
    }
  }
}

__device__ __forceinline__ float gated(float gate, float up, ProductEnd end) {
  if (end == ProductEnd::kSilu) return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, block::exp_f32(-gate))), up);
  const float r = gate < 0 ? 0.0f : gate;  // a NaN stays one
  return __fmul_rn(__fmul_rn(r, r), up);
}

/// kTiles 2: the tiles are those of parts 0 and 1, and become one output.
template <int Bits, int kTiles>
__global__ void __launch_bounds__(kProductThreads) step_products_kernel(const __grid_constant__ ProductArgs p) {
  extern __shared__ __align__(16) uint8_t product_shared[];
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x), of_block = static_cast<int>(blockIdx.x);
  int mine = 0;
  while (kTiles == 1 && mine + 1 < p.parts && of_block >= p.part[mine + 1].first_block) ++mine;
  const int tile = kTiles == 1 ? of_block - p.part[mine].first_block : of_block, n0 = 16 * tile;
  auto* const scales = reinterpret_cast<float*>(product_shared);  // [tiles][weight groups][16]
  auto* const results = reinterpret_cast<float*>(product_shared + p.results_at);
  const int of_tile = p.weight_groups * 16, of_chunk = p.depth * p.warp_batches * 2;
  const int slots = (of_chunk + p.per_scale - 1) / p.per_scale * p.m * 16;
  ProductWords<Bits> w[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const ProductPart& part = p.part[kTiles == 1 ? mine : i];
    load_product_words<Bits>(p, part, tile, ProductShare(p, 0), w[i]);
    for (int at = thread; at < of_tile; at += kProductThreads)
      scales[i * of_tile + at] = part.scales[int64_t(at / 16) * p.per_scale * part.n_padded + n0 + at % 16];
  }
  for (int i = thread; p.norm != nullptr && i < p.k; i += kProductThreads)
    reinterpret_cast<float*>(product_shared + p.norm_at)[i] = p.norm[i];
  wait_for_predecessor();
  if (p.rows != nullptr) {
    quantize_product_rows(p, product_shared);
  } else {
    copy_product_codes(p, product_shared);
  }
  __syncthreads();
  // Threads that fold: 16 for a row of x, the second tile's from half of the block on.
  const int folder = kTiles == 1 ? thread : thread % (kProductThreads / 2),
            second = kTiles == 1 ? 0 : thread / (kProductThreads / 2);
  const int r = folder % 16, m = folder / 16;
  float acc = 0;
  int group = 0;
  const int chunks = (p.segments + of_chunk - 1) / of_chunk;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      multiply_product<Bits>(p, ProductShare(p, chunk), product_shared, w[i], results + i * slots);
      if (chunk + 1 < chunks)
        load_product_words<Bits>(p, p.part[kTiles == 1 ? mine : i], tile, ProductShare(p, chunk + 1), w[i]);
    }
    __syncthreads();
    const int count = (min(of_chunk, p.segments - chunk * of_chunk) + p.per_scale - 1) / p.per_scale;
    const float* const from = results + second * slots + folder;
    const float* const scale = scales + second * of_tile + group * 16 + r;
    if (m < p.m) {
#pragma unroll 8
      for (int i = 0; i < count; ++i) acc = __fmaf_rn(from[i * p.m * 16], scale[i * 16], acc);
    }
    group += count;
    if (chunk + 1 < chunks) __syncthreads();
  }
  const ProductPart& part = p.part[kTiles == 1 ? mine : second];
  const int n = n0 + r;
  float y = __fadd_rn(acc, part.bias == nullptr || n >= part.n ? 0.0f : part.bias[n]);
  if constexpr (kTiles == 2) {
    __syncthreads();  // all have read what lies there
    if (second == 1) results[folder] = y;
    __syncthreads();
    if (second == 1) return;
    y = gated(y, results[folder], p.end);
  }
  if (m >= p.m || n >= part.n) return;
  float* const to = part.y + m * part.ldy + n;
  *to = p.end == ProductEnd::kAdd ? __fadd_rn(*to, y) : y;
}

}  // namespace lowbit::cuda
