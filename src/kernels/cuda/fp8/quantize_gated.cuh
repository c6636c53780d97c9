#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: silu(x) * up to E4M3 codes in blocks of 128 columns. Half a
// warp takes a block, eight columns a lane. Instructions bound it beside memory: without the ends of the exponents a
// division is 7 of them, an exponential 14, and neither has a branch.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/fp8/normed_codes.cuh"

namespace lowbit::cuda::fp8 {

/// block::exp_f32() of numbers within 64 of zero: no branch, and the power of two is added to the exponent.
__device__ __forceinline__ float exp_near_zero(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  constexpr float kTerms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), kMagic), n = __fsub_rn(shifted, kMagic);
  const float r = __fmaf_rn(n, 2.12194440e-4f, __fmaf_rn(n, -0.693359375f, x));
  float p = 1.9875691500e-4f;
#pragma unroll
  for (int i = 0; i < 5; ++i) p = __fmaf_rn(p, r, kTerms[i]);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}
/// silu(g) of a number that has_plain_gate().
__device__ __forceinline__ float plain_gate(float g) { return cuda::quotient(g, __fadd_rn(1.0f, exp_near_zero(-g))); }
__device__ __forceinline__ bool has_plain_gate(float g) { return fabsf(g) > 0x1p-60f && fabsf(g) < 64.0f; }

template <Fp8Element E>
__device__ __forceinline__ void eight_halves(const uint32_t (&w)[4], float (&v)[kPerLane]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) v[2 * j] = low_half<E>(w[j]), v[2 * j + 1] = high_half<E>(w[j]);
}

template <Fp8Element E>
__global__ void __launch_bounds__(kThreads) quantize_gated_halves(const __grid_constant__ Fp8Quant q) {
  const auto blocks = static_cast<uint32_t>((q.columns + kFp8Block - 1) / kFp8Block);
  const uint32_t at = (blockIdx.x * kThreads + threadIdx.x) / kLanes, row = at / blocks, b = at % blocks;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool there = row < q.rows;  // the other half of the warp may be
  const int64_t first = int64_t{b} * kFp8Block + lane * kPerLane;
  const int n = there ? static_cast<int>(min(max(q.columns - first, int64_t{0}), int64_t{kPerLane})) : 0;
  uint32_t gates[4], ups[4];
  let_successor_start();
  wait_for_predecessor();
  load_halves(q.x, row * q.ldx + first, n, gates);
  load_halves(q.up, row * q.ldup + first, n, ups);
  float v[kPerLane], up[kPerLane];
  eight_halves<E>(gates, v);
  eight_halves<E>(ups, up);
  bool plain = true;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) plain = plain && has_plain_gate(v[j]);
  if (plain) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) v[j] = plain_gate(v[j]);
  } else {
#pragma unroll 1
    for (int j = 0; j < kPerLane; ++j) {  // one by one, and no index into registers
      const float g = v[0], gate = __fdiv_rn(g, __fadd_rn(1.0f, block::exp_f32(-g)));
#pragma unroll
      for (int i = 0; i + 1 < kPerLane; ++i) v[i] = v[i + 1];
      v[kPerLane - 1] = gate;
    }
  }
  float most = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    v[j] = __fmul_rn(v[j], up[j]);
    most = larger_magnitude(most, v[j]);
  }
#pragma unroll
  for (int across = kLanes / 2; across > 0; across /= 2)
    most = larger_magnitude(most, __shfl_xor_sync(0xffffffffu, most, across));
  float scale = plain_scale(most, q.power_of_two);
  uint8_t* const to = q.codes + row * q.ldcodes + first;
  if (n == kPerLane && most > 0x1p-60f && most < 0x1p60f && (q.power_of_two || has_near_quotients(scale))) {
    const Inverse by = inverse_of(scale);
    *reinterpret_cast<uint2*>(to) = uint2{codes_by(float4{v[0], v[1], v[2], v[3]}, by),  //
                                          codes_by(float4{v[4], v[5], v[6], v[7]}, by)};
  } else {
    scale = fp8_scale(most, q.power_of_two);
    store_codes<true>(v, scale, n, to);
  }
  if (!there || lane != 0) return;
  *scale_at(q, row, b) = scale;
  clear_padding(q, q.rows, row, b);
}

}  // namespace lowbit::cuda::fp8
