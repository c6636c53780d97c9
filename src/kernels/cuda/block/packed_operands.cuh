#pragma once
// Codes of a packed page as operands of tensor cores, without a conversion: a code in the low bits of an f16 is a
// subnormal number, the code times a power of two. A shift and a mask give the pairs of rows that lie side by side
// (code_position(), kernels/packed_kv.h). What stands beside codes goes into the other operand.
//
// A step is sixteen rows: elements of a head where codes are keys, positions where they are values. Lane 4 g + t has
// rows 16 step + 4 t to 16 step + 4 t + 3, and of sixteen columns n those at 16 n + 2 g and 16 n + 2 g + 1.

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

/// Matrices of kBits and `kColumns` columns; value is code * 2^-exponent(n) in columns n, but in the second pair of a
/// step's rows 16 times as much where kUneven.
template <int kBits, int kColumns>
struct CodeOperands {
  static constexpr int kTiles = kColumns / 16;
  static constexpr bool kUneven = kBits == 2 && kColumns == 32;
  static_assert(kBits == 8 || kBits == 4 || kBits == 2);

  static constexpr int exponent(int n) { return kBits == 8 ? 24 : kBits == 4 ? 24 - n % 2 * 4 : 24 - 2 * n; }
  /// The t of the lanes that read a line.
  __device__ __forceinline__ static unsigned reader(unsigned line) {
    if constexpr (kBits == 8) return line / 2 % 4;
    if constexpr (kBits == 4) return line % 4;
    return kUneven ? 0 : line % 2;
  }
  /// Operands of a step, of all columns. `codes`: of the matrix, in shared memory.
  __device__ __forceinline__ static void load(const uint8_t* codes, unsigned step, uint32_t (&a)[kTiles][4]) {
    const unsigned lane = lane_of_warp(), g = lane / 4, t = lane % 4;
    const auto pair = [&](unsigned line, unsigned piece, unsigned by) {
      return *reinterpret_cast<const uint2*>(codes + piece_offset(line, piece + g / 2, by) + g % 2 * 8);
    };
    if constexpr (kBits == 8) {
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint2 two = pair(8 * step + 2 * t + part, 4 * half, t);
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint32_t which = n == 0 ? 0x4240 : 0x4341;
            a[2 * half + n][2 * part] = __byte_perm(two.x, 0, which);
            a[2 * half + n][2 * part + 1] = __byte_perm(two.y, 0, which);
          }
        }
    } else if constexpr (kBits == 4) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint2 two = pair(4 * step + t, 4 * part, t);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint32_t mask = n % 2 == 0 ? 0x000f000fu : 0x00f000f0u;
          a[n][2 * part] = two.x >> (n / 2 * 8) & mask;
          a[n][2 * part + 1] = two.y >> (n / 2 * 8) & mask;
        }
      }
    } else if constexpr (!kUneven) {
      const uint2 two = pair(2 * step + t / 2, t % 2 * 4, t / 2);
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          a[n][2 * part] = two.x >> (8 * part) & (0x00030003u << (2 * n));
          a[n][2 * part + 1] = two.y >> (8 * part) & (0x00030003u << (2 * n));
        }
    } else {
      uint2 two = pair(step, t / 2 * 4, 0);
      two = {two.x >> (t % 2 * 8), two.y >> (t % 2 * 8)};
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          a[n][2 * part] = two.x & (0x00030003u << (2 * n + 4 * part));
          a[n][2 * part + 1] = two.y & (0x00030003u << (2 * n + 4 * part));
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

/// Four bytes of a step's rows as two pairs of subnormal f16, 2^-24 times the bytes.
struct BytePairs {
  uint32_t first, second;
};
__device__ __forceinline__ BytePairs byte_pairs(uint32_t word) {
  return {__byte_perm(word, 0, 0x4140), __byte_perm(word, 0, 0x4342)};
}
__device__ __forceinline__ uint32_t load_word(const uint8_t* from) { return *reinterpret_cast<const uint32_t*>(from); }

}  // namespace lowbit::cuda::block
