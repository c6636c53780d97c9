#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: an RMS norm, then E4M3 codes in blocks of 128 columns.
// Thread blocks stay, with the norm's weights in shared memory: a thread has the same columns of every row, and loads
// the next row while the first warp adds the squares of this one.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/fp8/quantize_halves.cuh"

namespace lowbit::cuda::fp8 {

/// Threads of a row; kPasses: of them over its blocks of columns, 8 threads a block.
template <int kThreads_, int kPasses_>
struct NormShape {
  static constexpr int kThreads = kThreads_, kPasses = kPasses_, kStep = kThreads / kBlockLanes;  // blocks of a pass
  static constexpr int kMostColumns = kPasses * kStep * kFp8Block;
  /// Weights, a row, its factor.
  static size_t shared_bytes(int64_t columns) { return static_cast<size_t>(4 * (2 * columns + 1)); }
  static constexpr int kAtOnce = 768 / kThreads;  // thread blocks of a multiprocessor, as registers allow
};

/// A thread's columns of a row, as halves: 8 at columns[pass][chunk].
template <class Shape>
struct RowPart {
  uint32_t w[Shape::kPasses][kChunks][4];
};
template <class Shape>
__device__ __forceinline__ int part_column(int pass, int chunk) {
  const int thread = static_cast<int>(threadIdx.x), block = pass * Shape::kStep + thread / kBlockLanes;
  return block * static_cast<int>(kFp8Block) + chunk * kChunkColumns + thread % kBlockLanes * kPerLane;
}
/// Zeros stand for columns and rows that are not there.
template <class Shape>
__device__ __forceinline__ RowPart<Shape> load_part(const Fp8Quant& q, int64_t row) {
  RowPart<Shape> part;
#pragma unroll
  for (int p = 0; p < Shape::kPasses; ++p)
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = part_column<Shape>(p, c);
      const int n = row < q.rows && column < q.columns ? kPerLane : 0;
      load_halves(q.x, row * q.ldx + column, n, part.w[p][c]);
    }
  return part;
}

template <Fp8Element E>
__device__ __forceinline__ void to_floats(const uint32_t (&w)[4], float (&v)[kPerLane]) {
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) v[j] = j % 2 == 0 ? low_half<E>(w[j / 2]) : high_half<E>(w[j / 2]);
}

/// Codes and scales of a part, which is normed by the row's factor `r` and weights in shared memory.
template <Fp8Element E, class Shape>
__device__ __forceinline__ void quantize_part(const Fp8Quant& q, int64_t row, const RowPart<Shape>& part, float r,
                                              const float* weights) {
#pragma unroll
  for (int p = 0; p < Shape::kPasses; ++p) {
    float v[kChunks][kPerLane];
    uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      to_floats<E>(part.w[p][c], v[c]);
      const int column = part_column<Shape>(p, c);
      if (column >= q.columns) continue;
      const auto* const from = reinterpret_cast<const float4*>(weights + column);
      const float4 low = from[0], high = from[1];
      const float by[kPerLane] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        v[c][j] = __fmul_rn(__fmul_rn(v[c][j], r), by[j]);
        most = max(most, magnitude(v[c][j]));
      }
    }
#pragma unroll
    for (int across = kBlockLanes / 2; across > 0; across /= 2)
      most = max(most, __shfl_xor_sync(0xffffffffu, most, across, 32));
    const float scale = fp8_scale(__uint_as_float(most), q.power_of_two);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = part_column<Shape>(p, c);
      if (column < q.columns) store_codes<true>(v[c], scale, kPerLane, q.codes + row * q.ldcodes + column);
    }
    const int64_t block = p * Shape::kStep + threadIdx.x / kBlockLanes;
    if (threadIdx.x % kBlockLanes != 0 || block * kFp8Block >= q.columns) continue;
    *scale_at(q, row, block) = scale;
    clear_padding(q, q.rows, row, block);
  }
}

template <Fp8Element E, class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kAtOnce)
    quantize_normed_halves(const __grid_constant__ Fp8Quant q) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  auto* const weights = reinterpret_cast<float*>(bytes);
  float* const values = weights + q.columns;  // of a row
  float& factor = values[q.columns];
  let_successor_start();
  wait_for_predecessor();
  for (int i = static_cast<int>(threadIdx.x); i < q.columns; i += Shape::kThreads) weights[i] = q.norm_weight[i];
  RowPart<Shape> part = load_part<Shape>(q, blockIdx.x);
  for (int64_t row = blockIdx.x; row < q.rows; row += gridDim.x) {
#pragma unroll
    for (int p = 0; p < Shape::kPasses; ++p)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int column = part_column<Shape>(p, c);
        if (column >= q.columns) continue;
        float v[kPerLane];
        to_floats<E>(part.w[p][c], v);
        auto* const to = reinterpret_cast<float4*>(values + column);
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
      }
    __syncthreads();
    const RowPart<Shape> next = load_part<Shape>(q, row + gridDim.x);
    if (threadIdx.x < 32) {
      const float found = block::inverse_rms(values, static_cast<int>(q.columns), q.norm_eps);
      if (threadIdx.x == 0) factor = found;
    }
    __syncthreads();
    quantize_part<E, Shape>(q, row, part, factor, weights);
    part = next;
  }
}

}  // namespace lowbit::cuda::fp8
