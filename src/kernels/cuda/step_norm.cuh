#pragma once
// Norm and codes of one row for the products of a decoded token. Each thread block waits for them, in each launch, so
// they are as short as the orders of docs/numerics.md allow; the operations are those of block::inverse_rms() and
// quantizer_of(), and so are the bits.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/reciprocal.cuh"

namespace lowbit::cuda {

/// A row in shared memory whose squares sixteen lanes add, each every sixteenth: four of a lane lie together, so that
/// one load brings what four cycles' fma each take. Pieces of 64 columns; gaps keep lanes that store in other banks.
inline constexpr int kNormRound = 256, kNormPieces = kNormRound / 64, kNormPiece = 72;

/// Bytes of a row up to whole rounds, zeros behind it, which change no sum; and a round of which nothing is used.
__host__ __device__ constexpr int norm_row_bytes(int k) {
  return 4 * ((k + kNormRound - 1) / kNormRound + 1) * kNormPieces * kNormPiece;
}

__device__ __forceinline__ void put_norm_columns(float* row, int column, const float4& v) {
  const int lane = column % 16;  // of the first; four lanes are on one side of the gap
  float* const to = row + column / 64 * kNormPiece + lane * 4 + (lane >= 8 ? 4 : 0) + column % 64 / 16;
  to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
}

/// n / d rounded once, as the division does it where nothing is close to the ends of the exponents; no branch.
__device__ __forceinline__ float quotient(float n, float d) {
  float r = reciprocal_estimate(d);
  r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
  float q = __fmul_rn(n, r);
  q = __fmaf_rn(__fmaf_rn(-d, q, n), r, q);
  return __fmaf_rn(__fmaf_rn(-d, q, n), r, q);
}

/// One warp, of which both halves do the same.
__device__ __forceinline__ float step_inverse_rms(const float* row, int k, float eps) {
  const int lane = static_cast<int>(threadIdx.x) % block::kLanes;
  const float* from = row + lane * 4 + (lane >= 8 ? 4 : 0);
  float4 v[kNormPieces];
#pragma unroll
  for (int i = 0; i < kNormPieces; ++i) v[i] = *reinterpret_cast<const float4*>(from + i * kNormPiece);
  float sum = 0;
#pragma unroll 1
  for (int left = k; left > 0; left -= kNormRound) {
    from += kNormPieces * kNormPiece;
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
      sum = __fmaf_rn(v[i].x, v[i].x, sum);
      sum = __fmaf_rn(v[i].y, v[i].y, sum);
      sum = __fmaf_rn(v[i].z, v[i].z, sum);
      sum = __fmaf_rn(v[i].w, v[i].w, sum);
      v[i] = *reinterpret_cast<const float4*>(from + i * kNormPiece);  // at hand when its turn comes
    }
  }
#pragma unroll
  for (int w = block::kLanes / 2; w > 0; w /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, w));
  const auto width = static_cast<float>(k);
  if (sum > 0x1p-60f && sum < 0x1p60f && eps < 0x1p60f)
    return quotient(1.0f, __fsqrt_rn(__fadd_rn(quotient(sum, width), eps)));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, width), eps)));
}

__device__ __forceinline__ float4 normed(const float4& x, float by, const float4& w) {
  return {__fmul_rn(__fmul_rn(x.x, by), w.x), __fmul_rn(__fmul_rn(x.y, by), w.y), __fmul_rn(__fmul_rn(x.z, by), w.z),
          __fmul_rn(__fmul_rn(x.w, by), w.w)};
}
__device__ __forceinline__ uint32_t largest_bits(const float4& v) {
  return max(max(magnitude_bits(v.x), magnitude_bits(v.y)), max(magnitude_bits(v.z), magnitude_bits(v.w)));
}

__device__ __forceinline__ Quantizer step_quantizer(uint32_t largest) {
  const float a = bits_to_f32(largest);
  if (a > 0x1p-100f && a < 0x1p100f) return {quotient(a, 127.0f), quotient(127.0f, a)};
  return quantizer_of(largest);
}

/// Codes of four columns: the sum with 1.5 * 2^23 has the integer in its lowest bits, rounded to even.
__device__ __forceinline__ uint32_t four_codes(const float4& v, float inverse) {
  const auto code = [&](float x) { return __float_as_uint(__fadd_rn(__fmul_rn(x, inverse), 0x1.8p23f)); };
  const uint32_t word =
      __byte_perm(__byte_perm(code(v.x), code(v.y), 0x0040), __byte_perm(code(v.z), code(v.w), 0x0040), 0x5410);
  return inverse == 0.0f ? 0u : word;
}

}  // namespace lowbit::cuda
