#pragma once
// Format = Codec x Packing, and the proofs that every format passes at compile time.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/isa.h"
#include "format/codec.h"
#include "format/packing.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

template <class CodecT, class PackingT>
struct Format {
  using Codec = CodecT;
  using Packing = PackingT;
  static constexpr int kBits = Codec::kBits, kElems = Packing::kElems, kPackBytes = Packing::kPackBytes;

  static constexpr LOWBIT_HD unsigned code_at(const uint8_t* pack, int e) { return get_code<Packing>(pack, e, kBits); }
  static constexpr LOWBIT_HD void put(uint8_t* pack, int e, unsigned code) { set_code<Packing>(pack, e, code, kBits); }
  static constexpr LOWBIT_HD auto decode(const uint8_t* pack, int e) { return Codec::value(code_at(pack, e)); }
  template <class V>
  static constexpr LOWBIT_HD void encode(uint8_t* pack, int e, V value) {
    put(pack, e, Codec::code(value));
  }

  /// All codes of a pack. A format may replace it by something faster; the proofs below compare the
  /// two.
  static constexpr LOWBIT_HD void unpack(const uint8_t* pack, uint8_t* codes) {
    if constexpr (requires { Packing::kDenseBits; } && Packing::kDenseBits && 8 % kBits == 0) {
      constexpr int kPerByte = 8 / kBits;
      for (int e = 0; e < kElems; ++e)
        codes[e] = uint8_t((pack[e / kPerByte] >> (e % kPerByte * kBits)) & ((1u << kBits) - 1u));
    } else {
      for (int e = 0; e < kElems; ++e) codes[e] = uint8_t(code_at(pack, e));
    }
  }
};

// ---- Proofs
// ---------------------------------------------------------------------------------------------------------

/// Every bit of the pack belongs to exactly one bit of one code.
template <class F>
constexpr bool is_permutation() {
  if constexpr (BitPacking<typename F::Packing>) {
    std::array<uint8_t, F::kPackBytes> seen{};
    for (int e = 0; e < F::kElems; ++e)
      for (int b = 0; b < F::kBits; ++b) {
        const BitPos p = F::Packing::at(e, b);
        if (p.word < 0 || 4 * p.word >= F::kPackBytes || p.bit < 0 || p.bit > 31) return false;
        uint8_t& byte = seen[std::size_t(4 * p.word + p.bit / 8)];
        if (byte >> (p.bit % 8) & 1u) return false;
        byte = uint8_t(byte | 1u << (p.bit % 8));
      }
    for (uint8_t s : seen)
      if (s != 0xff) return false;
  }
  return true;
}

/// Each code survives being stored in each place, whatever its neighbours are.
template <class F>
constexpr bool round_trips() {
  for (int e = 0; e < F::kElems; ++e)
    for (unsigned c = 0; c < unsigned(F::Codec::kCodes); ++c) {
      std::array<uint8_t, F::kPackBytes> pack{};
      for (int other = 0; other < F::kElems; ++other)
        F::put(pack.data(), other, unsigned(other + int(c)) % unsigned(F::Codec::kCodes));
      F::put(pack.data(), e, c);
      for (int other = 0; other < F::kElems; ++other) {
        const unsigned want = other == e ? c : unsigned(other + int(c)) % unsigned(F::Codec::kCodes);
        if (F::code_at(pack.data(), other) != want) return false;
      }
      if constexpr (F::kBits == 8) e = F::kElems - 1;  // one place is enough for whole bytes
    }
  return true;
}

/// code(value(c)) is c, or another code of the same value (NaN and the unused codes of ternary
/// aside).
template <class F>
constexpr bool codec_inverts() {
  for (unsigned c = 0; c < unsigned(F::Codec::kCodes); ++c) {
    const auto v = F::Codec::value(c);
    if (v != v) continue;
    if (F::Codec::value(F::Codec::code(v)) != v) return false;
  }
  return true;
}

template <class F>
constexpr bool unpack_equals_code_at() {
  uint32_t x = 0x9e3779b9u;
  for (int n = 0; n < 16; ++n) {
    std::array<uint8_t, F::kPackBytes> pack{};
    for (auto& byte : pack) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
      byte = uint8_t(x);
    }
    std::array<uint8_t, F::kElems> codes{};
    F::unpack(pack.data(), codes.data());
    for (int e = 0; e < F::kElems; ++e)
      if (codes[std::size_t(e)] != F::code_at(pack.data(), e)) return false;
  }
  return true;
}

/// The proofs of one format, each a constant expression of its own.
template <class F>
struct Proof {
  static_assert(is_permutation<F>(), "a packing must use every bit of its pack exactly once");
  static_assert(round_trips<F>(), "a stored code must read back");
  static_assert(codec_inverts<F>(), "a codec must invert its own values");
  static_assert(unpack_equals_code_at<F>(), "a fast unpack must equal the derived one");
  static constexpr bool value = true;
};

/// A compile-time list of formats; instantiating it runs the proofs.
template <class... F>
struct TypeList {
  static_assert((Proof<F>::value && ...));
  static constexpr int kSize = sizeof...(F);
};

}  // namespace LOWBIT_ISA
}  // namespace lowbit
