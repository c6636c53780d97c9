#pragma once
// THE list of packed formats. To add one: a line here and its FormatId in include/lowbit/format_id.h
// (docs/adding-a-format.md).

#include "format/format.h"
#include "format/trellis.h"
#include "lowbit/format_id.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// A list entry: the type that packs, and what registry and files call it.
template <FormatId Id, class F>
struct Entry : F {
  static constexpr FormatId kId = Id;
};

struct Int8 : Entry<FormatId::kInt8, Format<TwosComplement<8>, Linear<8>>> {
  static constexpr const char *kName = "int8", *kAlphabet = "-128..127";
};
struct Int4 : Entry<FormatId::kInt4, Format<TwosComplement<4>, Linear<4>>> {
  static constexpr const char *kName = "int4", *kAlphabet = "-8..7";
};
struct Uint4 : Entry<FormatId::kUint4, Format<Unsigned<4>, Linear<4>>> {
  static constexpr const char *kName = "uint4", *kAlphabet = "0..15";
};
struct Int3 : Entry<FormatId::kInt3, Format<OffsetBinary<3>, Linear<3>>> {
  static constexpr const char *kName = "int3", *kAlphabet = "-4..3";
};
struct Int2 : Entry<FormatId::kInt2, Format<OffsetBinary<2>, Linear<2>>> {
  static constexpr const char *kName = "int2", *kAlphabet = "-2..1";
};
struct Int3Odd : Entry<FormatId::kInt3Odd, Format<OddSymmetric<3>, Linear<3>>> {
  static constexpr const char *kName = "int3odd", *kAlphabet = "-7, -5, .. 7";
};
struct Int2Odd : Entry<FormatId::kInt2Odd, Format<OddSymmetric<2>, Linear<2>>> {
  static constexpr const char *kName = "int2odd", *kAlphabet = "-3, -1, 1, 3";
};
struct Binary : Entry<FormatId::kBinary, Format<OddSymmetric<1>, Linear<1>>> {
  static constexpr const char *kName = "binary", *kAlphabet = "-1, 1";
};
struct Ternary2Bit : Entry<FormatId::kTernary, Format<Ternary, Linear<2>>> {
  static constexpr const char *kName = "ternary", *kAlphabet = "-1, 0, 1";
};
struct TernaryPacked : Entry<FormatId::kTernaryPacked, Format<Ternary, Base3x5>> {
  static constexpr const char *kName = "ternary-packed", *kAlphabet = "-1, 0, 1";
};
struct Fp8 : Entry<FormatId::kFp8, Format<E4m3, Linear<8>>> {
  static constexpr const char *kName = "fp8", *kAlphabet = "E4M3, -448..448";
};
struct Codebook4 : Entry<FormatId::kCodebook4, Format<Codebook<4>, Linear<4>>> {
  static constexpr const char *kName = "codebook4", *kAlphabet = "16 table entries";
};
struct Codebook3 : Entry<FormatId::kCodebook3, Format<Codebook<3>, Linear<3>>> {
  static constexpr const char *kName = "codebook3", *kAlphabet = "8 table entries";
};
struct Codebook2 : Entry<FormatId::kCodebook2, Format<Codebook<2>, Linear<2>>> {
  static constexpr const char *kName = "codebook2", *kAlphabet = "4 table entries";
};
struct Int2Transposed : Entry<FormatId::kInt2Transposed, Format<OffsetBinary<2>, Transposed4x4>> {
  static constexpr const char *kName = "int2-transposed", *kAlphabet = "-2..1";
};
struct Int2Planes : Entry<FormatId::kInt2Planes, Format<OffsetBinary<2>, Bitplanes<2>>> {
  static constexpr const char *kName = "int2-planes", *kAlphabet = "-2..1";
};
struct Int3Planes : Entry<FormatId::kInt3Planes, Format<OffsetBinary<3>, Bitplanes<3>>> {
  static constexpr const char *kName = "int3-planes", *kAlphabet = "-4..3";
};
struct Int4Planes : Entry<FormatId::kInt4Planes, Format<OffsetBinary<4>, Bitplanes<4>>> {
  static constexpr const char *kName = "int4-planes", *kAlphabet = "-8..7";
};
struct TernaryPlanes : Entry<FormatId::kTernaryPlanes, Format<NonzeroSign, Bitplanes<2>>> {
  static constexpr const char *kName = "ternary-planes", *kAlphabet = "-1, 0, 1";
};

struct Trellis2 : Entry<FormatId::kTrellis2, Format<Codebook<4>, Trellis<2>>> {
  static constexpr const char *kName = "trellis2", *kAlphabet = "16 table entries, 4 behind each";
};
struct Trellis3 : Entry<FormatId::kTrellis3, Format<Codebook<4>, Trellis<3>>> {
  static constexpr const char *kName = "trellis3", *kAlphabet = "16 table entries, 8 behind each";
};

/// Formats whose packs can be read alone, in the order of FormatId, after the dense ones.
using RandomAccessFormatList =
    TypeList<Int8, Int4, Uint4, Int3, Int2, Int3Odd, Int2Odd, Binary, Ternary2Bit, TernaryPacked, Fp8, Codebook4,
             Codebook3, Codebook2, Int2Transposed, Int2Planes, Int3Planes, Int4Planes, TernaryPlanes>;

template <class... A, class... B>
constexpr TypeList<A..., B...> join(TypeList<A...>, TypeList<B...>) {
  return {};
}

/// All, in the order of FormatId.
using FormatList = decltype(join(RandomAccessFormatList{}, TypeList<Trellis2, Trellis3>{}));

inline constexpr int kDenseFormats = 3;  // kF32, kF16, kBf16 come first in FormatId

/// Calls `Kernel<F>::value` for each format of either list: a constexpr table indexed by FormatId - kDenseFormats,
/// so that the host finds a launcher by one look-up and nothing ever branches on the bit width.
/// Source: seed 000 section 5.
template <template <class> class Kernel, class... F>
constexpr auto make_table(TypeList<F...>) {
  return std::array{Kernel<F>::value...};
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
