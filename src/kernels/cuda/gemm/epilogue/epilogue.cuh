#pragma once
// From sums to outputs, for every pipeline: sums of a group are scaled and accumulated in f32, then bias, conversion
// and store. All give lane 4 g + t of a warp the sums (row, token): d[4 j + c] = (2 g, 8 j + 2 t + c), d[4 j + 2 + c] =
// (2 g + 1, same).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/device_args.h"
#include "kernels/cuda/gemm/schedule/wgmma_kernel.h"
#include "kernels/cuda/gemm/weight_order/decode.cuh"

namespace lowbit::cuda {

/// Sums of up to 256 columns: |sum * 2^shift| < 2^22, so that adding the bits of 1.5 * 2^(23 - shift) makes a float of
/// it.
inline constexpr int kNarrowGroup = 256;

template <GemmActivation X, int Bits>
__device__ __forceinline__ float narrow_sum(typename SumOf<X>::Type s) {
  if constexpr (kIntegers<X>) {
    constexpr int kShift = kFactor<Bits>, kMagic = (127 + 23 - kShift) << 23 | 0x400000;
    return __fadd_rn(__int_as_float(s + kMagic), -__int_as_float(kMagic));
  } else {
    return s;
  }
}
template <GemmActivation X, int Bits>
__device__ __forceinline__ float any_sum(typename SumOf<X>::Type s) {
  if constexpr (kIntegers<X>) {
    return __int2float_rn(s >> kFactor<Bits>);
  } else {
    return s;
  }
}

/// Sums of a whole row, exact in f32: |sum| < 2^22 with two bits and fewer than kSmallSumColumns columns. Conversions
/// of integers have a quarter of the rate of additions or less.
template <GemmActivation X, int Bits>
__device__ __forceinline__ float row_sum(typename SumOf<X>::Type s) {
  if constexpr (X == GemmActivation::kInt8 && Bits == 2) {
    constexpr int kMagic = 0x4b400000;  // 1.5 * 2^23
    return __fadd_rn(__int_as_float((s >> kFactor<Bits>)+kMagic), -__int_as_float(kMagic));
  } else {
    return any_sum<X, Bits>(s);
  }
}

/// The scale of x for a sum over group g of row m, 1 when x has one scale per row.
__device__ __forceinline__ float x_group_scale(const GemmArgs& p, int m, int g) {
  return p.x_scale_group == 0 || m >= p.m ? 1.0f : p.x_scale[m * p.x_scale_row + g * p.x_scale_group];
}

/// acc = fma(sum * x scale, scale, acc), then the offset's term. One group of one output.
template <GemmActivation X, int Bits>
__device__ __forceinline__ float scale_accumulate_one(const GemmArgs& p, typename SumOf<X>::Type s, float scale, int m,
                                                      int n, int g, float acc) {
  float v = any_sum<X, Bits>(s), xs = 1.0f;
  if constexpr (kIntegers<X>) {
    xs = x_group_scale(p, m, g);
    v = __fmul_rn(v, xs);
  }
  acc = __fmaf_rn(v, scale, acc);
  if (p.offsets != nullptr && m < p.m) {
    const float sum = p.x_sums[int64_t(m) * p.groups + g];
    const float offset = __ldg(p.offsets + int64_t(g) * p.n_padded + n);
    acc = __fmaf_rn(kIntegers<X> ? __fmul_rn(sum, xs) : sum, offset, acc);
  }
  return acc;
}

/// Scales and accumulates one group of a lane's sums (two rows of weights with scales s, Bm tokens) into acc. XScales:
/// the group has scales of x, x_scales[token].
template <GemmActivation X, int Bits, int Bm, bool Narrow, bool XScales>
__device__ __forceinline__ void scale_accumulate_sums(const typename SumOf<X>::Type* d, float2 s, const float* x_scales,
                                                      float* acc) {
#pragma unroll
  for (int j = 0; j < Bm / 8; ++j) {
    float2 xs = {1.0f, 1.0f};
    if constexpr (XScales) xs = reinterpret_cast<const float2*>(x_scales)[4 * j + (threadIdx.x & 3)];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v = Narrow ? narrow_sum<X, Bits>(d[4 * j + i]) : any_sum<X, Bits>(d[4 * j + i]);
      if constexpr (XScales) v = __fmul_rn(v, i & 1 ? xs.y : xs.x);
      acc[4 * j + i] = __fmaf_rn(v, i & 2 ? s.y : s.x, acc[4 * j + i]);
    }
  }
}

/// scale_accumulate() without scales of x, for sums and acc that are both 2^kFactor times too large: one conversion and
/// one fma each. Equal bits after the division by 2^kFactor: roundings are relative, and every term is a multiple of
/// 2^-149 anyway, so that what would be subnormal is exact in both. Only |acc| from 2^(128 - kFactor) on becomes
/// infinite too early.
template <GemmActivation X, int Bits, int Bm>
__device__ __forceinline__ void scale_accumulate_factored(const typename SumOf<X>::Type* d, float2 s, float* acc) {
#pragma unroll
  for (int i = 0; i < Bm / 2; ++i) acc[i] = __fmaf_rn(float(d[i]), i & 2 ? s.y : s.x, acc[i]);
}

/// Bits of x: sums count columns with both bits set, products are 1 where two bits are equal and -1 elsewhere, so that
/// the sum of products is 4 * sum + (k - 2 ones of w) + (-2 ones of x). `d`: a lane's sums for rows n, n + 1 and Bm
/// tokens.
template <int Bm>
__device__ __forceinline__ void add_bit_terms(const GemmArgs& p, int n, int m0, int* d) {
  const int2 of_w = n < p.n_padded ? __ldg(reinterpret_cast<const int2*>(p.w_terms + n)) : int2{0, 0};
#pragma unroll
  for (int i = 0; i < Bm / 2; ++i) {
    const int m = m0 + 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1);
    d[i] = 4 * d[i] + (i & 2 ? of_w.y : of_w.x) + (m < p.m ? p.x_terms[m] : 0);
  }
}

__device__ __forceinline__ uint32_t as_word(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }

/// Two outputs of 16 bits. Both conversions and a selection: a branch would double the code of every epilogue.
__device__ __forceinline__ uint32_t to_halves(const GemmArgs& p, float y0, float y1) {
  const uint32_t bf16 = as_word(__floats2bfloat162_rn(y0, y1)), f16 = as_word(__floats2half2_rn(y0, y1));
  return GemmOutput(p.output) == GemmOutput::kBf16 ? bf16 : f16;
}

/// Two neighbours of row m from element `at` of y on, of any type; nothing outside of [m, n).
__device__ __forceinline__ void store_pair(const GemmArgs& p, int64_t at, bool there, int n, float y0, float y1) {
  if (!there) return;
  const bool two = n + 1 < p.n;
  if (GemmOutput(p.output) == GemmOutput::kF32) {
    float* const y = static_cast<float*>(p.y) + at;
    if (p.pairs && two) {
      *reinterpret_cast<float2*>(y) = {y0, y1};
    } else {
      y[0] = y0;
      if (two) y[1] = y1;
    }
  } else {
    uint16_t* const y = static_cast<uint16_t*>(p.y) + at;
    const uint32_t halves = to_halves(p, y0, y1);
    if (p.pairs && two) {
      *reinterpret_cast<uint32_t*>(y) = halves;
    } else {
      y[0] = static_cast<uint16_t>(halves);
      if (two) y[1] = static_cast<uint16_t>(halves >> 16);
    }
  }
}

__device__ __forceinline__ float2 bias_pair(const GemmArgs& p, int n) {
  if (p.bias == nullptr) return {0.0f, 0.0f};
  return {n < p.n ? __ldg(p.bias + n) : 0.0f, n + 1 < p.n ? __ldg(p.bias + n + 1) : 0.0f};
}

/// Finishes an accumulated sum; xs = x_row_scale(m) for int8.
template <GemmActivation X>
__device__ __forceinline__ float finished(float acc, float xs, float bias) {
  return kIntegers<X> ? __fmaf_rn(acc, xs, bias) : __fadd_rn(acc, bias);
}
__device__ __forceinline__ float x_row_scale(const GemmArgs& p, int m) {
  return p.x_scale_group == 0 && m < p.m ? p.x_scale[m * p.x_scale_row] : 1.0f;
}

/// All outputs of a lane: two rows from n on, Bm tokens from m0 on. value(i): accumulated sum i; scale(j, c): of row
/// m0 + 8 j + 2 t + c. Inside of y there is no branch, so that the conversions overlap.
template <GemmActivation X, int Bm, class Value, class Scale>
__device__ __forceinline__ void finish(const GemmArgs& p, int n, int m0, float2 bias, Value value, Scale scale) {
  const int m = m0 + 2 * (threadIdx.x & 3);
  const int64_t at = m * p.ldy + n;
  const auto each = [&](auto store) {
#pragma unroll
    for (int j = 0; j < Bm / 8; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float xs = scale(j, c);
        store(8 * j + c, finished<X>(value(4 * j + c), xs, bias.x), finished<X>(value(4 * j + 2 + c), xs, bias.y));
      }
  };
  if (!p.pairs || m0 + Bm > p.m || (n | 15) >= p.n) {
    each([&](int row, float y0, float y1) { store_pair(p, at + row * p.ldy, m + row < p.m && n < p.n, n, y0, y1); });
  } else if (GemmOutput(p.output) == GemmOutput::kF32) {
    float* const y = static_cast<float*>(p.y) + at;
    each([&](int row, float y0, float y1) { *reinterpret_cast<float2*>(y + row * p.ldy) = {y0, y1}; });
  } else {
    uint16_t* const y = static_cast<uint16_t*>(p.y) + at;
    each([&](int row, float y0, float y1) { *reinterpret_cast<uint32_t*>(y + row * p.ldy) = to_halves(p, y0, y1); });
  }
}

/// One pair alone.
template <GemmActivation X>
__device__ __forceinline__ void finish_pair(const GemmArgs& p, int m, int n, float2 acc, float2 bias, float xs) {
  store_pair(p, m * p.ldy + n, m < p.m && n < p.n, n, finished<X>(acc.x, xs, bias.x), finished<X>(acc.y, xs, bias.y));
}

}  // namespace lowbit::cuda
