#pragma once
// Rows of x for products of few rows: normed and rounded, as f32 in shared memory.

#include "kernels/cuda/block/few_rows.cuh"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/fp8/parts.cuh"

namespace lowbit::cuda::block {

/// Eight columns of a row from i on; zeros where there are none.
struct RowColumns {
  float v[fp8::kPerLane];
};
__device__ __forceinline__ RowColumns load_row_columns(const float* row, int i, int k, bool aligned) {
  RowColumns c;
  const int n = max(0, min(k - i, fp8::kPerLane));
  if (aligned)
    fp8::load_lane<Fp8Element::kF32, true>(row, i, n, c.v);
  else
    fp8::load_lane<Fp8Element::kF32, false>(row, i, n, c.v);
  return c;
}
/// The values of eight codes, a byte at a time.
__device__ __forceinline__ RowColumns load_coded_columns(const uint8_t* codes, int i, int k) {
  RowColumns c;
#pragma unroll
  for (int j = 0; j < fp8::kPerLane; ++j) c.v[j] = i + j < k ? e4m3_to_f32(codes[i + j]) : 0.0f;
  return c;
}

__device__ __forceinline__ float rounded_to_half(float x, bool bf16) {
  return bf16 ? bf16_to_f32(f32_to_bf16(x)) : f16_value(f16_nearest(x));
}

/// Eight columns of a block of 128 as the values of their codes; half a warp has the block. Returns its scale.
__device__ __forceinline__ float code_columns(RowColumns& c) {
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < fp8::kPerLane; ++j) most = max(most, fp8::magnitude(c.v[j]));
  const float scale = fp8_scale(__uint_as_float(fp8::largest_of_lanes(most)), false);
  const bool has_codes = fp8_has_codes(scale);
  const fp8::Divisor by = fp8::divisor_of(has_codes ? scale : 1.0f);
  uint32_t words[2] = {};
#pragma unroll
  for (int j = 0; j < fp8::kPerLane && has_codes; j += 2)
    words[j / 4] |= fp8::codes_of(fp8::quotient(c.v[j], by), fp8::quotient(c.v[j + 1], by)) << (8 * (j % 4));
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    float four[4];
    e4m3_values(words[w], four);
#pragma unroll
    for (int j = 0; j < 4; ++j) c.v[4 * w + j] = four[j];
  }
  return scale;
}

/// The factors of the rows' norms; the rows are in shared memory then. All threads.
__device__ __forceinline__ void norm_factors(const FewRowsArgs& a, float* x, float* factors) {
  const int thread = static_cast<int>(threadIdx.x), threads = 32 * a.warps;
  for (int row = 0; row < a.m; ++row)
    for (int i = thread; i < a.k; i += threads) x[row * a.x_pitch + i] = a.rows[int64_t{row} * a.k + i];
  __syncthreads();
  for (int base = 0; base < a.m; base += 2 * a.warps) {
    const int row = base + thread / kLanes;
    if (base + thread / 32 * 2 >= a.m) break;  // whole warps
    const float factor = inverse_rms(x + min(row, a.m - 1) * a.x_pitch, a.k, a.eps);
    if (row < a.m && thread % kLanes == 0) factors[row] = factor;
  }
  __syncthreads();
}

/// x [m, x_pitch] and, in codes, their scales [m, groups]. Zeros behind column k. All threads; they meet afterwards.
template <int kM>
__device__ __forceinline__ void stage_few_rows(const FewRowsArgs& a, uint8_t* shared) {
  auto* const x = reinterpret_cast<float*>(shared + a.x_at);
  auto* const scales = reinterpret_cast<float*>(shared + a.x_scales_at);
  auto* const factors = reinterpret_cast<float*>(shared + a.factors_at);
  const auto* const norm = reinterpret_cast<const float*>(shared + a.norm_at);
  const bool has_norm = a.norm != nullptr;
  if (has_norm) norm_factors(a, x, factors);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, halves = 2 * a.warps;
  const int blocks = a.x_pitch / kFp8Block, total = kM * blocks;
  for (int base = 0; base < total; base += halves) {  // as often for all lanes
    const int at = base + static_cast<int>(threadIdx.x) / kLanes, row = at / blocks, block = at % blocks;
    const int i = block * kFp8Block + lane * fp8::kPerLane;
    const bool there = row < a.m;
    RowColumns c = {};
    float scale = 0;
    if (a.codes != nullptr) {
      if (there) c = load_coded_columns(a.codes + row * a.ldcodes, i, a.k);
      if (there && block < a.groups) scale = a.code_scales[row * a.scale_row + block * a.scale_block];
    } else {
      if (there && has_norm) c = load_row_columns(x + row * a.x_pitch, i, a.k, true);
      if (there && !has_norm) c = load_row_columns(a.rows + int64_t{row} * a.k, i, a.k, a.aligned);
      const float factor = there && has_norm ? factors[row] : 1.0f;
#pragma unroll
      for (int j = 0; j < fp8::kPerLane; ++j)
        if (has_norm && i + j < a.k) c.v[j] = __fmul_rn(__fmul_rn(c.v[j], factor), norm[i + j]);
      if (a.rounding == RowRounding::kE4m3) {
        scale = code_columns(c);
      } else if (a.rounding != RowRounding::kNone) {
#pragma unroll
        for (float& v : c.v) v = rounded_to_half(v, a.rounding == RowRounding::kBf16);
      }
    }
    if (row >= kM) continue;
    auto* const to = reinterpret_cast<float4*>(x + row * a.x_pitch + i);
    to[0] = {c.v[0], c.v[1], c.v[2], c.v[3]}, to[1] = {c.v[4], c.v[5], c.v[6], c.v[7]};
    if (there && lane == 0 && a.rounding == RowRounding::kE4m3 && block < a.groups) scales[row * a.groups + block] = scale;
  }
}

}  // namespace lowbit::cuda::block
