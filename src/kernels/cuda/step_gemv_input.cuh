#pragma once
// The token of step_gemv.cuh becomes codes and scales in shared memory: normed and quantized here, or
// copied. Behind it lie zeros up to whole blocks of 128, scales that are zero for a share more.

#include "kernels/cuda/step_products.cuh"

namespace lowbit::cuda {

inline constexpr int kStepGemvXGroups = 2 * kProductBatches;  // of a share

/// Columns of x as a thread takes them: four at a time, so many times in a round.
inline constexpr int kStepGemvQuads = 4, kStepGemvRound = 4 * kProductThreads * kStepGemvQuads;
using StepGemvColumns = float4[kStepGemvQuads];

__device__ __forceinline__ int step_gemv_column(int first, int i) {
  return first + 4 * (i * kProductThreads + static_cast<int>(threadIdx.x));
}
__device__ __forceinline__ void load_step_gemv(const float* row, int k, int first, StepGemvColumns& v) {
#pragma unroll
  for (int i = 0; i < kStepGemvQuads; ++i) {
    const int column = step_gemv_column(first, i);
    v[i] = column < k ? *reinterpret_cast<const float4*>(row + column) : float4{0, 0, 0, 0};
  }
}

/// Codes of four columns: the sum with 1.5 * 2^23 has the integer in its lowest bits, rounded to even.
__device__ __forceinline__ uint32_t four_codes(const float4& v, float inverse) {
  const auto code = [&](float x) { return __float_as_uint(__fadd_rn(__fmul_rn(x, inverse), 0x1.8p23f)); };
  const uint32_t word =
      __byte_perm(__byte_perm(code(v.x), code(v.y), 0x0040), __byte_perm(code(v.z), code(v.w), 0x0040), 0x5410);
  return inverse == 0.0f ? 0u : word;
}

/// Codes and scales of a thread's first columns of a round. Eight lanes share an activation group; each of them works
/// out the scale of one, since divisions are the longest part. All threads.
template <int kQuads>
__device__ __forceinline__ void quantize_quads(const ProductArgs& p, uint8_t* shared, int first,
                                               const StepGemvColumns& v) {
  const int lane = static_cast<int>(threadIdx.x) % 8, end = p.k_blocks * 128;
  uint32_t most[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    most[i] =
        max(max(magnitude_bits(v[i].x), magnitude_bits(v[i].y)), max(magnitude_bits(v[i].z), magnitude_bits(v[i].w)));
#pragma unroll
  for (int d = 1; d < 8; d *= 2)
#pragma unroll
    for (int i = 0; i < kQuads; ++i) most[i] = max(most[i], __shfl_xor_sync(0xffffffffu, most[i], d));
  uint32_t own = most[0];
#pragma unroll
  for (int i = 1; i < kQuads; ++i) own = lane == i ? most[i] : own;
  const Quantizer q = quantizer_of(own);
  const int x_group = step_gemv_column(first, lane) / 32;
  if (lane < kQuads && 32 * x_group < end) reinterpret_cast<float*>(shared + p.x_scales_at)[x_group] = q.scale;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int column = step_gemv_column(first, i);
    const float inverse = __shfl_sync(0xffffffffu, q.inverse, i, 8);
    if (column < end)
      *reinterpret_cast<uint32_t*>(shared + p.codes_at + code_offset(column)) = four_codes(v[i], inverse);
  }
}
__device__ __forceinline__ void quantize_round(const ProductArgs& p, uint8_t* shared, int first,
                                               const StepGemvColumns& v) {
  if (p.k_blocks * 128 - first <= 4 * kProductThreads) {
    quantize_quads<1>(p, shared, first, v);
  } else {
    quantize_quads<kStepGemvQuads>(p, shared, first, v);
  }
}

/// `by`: the norm's first columns, which came before the previous kernel had ended.
__device__ __forceinline__ void quantize_normed_row(const ProductArgs& p, uint8_t* shared, const StepGemvColumns& by) {
  auto* const row = reinterpret_cast<float*>(shared + p.rows_at);
  auto* const found = reinterpret_cast<float*>(shared + p.factor_at);
  StepGemvColumns v, w;
#pragma unroll
  for (int i = 0; i < kStepGemvQuads; ++i) w[i] = by[i];
#pragma unroll 1
  for (int first = 0; first < p.k; first += kStepGemvRound) {
    load_step_gemv(p.rows, p.k, first, v);
#pragma unroll
    for (int i = 0; i < kStepGemvQuads; ++i)
      if (step_gemv_column(first, i) < p.k) *reinterpret_cast<float4*>(row + step_gemv_column(first, i)) = v[i];
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // both halves do the same
    const float rms = block::inverse_rms(row, p.k, p.eps);
    if (threadIdx.x == 0) *found = rms;
  }
  __syncthreads();
  const float factor = *found;
#pragma unroll 1
  for (int first = 0; first < p.k; first += kStepGemvRound) {
    load_step_gemv(row, p.k, first, v);
    if (first != 0) load_step_gemv(p.norm, p.k, first, w);
#pragma unroll
    for (int i = 0; i < kStepGemvQuads; ++i)
      if (step_gemv_column(first, i) < p.k)  // zeros behind, even if the factor is infinite
        v[i] = {__fmul_rn(__fmul_rn(v[i].x, factor), w[i].x), __fmul_rn(__fmul_rn(v[i].y, factor), w[i].y),
                __fmul_rn(__fmul_rn(v[i].z, factor), w[i].z), __fmul_rn(__fmul_rn(v[i].w, factor), w[i].w)};
    quantize_round(p, shared, first, v);
  }
}

/// Without a norm: what the next round needs is under way while one becomes codes.
__device__ __forceinline__ void quantize_plain_row(const ProductArgs& p, uint8_t* shared) {
  StepGemvColumns v, next = {};
  load_step_gemv(p.rows, p.k, 0, v);
#pragma unroll 1
  for (int first = 0; first < p.k; first += kStepGemvRound) {
    if (first + kStepGemvRound < p.k) load_step_gemv(p.rows, p.k, first + kStepGemvRound, next);
    quantize_round(p, shared, first, v);
#pragma unroll
    for (int i = 0; i < kStepGemvQuads; ++i) v[i] = next[i];
  }
}

/// All threads; they meet afterwards.
__device__ __forceinline__ void stage_step_gemv(const ProductArgs& p, uint8_t* shared, const StepGemvColumns& by) {
  auto* const scales = reinterpret_cast<float*>(shared + p.x_scales_at);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kStepGemvXGroups) scales[p.k_blocks * 4 + thread] = 0.0f;
  if (p.rows != nullptr && p.norm != nullptr) {
    quantize_normed_row(p, shared, by);
  } else if (p.rows != nullptr) {
    quantize_plain_row(p, shared);
  } else {
    copy_product_codes(p, shared);
    for (int i = p.x_group_count + thread; i < p.k_blocks * 4; i += kProductThreads) scales[i] = 0.0f;
  }
}

}  // namespace lowbit::cuda
