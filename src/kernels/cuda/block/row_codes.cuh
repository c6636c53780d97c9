#pragma once
// Four columns of a row, from loads to codes: shared by the kernels that make codes of many rows.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/fp8/parts.cuh"
#include "kernels/cuda_codes_api.h"

namespace lowbit::cuda::block {

/// kExact: RowCodes::exact_scales.
enum class CodeKind : uint8_t { kInt8, kExact, kE4m3 };
inline CodeKind kind_of(const RowCodes& call) {
  return call.e4m3 ? CodeKind::kE4m3 : call.exact_scales ? CodeKind::kExact : CodeKind::kInt8;
}

/// Columns that share a scale in memory: eight threads, four columns each, or a warp.
template <CodeKind kKind>
constexpr int kCodeGroup = kKind == CodeKind::kE4m3 ? int{kFp8Block} : 32;

struct Quad {
  float v[4];
};

__device__ __forceinline__ Quad load_quad(const float* from) {
  const float4 f = *reinterpret_cast<const float4*>(from);
  return {{f.x, f.y, f.z, f.w}};
}
__device__ __forceinline__ void store_quad(float* to, const Quad& q) {
  *reinterpret_cast<float4*>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

/// gate_rows(), squared_relu_rows(), add_rows().
template <RowStart kStart>
__device__ __forceinline__ Quad start_quad(Quad x, const Quad& other) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float& v = x.v[i];
    if constexpr (kStart == RowStart::kSum) v = __fadd_rn(v, other.v[i]);
    if constexpr (kStart == RowStart::kSilu) v = __fmul_rn(__fdiv_rn(v, __fadd_rn(1.0f, exp_f32(-v))), other.v[i]);
    if constexpr (kStart == RowStart::kSquaredRelu) {
      const float r = v < 0 ? 0.0f : v;  // a NaN stays one
      v = __fmul_rn(__fmul_rn(r, r), other.v[i]);
    }
  }
  return x;
}

__device__ __forceinline__ uint32_t largest_of_quad(const Quad& q) {
  return max(max(magnitude_bits(q.v[0]), magnitude_bits(q.v[1])), max(magnitude_bits(q.v[2]), magnitude_bits(q.v[3])));
}

/// The largest of kWidth neighbouring lanes' numbers, in all of them.
template <int kWidth>
__device__ __forceinline__ uint32_t largest_of_neighbours(uint32_t most) {
#pragma unroll
  for (int w = 1; w < kWidth; w *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, w, 32));
  return most;
}

__device__ __forceinline__ uint32_t codes_of_quad(const Quad& q, float inverse) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(quantize_one(q.v[i], inverse)) & 0xffu) << (8 * i);
  return word;
}

/// Four codes and the scale of the group that neighbouring lanes share. `most`: of this lane's columns, 0 if none are
/// there.
struct GroupCodes {
  uint32_t word;
  float scale;
};
template <CodeKind kKind>
__device__ __forceinline__ GroupCodes group_codes(const Quad& v, uint32_t most) {
  most = largest_of_neighbours < kKind == CodeKind::kInt8 ? 8 : 32 > (most);
  if constexpr (kKind != CodeKind::kE4m3) {
    Quantizer q = quantizer_of(most);
    if (kKind == CodeKind::kExact) q = exact_quantizer(q);
    return {codes_of_quad(v, q.inverse), q.scale};
  } else {
    const float scale = fp8_scale(__uint_as_float(most), false);
    if (!fp8_has_codes(scale)) return {0, scale};
    const fp8::Divisor by = fp8::divisor_of(scale);
    const uint32_t low = fp8::codes_of(fp8::quotient(v.v[0], by), fp8::quotient(v.v[1], by));
    return {low | fp8::codes_of(fp8::quotient(v.v[2], by), fp8::quotient(v.v[3], by)) << 16, scale};
  }
}

}  // namespace lowbit::cuda::block
