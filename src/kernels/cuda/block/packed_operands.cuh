#pragma once
// Codes of a packed page as bytes that tensor cores multiply, without a conversion: a code may lie in any bits of its
// byte, which makes it a multiple. A mask, and a choice of bytes where two words have a row's codes side by side, give
// four rows in a register (code_position(), kernels/packed_kv.h). What stands beside codes goes into the other operand.
//
// A step is 32 rows: elements of a head where codes are keys, positions where they are values. Lane 4 g + t has eight
// of them, four of each half, and of sixteen columns n those at 16 n + 2 g and 16 n + 2 g + 1.

#include "kernels/cuda/half_matrices.cuh"
#include "kernels/packed_kv.h"

namespace lowbit::cuda::block {

/// In shared memory lines of 128 bytes have their eight pieces of 16 bytes in another order, so that the lanes of a
/// load read different banks: piece p lies where p ^ 2 t does, t of the lanes that read the line.
__device__ __forceinline__ unsigned piece_offset(unsigned line, unsigned piece, unsigned reader) {
  return line * 128 + ((piece ^ (2 * reader)) * 16);
}
/// Lanes as numbers that are not negative: what is masked of them needs no correction.
__device__ __forceinline__ unsigned lane_of_warp() { return threadIdx.x % 32u; }

/// Matrices of kBits and `kColumns` columns; a byte is the code times 2^exponent(n) in columns n, and where
/// has_lower(n) it has the operand of n - 1 below it: a difference of sums costs less than a mask of each word.
///
/// kSixteen: the lane's rows of two steps are sixteen that follow each other, so that loads of 16 bytes bring what
/// stands beside them. Else they are 16 half + 4 t to 16 half + 4 t + 3 of the step.
template <int kBits, int kColumns, bool kSixteen>
struct CodeOperands {
  static constexpr int kTiles = kColumns / 16;
  /// The first operand has two rows of a lane's four of each half of a step, the second one the other two.
  static constexpr bool kPairs = kBits == 2 && kColumns == 32;
  /// Rows of a register: 0, 2, 1, 3.
  static constexpr bool kCrossed = kBits == 2 && !kPairs;
  static_assert(kBits == 8 || kBits == 4 || kBits == 2);
  /// Lines that the same lanes read, one behind the other; those of the next t follow. kPairs: all read all lines.
  static constexpr int kRun = kPairs ? 1 : (kSixteen ? 4 : 1) * kBits / 4;
  static_assert(kRun > 0);

  static constexpr int exponent(int n) { return kBits == 8 ? 0 : kBits == 4 ? n % 2 * 4 : 2 * n; }
  static constexpr bool has_lower(int n) { return kBits == 4 ? n % 2 == 1 : kCrossed && n > 0; }
  /// The lane's rows of half a step are those from four times this.
  __device__ __forceinline__ static unsigned fours(unsigned step, unsigned half) {
    const unsigned t = lane_of_warp() % 4;
    return kSixteen ? 16 * (step / 2) + 4 * t + step % 2 * 2 + half : 8 * step + 4 * half + t;
  }
  /// Operands of a step, of all columns. `codes`: of the matrix, in shared memory.
  __device__ __forceinline__ static void load(const uint8_t* codes, unsigned step, uint32_t (&a)[kTiles][4]) {
    const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const auto pair = [&](unsigned line, unsigned piece, unsigned by) {
      return *reinterpret_cast<const uint2*>(codes + piece_offset(line, piece + g / 2, by) + g % 2 * 8);
    };
    if constexpr (kPairs) {
      const uint2 first = pair(2 * step, t / 2 * 4, 0), second = pair(2 * step + 1, t / 2 * 4, 0);
      const unsigned which = t % 2 == 0 ? 0x6420 : 0x7531;
      const uint32_t both[2] = {__byte_perm(first.x, second.x, which), __byte_perm(first.y, second.y, which)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[n][i] = both[i % 2] >> (i / 2 * 4) & (0x03030303u << (2 * n));
    } else {
      load_halves(pair, step, a);
    }
  }
  template <class Pair>
  __device__ __forceinline__ static void load_halves(const Pair& pair, unsigned step, uint32_t (&a)[kTiles][4]) {
    const unsigned t = lane_of_warp() % 4;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned of = fours(step, half);
      const auto give = [&](int n, uint2 two, uint32_t mask) {
        a[n][2 * half] = two.x & mask, a[n][2 * half + 1] = two.y & mask;
      };
      const auto choose = [](uint2 first, uint2 second, unsigned which) {
        return uint2{__byte_perm(first.x, second.x, which), __byte_perm(first.y, second.y, which)};
      };
      if constexpr (kBits == 8) {
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const uint2 first = pair(2 * of, 2 * n, t), second = pair(2 * of + 1, 2 * n, t);
          give(n, choose(first, second, 0x6420), ~0u);
          give(n + 1, choose(first, second, 0x7531), ~0u);
        }
      } else if constexpr (kBits == 4) {
        const uint2 first = pair(of, 0, t), second = pair(of, 4, t);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const uint2 two = choose(first, second, n == 0 ? 0x6420 : 0x7531);
          give(n, two, 0x0f0f0f0fu);
          give(n + 1, two, ~0u);
        }
      } else {
        const uint2 two = pair(of / 2, (kSixteen ? half : t % 2) * 4, t);
#pragma unroll
        for (int n = 0; n < 4; ++n) give(n, two, 0x01010101u * ((4u << (2 * n)) - 1));
      }
    }
  }
};

/// Operand of sixteen rows, 4 t to 4 t + 3 of the lane, and sixteen columns of f16 as they lie: word(row) has columns 2
/// g and 2 g + 1.
template <class Word>
__device__ __forceinline__ void load_f16_operand(const Word& word, uint32_t (&a)[4]) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const uint32_t first = word(2 * part), second = word(2 * part + 1);
    a[2 * part] = __byte_perm(first, second, 0x5410);
    a[2 * part + 1] = __byte_perm(first, second, 0x7632);
  }
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* from) { return *reinterpret_cast<const uint32_t*>(from); }
__device__ __forceinline__ uint4 load_sixteen(const uint8_t* from) { return *reinterpret_cast<const uint4*>(from); }

}  // namespace lowbit::cuda::block
