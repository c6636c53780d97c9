#pragma once
// Codecs: what a code means. One small struct each, usable on host and device and at compile time.
//
// The affine integer codecs obey  value = kMul * (code ^ kFlip) + kAdd,  which is all a kernel
// needs to know: it may sum codes times activations and put kMul and kAdd * sum(activations) in
// afterwards.

#include <cstdint>

#include "base/float.h"
#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

enum class CodecKind : uint8_t { kInteger, kFloat, kTable };

template <int Bits, unsigned Flip, int Mul, int Add>
struct AffineCodec {
  static constexpr CodecKind kKind = CodecKind::kInteger;
  static constexpr bool kAffine = true;
  static constexpr int kBits = Bits, kCodes = 1 << Bits, kMul = Mul, kAdd = Add;
  static constexpr unsigned kFlip = Flip;
  static constexpr int kMin = Add, kMax = Mul * (kCodes - 1) + Add;
  static constexpr LOWBIT_HD int value(unsigned code) { return Mul * int(code ^ Flip) + Add; }
  static constexpr LOWBIT_HD unsigned code(int v) { return (unsigned((v - Add) / Mul) ^ Flip) & unsigned(kCodes - 1); }
};

template <int B>
using OffsetBinary = AffineCodec<B, 0, 1, -(1 << (B - 1))>;  // value = code - 2^(B-1)
template <int B>
using Unsigned = AffineCodec<B, 0, 1, 0>;  // value = code
template <int B>
using TwosComplement = AffineCodec<B, 1u << (B - 1), 1, -(1 << (B - 1))>;
template <int B>
using OddSymmetric = AffineCodec<B, 0, 2, 1 - (1 << B)>;  // value = 2 code - (2^B - 1); B = 1 is {-1, +1}

struct Ternary {  // code = value + 1; code 3 is not used
  static constexpr CodecKind kKind = CodecKind::kInteger;
  static constexpr bool kAffine = true;
  static constexpr int kBits = 2, kCodes = 3, kMul = 1, kAdd = -1, kMin = -1, kMax = 1;
  static constexpr unsigned kFlip = 0;
  static constexpr LOWBIT_HD int value(unsigned code) { return int(code) - 1; }
  static constexpr LOWBIT_HD unsigned code(int v) { return unsigned(v + 1); }
};

struct NonzeroSign {  // bit 0: value != 0, bit 1: value > 0. Source: seed 003 section 1.4
  static constexpr CodecKind kKind = CodecKind::kInteger;
  static constexpr bool kAffine = false;
  static constexpr int kBits = 2, kCodes = 4, kMin = -1, kMax = 1;
  static constexpr LOWBIT_HD int value(unsigned code) { return int(code & 1u) * (int(code & 2u) - 1); }
  static constexpr LOWBIT_HD unsigned code(int v) { return unsigned(v != 0) | unsigned(v > 0) << 1; }
};

struct E4m3 {
  static constexpr CodecKind kKind = CodecKind::kFloat;
  static constexpr bool kAffine = false;
  static constexpr int kBits = 8, kCodes = 256, kMin = -448, kMax = 448;
  static constexpr LOWBIT_HD float value(unsigned code) { return e4m3_to_f32(uint8_t(code)); }
  static constexpr LOWBIT_HD unsigned code(float v) { return f32_to_e4m3(v); }
};

template <int B>
struct Codebook {  // value = table[code], the table belongs to the tensor
  static constexpr CodecKind kKind = CodecKind::kTable;
  static constexpr bool kAffine = false;
  static constexpr int kBits = B, kCodes = 1 << B, kMin = 0, kMax = kCodes - 1;
  static constexpr LOWBIT_HD int value(unsigned code) { return int(code); }  // the index
  static constexpr LOWBIT_HD unsigned code(int v) { return unsigned(v); }
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
