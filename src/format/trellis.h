#pragma once
// Trellis coded quantization: B bits are stored for a weight, and what they mean depends on the codes before them.
//
// With c_j the stored codes of a row and c_j = 0 for j < 0, the window of weight i is w = c_i | c_{i-1} << B | c_{i-2}
// << 2 B | .., kMemory codes back. Bit a of the weight's code, an index into a table of 16, is the parity of w &
// mask(a). A row is one path through the trellis: it does not restart at groups, and any weight of it can be decoded
// from the kMemory codes before it. Source: Ungerboeck 1982; Marcellin and Fischer 1990; Tseng et al. 2024 (QTIP).

#include <array>
#include <cstdint>

#include "format/format.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <int B>
struct Trellis {
  static constexpr int kElems = Linear<B>::kElems, kPackBytes = Linear<B>::kPackBytes;
  static constexpr bool kDenseBits = true;
  static constexpr int kStoredBits = B, kMemory = B == 2 ? 3 : 2;
  static constexpr unsigned kStates = 1u << (B * kMemory), kWindows = kStates << B;

  /// Which bits of the window make bit `a` of the code. Found by searching for the least squared error on Gaussian
  /// values (docs/adr/0094-trellis-formats.md).
  static constexpr LOWBIT_HD unsigned mask(int a) {
    constexpr unsigned kMasks[2][4] = {{0x24, 0x28, 0x63, 0x86}, {0x30, 0xa1, 0x152, 0x44}};
    return kMasks[B - 2][a];
  }
  static constexpr LOWBIT_HD unsigned code(unsigned window) {
    unsigned code = 0;
    for (int a = 0; a < 4; ++a) {
      unsigned bits = window & mask(a), parity = 0;
      for (; bits != 0; bits &= bits - 1) parity ^= 1;
      code |= parity << a;
    }
    return code;
  }
  /// The window of the next weight, which stores `stored`.
  static constexpr LOWBIT_HD unsigned next(unsigned window, unsigned stored) {
    return (window << B | stored) & (kWindows - 1);
  }
};

/// Codes by window.
template <int B>
inline constexpr auto kTrellisCodes = [] {
  std::array<uint8_t, Trellis<B>::kWindows> codes{};
  for (unsigned w = 0; w < codes.size(); ++w) codes[w] = uint8_t(Trellis<B>::code(w));
  return codes;
}();

inline constexpr uint8_t kOffTrellis = 0xff;

/// The bits to store for each code behind each state (the window before it, without its oldest code): [state][code].
template <int B>
inline constexpr auto kTrellisStored = [] {
  std::array<std::array<uint8_t, 16>, Trellis<B>::kStates> stored{};
  for (auto& row : stored) row.fill(kOffTrellis);
  for (unsigned w = 0; w < Trellis<B>::kWindows; ++w)
    stored[w >> B][kTrellisCodes<B>[w]] = uint8_t(w & ((1u << B) - 1));
  return stored;
}();

/// Behind every state, all that can be stored are different codes: a row's codes tell what was stored.
template <int B>
constexpr bool codes_tell_what_is_stored() {
  for (const auto& row : kTrellisStored<B>) {
    int offered = 0;
    for (const uint8_t stored : row) offered += stored != kOffTrellis;
    if (offered != 1 << B) return false;
  }
  return true;
}

/// Codes on a trellis: no pack can be read alone, so there is no access by packs.
template <class CodecT, int B>
struct Format<CodecT, Trellis<B>> {
  using Codec = CodecT;
  using Packing = Trellis<B>;
  static constexpr int kBits = Codec::kBits, kElems = Packing::kElems, kPackBytes = Packing::kPackBytes;
};

template <class F>
concept OnTrellis = requires {
  F::Packing::kStoredBits;
};

template <OnTrellis F>
struct Proof<F> {
  static_assert(F::Codec::kCodes == 16, "a trellis has codes of 4 bits");
  static_assert(codes_tell_what_is_stored<F::Packing::kStoredBits>(), "codes must tell what is stored");
  static constexpr bool value = true;
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
