#pragma once
// In place of src/kernels/cuda/gemm/primitives/bytes.cuh, for a host compiler.

#include "tests/conformance/cuda_emulated/block_fibers.h"

namespace lowbit::cuda {

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t at = which >> 4 * i, of = at & 4 ? b : a;
    const auto byte = static_cast<int8_t>(of >> 8 * (at & 3));
    bytes |= static_cast<uint32_t>(static_cast<uint8_t>(at & 8 ? byte >> 7 : byte)) << 8 * i;
  }
  return bytes;
}
inline uint32_t choose_bits(uint32_t a, uint32_t b, uint32_t of_a) { return (a & of_a) | (b & ~of_a); }
inline uint32_t mask_and_set(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline uint32_t masked_xor(uint32_t a, uint32_t b, uint32_t mask) { return (a ^ b) & mask; }
inline uint32_t upper_half(uint32_t word) { return word >> 16; }

}  // namespace lowbit::cuda
