#pragma once
// Norm and codes of one row for the products of a decoded token. Each thread block waits for them, in each launch; the
// operations are those of quantizer_of(), and so are the bits.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/row_norm.cuh"

namespace lowbit::cuda {

__device__ __forceinline__ uint32_t largest_bits(const float4& v) {
  return max(max(magnitude_bits(v.x), magnitude_bits(v.y)), max(magnitude_bits(v.z), magnitude_bits(v.w)));
}

template <bool kExact = false>
__device__ __forceinline__ Quantizer step_quantizer(uint32_t largest) {
  const float a = bits_to_f32(largest);
  if (a > 0x1p-100f && a < 0x1p100f) {
    const float scale = quotient(a, 127.0f);
    if constexpr (!kExact) return {scale, quotient(127.0f, a)};
    return {exact_scale(scale), quotient(1.0f, exact_scale(scale))};
  }
  const Quantizer q = quantizer_of(largest);
  return kExact ? exact_quantizer(q) : q;
}

/// Codes of four columns: the sum with 1.5 * 2^23 has the integer in its lowest bits, rounded to even.
__device__ __forceinline__ uint32_t four_codes(const float4& v, float inverse) {
  const auto code = [&](float x) { return __float_as_uint(__fadd_rn(__fmul_rn(x, inverse), 0x1.8p23f)); };
  const uint32_t word =
      __byte_perm(__byte_perm(code(v.x), code(v.y), 0x0040), __byte_perm(code(v.z), code(v.w), 0x0040), 0x5410);
  return inverse == 0.0f ? 0u : word;
}

}  // namespace lowbit::cuda
