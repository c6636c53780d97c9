#pragma once
// Bits and bytes of words, each by one instruction.

#include <cuda_runtime.h>

#include <cstdint>

namespace lowbit::cuda {

/// Four bytes of b and a by the four lowest nibbles of `which`; of a nibble above 7 the sign of the byte that its low
/// three bits choose, 0 or -1. __byte_perm() clears that bit first, which takes an instruction.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(which));
  return bytes;
}

/// Bits of a where `of_a` has ones, else of b.
__device__ __forceinline__ uint32_t choose_bits(uint32_t a, uint32_t b, uint32_t of_a) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(bits) : "r"(a), "r"(b), "r"(of_a));
  return bits;
}

/// (word & mask) | bits.
__device__ __forceinline__ uint32_t mask_and_set(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "r"(bits));
  return v;
}
/// (a ^ b) & mask.
__device__ __forceinline__ uint32_t masked_xor(uint32_t a, uint32_t b, uint32_t mask) {
  uint32_t v;
  asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(v) : "r"(a), "r"(b), "r"(mask));
  return v;
}

/// word >> 16 by the pipe that multiplies: the one that shifts has more to do where words are decoded.
__device__ __forceinline__ uint32_t upper_half(uint32_t word) { return __dp2a_lo(word, 0x0100u, 0u); }

}  // namespace lowbit::cuda
