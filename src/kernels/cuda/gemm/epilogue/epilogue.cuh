#pragma once
// From stored words to operand registers, and from sums to outputs: what the wgmma and the mma.sync pipelines share. Both
// give lane 4 g + t of a warp the sums (row, token): d[4 j + c] = (2 g, 8 j + 2 t + c), d[4 j + 2 + c] = (2 g + 1, same).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/schedule/device_args.h"
#include "kernels/cuda/gemm/schedule/wgmma_kernel.h"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"

namespace lowbit::cuda {

/// Tile number -> (m tile, n tile of n_tiles): bands of `band` m tiles, n slowest inside, so that blocks that run together share both x
/// and weights in the L2.
struct TileAt {
  int m, n;
};
__device__ __forceinline__ TileAt tile_at(const GemmArgs& p, int n_tiles, int tile) {
  const int per_band = p.band * n_tiles, b = tile / per_band, rest = tile - b * per_band;
  const int height = min(p.band, p.m_tiles - b * p.band);
  return {b * p.band + rest % height, rest / height};
}

template <GemmActivation X>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<GemmActivation::kInt8> {
  using Type = int;
};
template <>
struct SumOf<GemmActivation::kBit> {
  using Type = int;
};

/// Sums are integers and exact.
template <GemmActivation X>
inline constexpr bool kIntegers = X == GemmActivation::kInt8 || X == GemmActivation::kBit;
template <GemmActivation X>
inline constexpr int kXBytes = kIntegers<X> ? 1 : 2;  // bits: eight at a time
/// Sums are 2^kFactor times too large (decode()).
template <int Bits>
inline constexpr int kFactor = Bits == kTwoPlanes ? 0 : 8 - Bits;

/// Words of lane `lane128` for one batch; `pack` in shared or global memory.
template <class Order>
__device__ __forceinline__ void load_words(const uint8_t* pack, int batch, int lane128, uint32_t* w) {
  constexpr int kWords = Order::kLaneWords;
  const uint8_t* at = pack + batch * (kPackLanes * kWords * 4);
  if constexpr (kWords == 1) {
    w[0] = reinterpret_cast<const uint32_t*>(at)[lane128];
  } else if constexpr (kWords == 2) {
    const uint2 v = reinterpret_cast<const uint2*>(at)[lane128];
    w[0] = v.x, w[1] = v.y;
  } else {
#pragma unroll
    for (int c = 0; c < kWords / 4; ++c) {
      const uint4 v = reinterpret_cast<const uint4*>(at)[c * kPackLanes + lane128];
      w[4 * c] = v.x, w[4 * c + 1] = v.y, w[4 * c + 2] = v.z, w[4 * c + 3] = v.w;
    }
  }
}

/// (word & mask) | Magic in one instruction: the compiler takes two where both constants are immediates.
template <uint32_t Magic>
__device__ __forceinline__ uint32_t masked_or(uint32_t word, uint32_t mask) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "n"(Magic));
  return v;
}
/// Two f16: v = 1024 + code * 2^at, half_zero = 1024 + zero; code - zero, exactly.
__device__ __forceinline__ uint32_t f16_value(uint32_t v, int at, uint32_t half_zero) {
  uint32_t value;
  if (at == 0) {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(value) : "r"(v), "r"(half_zero));
  } else {
    const uint32_t factor = at == 2 ? 0x34003400u : at == 4 ? 0x2c002c00u : 0x24002400u;  // 2^-at
    const uint32_t rest = at == 2 ? 0x62006200u : at == 4 ? 0x63806380u : 0x63e063e0u;    // 1024 - 1024 * 2^-at
    uint32_t minus;  // - (1024 * 2^-at + zero); the same in all iterations
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(minus) : "r"(rest), "r"(half_zero));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(v), "r"(factor), "r"(minus));
  }
  return value;
}

template <GemmActivation X, int Bits>
__device__ __forceinline__ void decode_fields(const uint32_t* w, uint32_t half_zero, uint32_t* a) {
  using Order = FragmentOrder<Bits, kXBytes<X>>;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t word = w[i / Order::kRegistersPerWord];
    constexpr int kRegisters = Order::kRegistersPerWord;
    const int nth = i % kRegisters;
    if constexpr (kIntegers<X>) {
      constexpr uint32_t kMask = (0xffu << (8 - Bits) & 0xffu) * 0x01010101u;
      a[i] = Bits == 8 ? word : (word << (Bits * nth)) & kMask;
    } else if constexpr (X == GemmActivation::kF16) {
      // The ten bits of a mantissa have room for a code at bit 0 to 6: the word is shifted once in eight bits.
      const int shift = Bits * nth, at = shift % 8;
      const uint32_t v = masked_or<0x64006400u>(word >> (shift - at), (((1u << Bits) - 1u) << at) * 0x00010001u);
      a[i] = f16_value(v, at, half_zero);
    } else {
      const uint32_t v = masked_or<0x43004300u>(word >> (Bits * nth), ((1u << Bits) - 1u) * 0x00010001u);
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a[i]) : "r"(v), "r"(0x3f803f80u), "r"(half_zero ^ 0x80008000u));
    }
  }
}

/// a[0..8): operand registers of a batch's two steps. int8: value * 2^(8 - Bits) in each byte; the factor leaves the sums
/// in scale_accumulate_*(), exactly. Halves: the values.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void decode(const uint32_t* w, uint32_t half_zero, uint32_t* a) {
  using Order = FragmentOrder<Bits, kXBytes<X>>;
  if constexpr (Bits == kTwoPlanes) {  // +1 or -1 or 0 in each byte: positive | 255 * negative
    const uint32_t negative = w[1] & ~w[0];
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = ((w[0] >> i) & 0x01010101u) | ((negative >> i) & 0x01010101u) * 255u;
  } else {
    decode_fields<X, Bits>(w, half_zero, a);
  }
}

/// Sums of up to 256 columns: |sum * 2^shift| < 2^22, so that adding the bits of 1.5 * 2^(23 - shift) makes a float of it.
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

/// Sums of a whole row, exact in f32: |sum| < 2^22 with two bits and fewer than kSmallSumColumns columns. Conversions of
/// integers have a quarter of the rate of additions or less.
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

/// Scales and accumulates one group of a lane's sums (two rows of weights with scales s, Bm tokens) into acc. XScales: the group has
/// scales of x, x_scales[token].
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

/// The same without scales of x, for sums and acc that are both 2^kFactor times too large: one conversion and one fma each. Equal
/// bits after the division by 2^kFactor: roundings are relative, and every term is a multiple of 2^-149 anyway, so that what would be
/// subnormal is exact in both. Only |acc| from 2^(128 - kFactor) on becomes infinite too early.
template <GemmActivation X, int Bits, int Bm>
__device__ __forceinline__ void scale_accumulate_factored(const typename SumOf<X>::Type* d, float2 s, float* acc) {
#pragma unroll
  for (int i = 0; i < Bm / 2; ++i) acc[i] = __fmaf_rn(float(d[i]), i & 2 ? s.y : s.x, acc[i]);
}

/// Bits of x: sums count columns with both bits set, products are 1 where two bits are equal and -1 elsewhere, so that
/// the sum of products is 4 * sum + (k - 2 ones of w) + (-2 ones of x). `d`: a lane's sums for rows n, n + 1 and Bm tokens.
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

/// What is left to do to an accumulated sum: xs = x_row_scale(m) for int8.
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
