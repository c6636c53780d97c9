#pragma once
// Rows of x for products of few rows: normed and rounded, as f32 in shared memory.

#include "kernels/cuda/block/exact_products.cuh"
#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/fp8/parts.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace lowbit::cuda::block {

/// Eight neighbouring columns of a row.
struct RowColumns {
  float v[fp8::kPerLane];
};

__device__ __forceinline__ float rounded_to_half(float x, bool bf16) {
  return bf16 ? bf16_to_f32(f32_to_bf16(x)) : f16_value(f16_nearest(x));
}

/// Columns of a block of 128 as the values of their codes; half a warp has the block. Returns its scale.
__device__ __forceinline__ float code_columns(RowColumns& c) {
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < fp8::kPerLane; ++j) most = max(most, fp8::magnitude(c.v[j]));
  const float scale = fp8_scale(__uint_as_float(fp8::largest_of_lanes(most)), false);
  const bool has_codes = fp8_has_codes(scale);
  const fp8::Divisor by = fp8::divisor_of(has_codes ? scale : 1.0f);
#pragma unroll
  for (int j = 0; j < fp8::kPerLane; j += 4) {
    const uint32_t low = fp8::codes_of(fp8::quotient(c.v[j], by), fp8::quotient(c.v[j + 1], by));
    const uint32_t high = fp8::codes_of(fp8::quotient(c.v[j + 2], by), fp8::quotient(c.v[j + 3], by));
    float four[4];
    e4m3_values(has_codes ? low | high << 16 : 0u, four);
#pragma unroll
    for (int i = 0; i < 4; ++i) c.v[j + i] = four[i];
  }
  return scale;
}

/// Rows as they are, or the values of their codes, and zeros behind them and behind column k. All threads.
template <int kM>
__device__ __forceinline__ void stage_raw_rows(const ExactProductArgs& a, float* x, float* scales) {
  const int thread = static_cast<int>(threadIdx.x), threads = 32 * a.warps;
#pragma unroll 1
  for (int row = 0; row < kM; ++row) {
    const bool there = row < a.m;
    const float* const from = a.rows + int64_t{row} * a.k;
#pragma unroll 4
    for (int i = 4 * thread; i < a.x_pitch; i += 4 * threads) {
      float4 v{0, 0, 0, 0};
      if (there && a.aligned && i < a.k) {
        v = *reinterpret_cast<const float4*>(from + i);
      } else if (there && i < a.k) {
        const auto at = [&](int j) {
          if (j >= a.k) return 0.0f;
          return a.codes != nullptr ? e4m3_to_f32(a.codes[row * a.ldcodes + j]) : from[j];
        };
        v = {at(i), at(i + 1), at(i + 2), at(i + 3)};
      }
      *reinterpret_cast<float4*>(x + row * a.x_pitch + i) = v;
    }
    if (a.codes == nullptr || !there) continue;
    for (int block = thread; block < a.groups; block += threads)
      scales[row * a.groups + block] = a.code_scales[row * a.scale_row + block * a.scale_block];
  }
  __syncthreads();
}

/// The factors of the rows' norms. All threads.
__device__ __forceinline__ void norm_factors(const ExactProductArgs& a, const float* x, float* factors) {
  for (int row = static_cast<int>(threadIdx.x) / 32; row < a.m; row += a.warps) {
    const float factor = warp_inverse_rms(x + row * a.x_pitch, a.k, a.eps);
    if (threadIdx.x % 32 == 0) factors[row] = factor;
  }
  __syncthreads();
}

/// x [kM, x_pitch] and, in codes, their scales [m, groups]. All threads; they meet afterwards.
template <int kM>
__device__ __forceinline__ void stage_exact_products(const ExactProductArgs& a, uint8_t* shared) {
  auto* const x = reinterpret_cast<float*>(shared + a.x_at);
  auto* const scales = reinterpret_cast<float*>(shared + a.x_scales_at);
  auto* const factors = reinterpret_cast<float*>(shared + a.factors_at);
  const auto* const norm = reinterpret_cast<const float*>(shared + a.norm_at);
  const bool has_norm = a.norm != nullptr;
  stage_raw_rows<kM>(a, x, scales);
  if (a.codes != nullptr || (!has_norm && a.rounding == RowRounding::kNone)) return;
  if (has_norm) norm_factors(a, x, factors);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, blocks = a.x_pitch / kFp8Block, total = a.m * blocks;
#pragma unroll 1
  for (int base = 0; base < total; base += 2 * a.warps) {  // as often for all lanes
    const int at = base + static_cast<int>(threadIdx.x) / kLanes;
    const bool there = at < total;
    const int row = there && a.m > 1 ? at / blocks : 0, block = there ? at - row * blocks : 0;
    const int i = block * kFp8Block + lane * fp8::kPerLane;
    auto* const own = reinterpret_cast<float4*>(x + row * a.x_pitch + i);
    const float4 low = own[0], high = own[1];
    RowColumns c = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    if (has_norm) {
      const float factor = factors[row];
#pragma unroll
      for (int j = 0; j < fp8::kPerLane; ++j)
        c.v[j] = i + j < a.k ? __fmul_rn(__fmul_rn(c.v[j], factor), norm[i + j]) : 0.0f;
    }
    float scale = 0;
    if (a.rounding == RowRounding::kE4m3) {
      scale = code_columns(c);
    } else if (a.rounding != RowRounding::kNone) {
#pragma unroll
      for (float& v : c.v) v = rounded_to_half(v, a.rounding == RowRounding::kBf16);
    }
    if (there) {
      own[0] = {c.v[0], c.v[1], c.v[2], c.v[3]}, own[1] = {c.v[4], c.v[5], c.v[6], c.v[7]};
      if (lane == 0 && a.rounding == RowRounding::kE4m3 && block < a.groups) scales[row * a.groups + block] = scale;
    }
  }
}

}  // namespace lowbit::cuda::block
