#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: an RMS norm, then E4M3 codes in blocks of 128 columns.
// Thread blocks stay, with the norm's weights in shared memory, and take two rows at a time: half a warp adds the
// squares of each, while the next two are on their way to registers.

#include "kernels/cuda/fp8/quantize_halves.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace lowbit::cuda::fp8 {

constexpr int kRowsAtOnce = 2;

/// Threads of two rows; kPasses: of them over a row's blocks of columns, 8 threads a block.
template <int kThreads_, int kPasses_>
struct NormShape {
  static constexpr int kThreads = kThreads_, kPasses = kPasses_, kStep = kThreads / kBlockLanes;  // blocks of a pass
  static constexpr int kMostColumns = kPasses * kStep * kFp8Block;
  static constexpr int kAtOnce = 768 / kThreads;  // thread blocks of a multiprocessor, as registers allow
  /// Halves from a row to the next in shared memory: 16 more, so that both rows' squares come from banks of their own.
  static LOWBIT_HD int64_t stride(int64_t columns) { return columns + 16; }
  /// Weights, rows, their factors.
  static size_t shared_bytes(int64_t columns) {
    return static_cast<size_t>(4 * columns + kRowsAtOnce * (2 * stride(columns) + 4));
  }
};

/// A thread's columns of its rows, as halves: 8 at part_column(pass, chunk).
template <class Shape>
struct RowParts {
  uint4 w[kRowsAtOnce][Shape::kPasses][kChunks];
};
template <class Shape>
__device__ __forceinline__ int part_column(int pass, int chunk) {
  const int thread = static_cast<int>(threadIdx.x), block = pass * Shape::kStep + thread / kBlockLanes;
  return block * static_cast<int>(kFp8Block) + chunk * kChunkColumns + thread % kBlockLanes * kPerLane;
}
/// Zeros stand for rows that are not there.
template <class Shape>
__device__ __forceinline__ RowParts<Shape> load_parts(const Fp8Quant& q, int64_t first) {
  RowParts<Shape> parts;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
    for (int p = 0; p < Shape::kPasses; ++p)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int column = part_column<Shape>(p, c);
        parts.w[r][p][c] = {};
        if (first + r < q.rows && column < q.columns)
          parts.w[r][p][c] =
              *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(q.x) + (first + r) * q.ldx + column);
      }
  return parts;
}

/// inverse_rms() of halves.
template <Fp8Element E>
__device__ __forceinline__ float inverse_rms_of_halves(const uint16_t* row, int k, float eps) {
  return warp_inverse_rms(k, eps, [&](int column) {
    const uint2 w = *reinterpret_cast<const uint2*>(row + column);
    return float4{low_half<E>(w.x), high_half<E>(w.x), low_half<E>(w.y), high_half<E>(w.y)};
  });
}

/// Codes and scales of this thread's columns of a row in shared memory, which is normed by its factor r.
template <Fp8Element E, class Shape>
__device__ __forceinline__ void quantize_normed_row(const Fp8Quant& q, int64_t row, const uint16_t* values, float r,
                                                    const float* weights) {
#pragma unroll
  for (int p = 0; p < Shape::kPasses; ++p) {
    float v[kChunks][kPerLane];
    uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = part_column<Shape>(p, c);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) v[c][j] = 0;
      if (column >= q.columns) continue;
      const uint4 halves = *reinterpret_cast<const uint4*>(values + column);
      const uint32_t w[4] = {halves.x, halves.y, halves.z, halves.w};
      const auto* const from = reinterpret_cast<const float4*>(weights + column);
      const float4 low = from[0], high = from[1];
      const float by[kPerLane] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const float x = j % 2 == 0 ? low_half<E>(w[j / 2]) : high_half<E>(w[j / 2]);
        v[c][j] = __fmul_rn(__fmul_rn(x, r), by[j]);
        most = max(most, magnitude(v[c][j]));
      }
    }
#pragma unroll
    for (int across = kBlockLanes / 2; across > 0; across /= 2)
      most = max(most, __shfl_xor_sync(0xffffffffu, most, across, 32));
    const float scale = fp8_scale(__uint_as_float(most), q.power_of_two);
    if (row >= q.rows) continue;
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
  auto* const rows = reinterpret_cast<uint16_t*>(weights + q.columns);
  const int64_t stride = Shape::stride(q.columns), step = int64_t{gridDim.x} * kRowsAtOnce;
  auto* const factors = reinterpret_cast<float*>(rows + kRowsAtOnce * stride);
  let_successor_start();
  wait_for_predecessor();
  RowParts<Shape> parts = load_parts<Shape>(q, int64_t{blockIdx.x} * kRowsAtOnce);
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < q.columns; i += Shape::kThreads) weights[i] = q.norm_weight[i];
  for (int64_t first = int64_t{blockIdx.x} * kRowsAtOnce; first < q.rows; first += step) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
#pragma unroll
      for (int p = 0; p < Shape::kPasses; ++p)
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const int column = part_column<Shape>(p, c);
          if (column < q.columns) *reinterpret_cast<uint4*>(rows + r * stride + column) = parts.w[r][p][c];
        }
    __syncthreads();
    parts = load_parts<Shape>(q, first + step);
    if (const int r = static_cast<int>(threadIdx.x) / 32; r < kRowsAtOnce) {
      const float found = inverse_rms_of_halves<E>(rows + r * stride, static_cast<int>(q.columns), q.norm_eps);
      if (threadIdx.x % 32 == 0) factors[r] = found;
    }
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < kRowsAtOnce; ++r)
      quantize_normed_row<E, Shape>(q, first + r, rows + r * stride, factors[r], weights);
    __syncthreads();  // the rows have been read
  }
}

}  // namespace lowbit::cuda::fp8
