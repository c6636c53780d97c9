#pragma once
// 1 / rms of a row, in the order of docs/numerics.md: 128 partial sums, which are added as neighbours. A warp has four
// of them a lane, wherever the row is; or four warps have one a thread, of a row in shared memory.

#include <cuda_runtime.h>

#include "kernels/cuda/reciprocal.cuh"

namespace lowbit::cuda {

inline constexpr int kNormSums = 128;

/// n / d rounded once, as the division does it where nothing is close to the ends of the exponents; no branch.
__device__ __forceinline__ float quotient(float n, float d) {
  float r = reciprocal_estimate(d);
  r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
  float q = __fmul_rn(n, r);
  q = __fmaf_rn(__fmaf_rn(-d, q, n), r, q);
  return __fmaf_rn(__fmaf_rn(-d, q, n), r, q);
}

__device__ __forceinline__ float inverse_rms_of(float squares, int k, float eps) {
  const auto width = static_cast<float>(k);
  if (squares > 0x1p-60f && squares < 0x1p60f && eps < 0x1p60f)
    return quotient(1.0f, __fsqrt_rn(__fadd_rn(quotient(squares, width), eps)));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, width), eps)));
}

__device__ __forceinline__ float4 normed(const float4& x, float by, const float4& w) {
  return {__fmul_rn(__fmul_rn(x.x, by), w.x), __fmul_rn(__fmul_rn(x.y, by), w.y), __fmul_rn(__fmul_rn(x.z, by), w.z),
          __fmul_rn(__fmul_rn(x.w, by), w.w)};
}

/// The sum of a warp's numbers, in all of its lanes.
__device__ __forceinline__ float add_neighbours(float sum) {
#pragma unroll
  for (int w = 1; w < 32; w *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, w));
  return sum;
}

/// A lane's sums: of columns 4 lane to 4 lane + 3 of each 128.
struct NormSums {
  float4 s{0, 0, 0, 0};
  __device__ __forceinline__ void add(const float4& v) {
    s = {__fmaf_rn(v.x, v.x, s.x), __fmaf_rn(v.y, v.y, s.y), __fmaf_rn(v.z, v.z, s.z), __fmaf_rn(v.w, v.w, s.w)};
  }
  /// The whole warp.
  __device__ __forceinline__ float inverse_rms(int k, float eps) const {
    return inverse_rms_of(add_neighbours(__fadd_rn(__fadd_rn(s.x, s.y), __fadd_rn(s.z, s.w))), k, eps);
  }
};

/// One warp. columns(c): four columns from c on, of which those behind the row are zeros. They are fetched some rounds
/// before they are added.
template <int kAhead = 4, class Columns>
__device__ __forceinline__ float warp_inverse_rms(int k, float eps, const Columns& columns) {
  const auto fetch = [&](int column) { return column < k ? columns(column) : float4{0, 0, 0, 0}; };
  int column = static_cast<int>(threadIdx.x % 32) * 4;
  NormSums sums;
  float4 v[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) v[i] = fetch(column + i * kNormSums);
#pragma unroll 1
  for (int left = k; left > 0; left -= kAhead * kNormSums) {
    column += kAhead * kNormSums;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      sums.add(v[i]);
      v[i] = fetch(column + i * kNormSums);
    }
  }
  return sums.inverse_rms(k, eps);
}
/// Of a row at a multiple of 16 bytes, with zeros behind it up to a multiple of four columns.
template <int kAhead = 4>
__device__ __forceinline__ float warp_inverse_rms(const float* row, int k, float eps) {
  return warp_inverse_rms<kAhead>(k, eps, [&](int column) { return *reinterpret_cast<const float4*>(row + column); });
}

/// Columns whose squares a thread block adds at a time.
inline constexpr int kNormRound = 8 * kNormSums;
constexpr __host__ __device__ int padded_norm_columns(int k) { return (k + kNormRound - 1) / kNormRound * kNormRound; }

/// All `threads` of a thread block, which have written the row to shared memory and need not have met; they all get it.
/// at(i): column i. `quarters`: four floats of shared memory, at a multiple of 16 bytes. kPadded: zeros lie behind the
/// row up to a multiple of kNormRound (pad_norm_row()).
template <bool kPadded = false, class At>
__device__ __forceinline__ float block_inverse_rms(int k, float eps, int threads, float* quarters, const At& at) {
  constexpr int kAhead = kNormRound / kNormSums;
  __syncthreads();
  for (int of = static_cast<int>(threadIdx.x); of < kNormSums; of += threads) {
    const auto fetch = [&](int column) { return kPadded || column < k ? at(column) : 0.0f; };
    int column = of;
    float sum = 0, v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) v[i] = fetch(column + i * kNormSums);
#pragma unroll 1
    for (int left = k - kNormRound; left > 0; left -= kNormRound) {
      column += kNormRound;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        sum = __fmaf_rn(v[i], v[i], sum);
        v[i] = fetch(column + i * kNormSums);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum = __fmaf_rn(v[i], v[i], sum);
    sum = add_neighbours(sum);
    if (of % 32 == 0) quarters[of / 32] = sum;
  }
  __syncthreads();
  const float4 q = *reinterpret_cast<const float4*>(quarters);
  return inverse_rms_of(__fadd_rn(__fadd_rn(q.x, q.y), __fadd_rn(q.z, q.w)), k, eps);
}
template <bool kPadded = false>
__device__ __forceinline__ float block_inverse_rms(const float* row, int k, float eps, int threads, float* quarters) {
  return block_inverse_rms<kPadded>(k, eps, threads, quarters, [&](int i) { return row[i]; });
}
/// The zeros behind a row, by all `threads`.
__device__ __forceinline__ void pad_norm_row(float* row, int k, int threads) {
  for (int i = k + static_cast<int>(threadIdx.x); i < padded_norm_columns(k); i += threads) row[i] = 0;
}

}  // namespace lowbit::cuda
