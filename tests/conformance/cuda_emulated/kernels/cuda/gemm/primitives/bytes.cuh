#pragma once
// In place of src/kernels/cuda/gemm/primitives/bytes.cuh, for a host compiler: nibbles above 7 are an error.

#include "tests/conformance/cuda_emulated/block_fibers.h"

namespace lowbit::cuda {

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  return (which & 0x8888u) == 0 ? __byte_perm(a, b, which) : 0x5a5a5a5au;
}
inline uint32_t choose_bits(uint32_t a, uint32_t b, uint32_t of_a) { return (a & of_a) | (b & ~of_a); }
inline uint32_t mask_and_set(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline uint32_t masked_xor(uint32_t a, uint32_t b, uint32_t mask) { return (a ^ b) & mask; }
inline uint32_t upper_half(uint32_t word) { return word >> 16; }

}  // namespace lowbit::cuda
