#pragma once
// From stored words to operand registers, for every pipeline: words in fragment order are loaded, and their codes
// become the integers or halves that a tensor-core instruction takes.

#include "kernels/cuda/gemm/primitives/operands.cuh"
#include "kernels/cuda/gemm/weight_order/fragment_order.h"
#include "kernels/cuda/gemm/weight_order/trellis_decode.cuh"

namespace lowbit::cuda {

/// Sums are 2^kFactor times too large (decode()).
template <int Bits>
inline constexpr int kFactor = Bits == kTwoPlanes || Bits == kTable || Bits == kTrellis || Bits == kE4m3 ? 0 : 8 - Bits;

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

/// Two bf16: `codes` are 8 bits in each half, and the values are 128 less. A mantissa has seven bits: halves of four
/// bits above 128 each, of which the upper one becomes 16 * code - 256; everything is exact.
__device__ __forceinline__ uint32_t bf16_of_bytes(uint32_t codes) {
  constexpr uint32_t kMask = 0x000f000fu, kSixteen = 0x41804180u, kMinus2304 = 0xc510c510u, kOne = 0x3f803f80u;
  const uint32_t low = masked_or<0x43004300u>(codes, kMask), high = masked_or<0x43004300u>(codes >> 4, kMask);
  uint32_t upper, value;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(upper) : "r"(high), "r"(kSixteen), "r"(kMinus2304));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(low), "r"(kOne), "r"(upper));
  return value;
}

/// Two E4M3 codes, the upper byte of each half of `codes`, as f16 or bf16. Moved down to where these have exponent and
/// mantissa, a code's bits are its value times 2^-8 or 2^-120, subnormal ones included; a product takes that back.
template <GemmActivation X>
__device__ __forceinline__ uint32_t halves_of_e4m3(uint32_t codes) {
  constexpr bool kF16 = X == GemmActivation::kF16;
  const uint32_t sign = codes & 0x80008000u;
  const uint32_t bits = sign | (codes >> (kF16 ? 1 : 4) & (kF16 ? 0x3f803f80u : 0x07f007f0u));
  uint32_t value;
  if constexpr (kF16) {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(value) : "r"(bits), "r"(0x5c005c00u));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(value) : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));
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
    } else if constexpr (Bits == 8) {
      a[i] = bf16_of_bytes(word >> (Bits * nth));
    } else {
      const uint32_t v = masked_or<0x43004300u>(word >> (Bits * nth), ((1u << Bits) - 1u) * 0x00010001u);
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a[i]) : "r"(v), "r"(0x3f803f80u), "r"(half_zero ^ 0x80008000u));
    }
  }
}

/// a[0..8): operand registers of a batch's two steps. int8: value * 2^(8 - Bits) in each byte; the factor leaves the
/// sums in scale_accumulate_*(), exactly. Halves: the values.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void decode(const uint32_t* w, uint32_t half_zero, uint32_t* a) {
  if constexpr (Bits == kTwoPlanes) {  // +1 or -1 or 0 in each byte: positive | 255 * negative
    const uint32_t negative = w[1] & ~w[0];
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = ((w[0] >> i) & 0x01010101u) | ((negative >> i) & 0x01010101u) * 255u;
  } else if constexpr (Bits == kE4m3) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = halves_of_e4m3<X>(i % 2 == 0 ? w[i / 2] << 8 : w[i / 2]);
  } else {
    decode_fields<X, Bits>(w, half_zero, a);
  }
}

/// decode() of weights for int8 activations, batch by batch of a row. table: table_in_order(). All lanes.
template <int Bits>
__device__ __forceinline__ void decode_int8(const uint32_t* w, const uint32_t (&table)[4], RowHistory<Bits>& history,
                                            uint32_t* a) {
  if constexpr (Bits == kTable) {
#pragma unroll
    for (int i = 0; i < 4; ++i) look_up_halves(table, w[i] & 0x77777777u, half_selector(w[i] >> 1), a + 2 * i);
  } else if constexpr (Bits == kTrellis) {
    TrellisIndices indices;
    indices.decode(w, history);
    indices.look_up(table, 0, a);
    indices.look_up(table, 1, a + 4);
  } else {
    decode<GemmActivation::kInt8, Bits>(w, 0, a);
  }
}

/// Operands whose products are added: two for a table.
template <int Bits>
inline constexpr int kInt8Parts = Bits == kTable ? 2 : 1;
/// decode_int8() in parts. table: split_table() for kTable: seven instructions for eight weights where decode_int8()
/// takes eleven, and a product more for sixteen.
template <int Bits>
__device__ __forceinline__ void decode_int8_parts(const uint32_t* w, const uint32_t (&table)[4],
                                                  RowHistory<Bits>& history, uint32_t (&a)[kInt8Parts<Bits>][8]) {
  if constexpr (Bits == kTable) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t codes = i % 2 == 0 ? w[i / 2] : upper_half(w[i / 2]);
      a[0][i] = pick_bytes(table[0], table[1], codes);
      a[1][i] = pick_bytes(table[2], table[3], ~codes);
    }
  } else {
    decode_int8<Bits>(w, table, history, a[0]);
  }
}

}  // namespace lowbit::cuda
