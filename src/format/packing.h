#pragma once
// Packings: where is bit b of element e inside a pack? A pack is the smallest run that packs
// without a remainder; its bytes are little-endian 32-bit words where the packing speaks of words.

#include <cstdint>

#include "base/isa.h"

namespace lowbit {
inline namespace LOWBIT_ISA {

struct BitPos {
  int word, bit;
};

/// A packing given by a bit position has `at`; the byte-wise access below is derived from it.
template <class P>
concept BitPacking = requires {
  P::at(0, 0);
};

constexpr int gcd_with_32(int b) { return b % 32 == 0 ? 32 : b & -b; }  // for 1 <= b <= 32

/// Dense bit stream, least significant bit first: code e occupies bits [B e, B e + B). 3-bit codes
/// cross words.
template <int B>
struct Linear {
  static constexpr int kElems = 32 / gcd_with_32(B), kWords = B / gcd_with_32(B), kPackBytes = 4 * kWords;
  static constexpr bool kDenseBits = true;  // any prefix of a pack is itself a valid, shorter row
  static constexpr LOWBIT_HD BitPos at(int e, int b) { return {(B * e + b) / 32, (B * e + b) % 32}; }
};

/// 16 two-bit codes in a word, in the order 0,4,8,12,1,5,9,13,...: `(word >> 2 i) & 0x03030303` is
/// codes 4i..4i+3. Source: seed 002 section 4.4.2.
struct Transposed4x4 {
  static constexpr int kElems = 16, kWords = 1, kPackBytes = 4;
  static constexpr bool kDenseBits = false;
  static constexpr LOWBIT_HD BitPos at(int e, int b) { return {0, 2 * ((e % 4) * 4 + e / 4) + b}; }
};

/// One word per bit of the code, 32 elements. Source: seed 003 sections 1.4 and 3.1.
template <int B>
struct Bitplanes {
  static constexpr int kElems = 32, kWords = B, kPackBytes = 4 * B;
  static constexpr bool kDenseBits = false;
  static constexpr LOWBIT_HD BitPos at(int e, int b) { return {b, e}; }
};

/// Five base-3 digits in a byte, stored as the fraction ceil(number * 256 / 243), first digit most
/// significant: the digit of element e is the integer part of 3 * frac(byte / 256 * 3^e), three
/// multiply-shifts and no division.
struct Base3x5 {
  static constexpr int kElems = 5, kPackBytes = 1;
  static constexpr bool kDenseBits = false;
  static constexpr LOWBIT_HD unsigned get(const uint8_t* pack, int e) {
    constexpr unsigned kPow3[5] = {1, 3, 9, 27, 81};
    return (((unsigned(pack[0]) * kPow3[e]) & 0xffu) * 3u) >> 8;
  }
  static constexpr LOWBIT_HD void set(uint8_t* pack, int e, unsigned code) {
    unsigned number = 0;
    for (int i = 0; i < 5; ++i) number = 3 * number + (i == e ? code : get(pack, i));
    pack[0] = uint8_t((number * 256 + 242) / 243);
  }
};

template <class P>
constexpr LOWBIT_HD unsigned get_code(const uint8_t* pack, int e, int bits) {
  if constexpr (BitPacking<P>) {
    unsigned code = 0;
    for (int b = 0; b < bits; ++b) {
      const BitPos p = P::at(e, b);
      code |= ((unsigned(pack[4 * p.word + p.bit / 8]) >> (p.bit % 8)) & 1u) << b;
    }
    return code;
  } else {
    return P::get(pack, e);
  }
}

template <class P>
constexpr LOWBIT_HD void set_code(uint8_t* pack, int e, unsigned code, int bits) {
  if constexpr (BitPacking<P>) {
    for (int b = 0; b < bits; ++b) {
      const BitPos p = P::at(e, b);
      uint8_t& byte = pack[4 * p.word + p.bit / 8];
      byte = uint8_t((byte & ~(1u << (p.bit % 8))) | ((code >> b) & 1u) << (p.bit % 8));
    }
  } else {
    P::set(pack, e, code);
  }
}

}  // namespace LOWBIT_ISA
}  // namespace lowbit
