#pragma once
// Bytes of a table of sixteen, four at a time: the table is four registers, and an instruction picks four bytes of two
// of them by the nibbles of a word.

#include "kernels/cuda/gemm/primitives/bytes.cuh"

namespace lowbit::cuda {

/// Four bytes of a table of sixteen: those with the indices in the low half of `codes`, of which the fourth bits choose
/// between its halves (`high`: a selector that does so).
__device__ __forceinline__ uint32_t looked_up(const uint32_t (&table)[4], uint32_t codes, uint32_t high) {
  return pick_bytes(pick_bytes(table[0], table[1], codes), pick_bytes(table[2], table[3], codes), high);
}

/// The selectors that choose between the table's halves, by the third bits of nibbles.
__device__ __forceinline__ uint32_t half_selector(uint32_t bits) {
  return mask_and_set(bits, 0x44444444u, 0x32103210u);
}

/// looked_up() of both halves of two words.
__device__ __forceinline__ void look_up_halves(const uint32_t (&table)[4], uint32_t codes, uint32_t high, uint32_t* a) {
  a[0] = looked_up(table, codes, high);
  a[1] = looked_up(table, upper_half(codes), upper_half(high));
}

}  // namespace lowbit::cuda
