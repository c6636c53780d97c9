#pragma once
// Where the integers of a product come from: packed blocks of a panel, unpacked in registers, or bytes unpacked before.
// Each source is a type that the sums of kernels/cpu/integer_sums.h and the tiles of kernels/cpu/integer_tile.h take. A
// pack is what one load brings: kSteps steps of four columns.
//
// Every source says
//   Dot         the dot product of four codes with four int8 in a lane
//   kAdds       the format's values have an offset, whose share of a sum is in MatmulArgs::code_sums
//   Lookup      int8 lookup table of a codebook, or nothing
//   kSteps      steps of a pack
//   kStreams    packs are read from the panel itself, so prefetches run ahead of them
//   kWholeBlocks, kBase3  packs are blocks of a panel; digits of base 3
//   kHistory    a pack's first codes depend on the pack before it (trellis)

#include "kernels/cpu/panel.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

/// The int8 factors of a format: its values, or the entries of its codebook.
template <class Codec, CodecKind Kind = Codec::kKind>
struct Multiplied {
  using type = Codec;
};
template <class Codec>
struct Multiplied<Codec, CodecKind::kTable> {
  using type = Int8::Codec;
};

/// A codebook as bytes: the look-up is all that its kernels do more. Nothing for other formats.
template <class S, bool kTable>
struct LookupTable {};
template <class S>
struct LookupTable<S, true> {
  typename S::Int bytes;
};

/// The pack before pack 0 or before the first of a group, which does not lie kBlockBytes before it. Trellises alone.
struct History {
  int64_t pack = 0;
  const uint8_t* before = nullptr;
};

/// How the codes of format F are multiplied on vectors S.
template <class S, class F>
struct IntegerCodes {
  using Int = typename S::Int;
  using Codec = typename Multiplied<typename F::Codec>::type;
  static constexpr bool kTable = F::Codec::kKind == CodecKind::kTable;
  using P = Panel<S, F>;
  using Packed = typename P::Packed;
  static constexpr bool kBase3 = F::kId == FormatId::kTernaryPacked;
  // The multiplier of value = kMul * (code ^ flip) + kAdd is a shift of the unpacked codes.
  static constexpr int kUp = Codec::kMul == 2 ? 1 : 0;
  static_assert(Codec::kMul == 1 || Codec::kMul == 2);
  static constexpr int kMaxCode = (kBase3 ? 2 : (1 << Codec::kBits) - 1) << kUp;  // an unused code 3 may be in a file
  using Dot = typename S::template Dot<kMaxCode>;
  static constexpr unsigned kFlip = Dot::kSigned ? 0u : Codec::kFlip;
  static constexpr int kAdd = Dot::kSigned ? 0 : Codec::kAdd;
  static constexpr int64_t kStepBytes = 4 * P::kRows;
  static constexpr bool kHistory = OnTrellis<F>;
  alignas(64) static constexpr uint8_t kNoBlock[kHistory ? P::kBlockBytes : 1] = {};

  using Lookup = LookupTable<S, kTable>;
  /// The codebook, flipped as int8's codes are.
  template <unsigned Flip = kFlip>
  LOWBIT_INLINE Lookup lookup_of(const MatmulArgs& a) {
    if constexpr (kTable)
      return {S::xor_(S::load_table8(a.table_int8), S::set8(int(Flip)))};
    else
      return {};
  }
};

/// A source's packs are blocks of a panel: unpacked in registers.
template <class S, class F>
struct BlockCodes {
  using C = IntegerCodes<S, F>;
  using P = typename C::P;
  using Packed = typename C::Packed;
  using Codec = typename C::Codec;
  using Dot = typename C::Dot;
  using Lookup = typename C::Lookup;
  using Int = typename S::Int;
  static constexpr bool kAdds = C::kAdd != 0, kHistory = C::kHistory, kStreams = true, kWholeBlocks = true,
                        kBase3 = false;
  static constexpr int kSteps = Packed::kSteps, kUp = C::kUp;
  static constexpr int64_t kBytes = P::kBlockBytes;
  Int words[2][Packed::kWords + int(kHistory)];

  static History no_history() { return {0, C::kNoBlock}; }
  LOWBIT_INLINE Lookup lookup_of(const MatmulArgs& a) { return C::lookup_of(a); }
  /// Behind a single pass over memory prefetches go further ahead than where each panel is worked on for a while.
  template <bool kStreaming = true>
  __attribute__((always_inline)) void load(const uint8_t* codes, int64_t pack, const History& history) {
    constexpr int64_t kStepBytes = C::kStepBytes;
    const uint8_t* block = codes + pack * P::kBlockBytes;
    for (int w = 0; w < Packed::kWords; ++w) {
      if constexpr (kStreaming) S::prefetch_ahead(block + w * kStepBytes + S::kAhead);
      if constexpr (!kStreaming) S::prefetch(block + w * kStepBytes + 2048);
      words[0][w] = S::load(block + w * kStepBytes);
      words[1][w] = S::load(block + w * kStepBytes + kStepBytes / 2);
    }
    if constexpr (kHistory) {
      const uint8_t* const before = pack == history.pack ? history.before : block - P::kBlockBytes;
      for (int v = 0; v < 2; ++v) words[v][1] = S::with_last_byte_of(S::load(before + v * kStepBytes / 2), words[v][0]);
    }
  }
  __attribute__((always_inline)) Int step(int v, int s, const Lookup& lookup) const {
    if constexpr (C::kTable)
      return S::look_up8(lookup.bytes, Packed::template step<S, 0, S::kMaskedLookUp>(words[v], s));
    else
      return Packed::template step<S, kUp>(words[v], s);
  }
};

/// Packed blocks too, but a pack is a step: groups of x begin and end inside of blocks.
template <class S, class F>
struct StepCodes {
  using C = IntegerCodes<S, F>;
  using P = typename C::P;
  using Blocks = BlockCodes<S, F>;
  using Dot = typename C::Dot;
  using Lookup = typename C::Lookup;
  static constexpr bool kAdds = C::kAdd != 0, kHistory = C::kHistory, kStreams = true, kWholeBlocks = false,
                        kBase3 = false;
  static constexpr int kSteps = 1;
  static History no_history() { return Blocks::no_history(); }
  LOWBIT_INLINE Lookup lookup_of(const MatmulArgs& a) { return C::lookup_of(a); }
};

/// Ternary digits five a byte, a pack is a step: partial blocks are read as they are.
template <class S, class F>
struct Base3Codes {
  using C = IntegerCodes<S, F>;
  using P = typename C::P;
  using Packed = typename C::Packed;
  using Dot = typename C::Dot;
  using Lookup = typename C::Lookup;
  static constexpr bool kAdds = C::kAdd != 0, kHistory = false, kStreams = true, kWholeBlocks = false, kBase3 = true;
  static constexpr int kSteps = 1;
  static History no_history() { return {}; }
  LOWBIT_INLINE Lookup lookup_of(const MatmulArgs&) { return {}; }
};

/// The bytes of unpack_panel(), a step each. No format has loops of its own for them: what differs is the dot product
/// and whether there is an offset.
template <class S, class DotProduct, bool kOffset>
struct ByteCodes {
  using Dot = DotProduct;
  using Lookup = LookupTable<S, false>;
  using Int = typename S::Int;
  static constexpr bool kAdds = kOffset, kHistory = false, kStreams = false, kWholeBlocks = false, kBase3 = false;
  static constexpr int kSteps = 1;
  static constexpr int64_t kBytes = 8 * S::kLanes;
  Int codes[2];

  static History no_history() { return {}; }
  LOWBIT_INLINE Lookup lookup_of(const MatmulArgs&) { return {}; }
  __attribute__((always_inline)) void load(const uint8_t* bytes, int64_t pack, const History&) {
    codes[0] = S::load(bytes + pack * kBytes);
    codes[1] = S::load(bytes + pack * kBytes + kBytes / 2);
  }
  __attribute__((always_inline)) Int step(int v, int, const Lookup&) const { return codes[v]; }
};

/// Formats whose codes have as many bits share these: 2^bits - 1 bounds what dot products of 16 bits add up.
template <class S, class F>
using BytesOf =
    ByteCodes<S,
              typename S::template Dot<IntegerCodes<S, F>::Codec::kBits == 8
                                           ? 255
                                           : (1 << (IntegerCodes<S, F>::Codec::kBits + IntegerCodes<S, F>::kUp)) - 1>,
              IntegerCodes<S, F>::kAdd != 0>;

}  // namespace LOWBIT_ISA
}  // namespace lowbit
