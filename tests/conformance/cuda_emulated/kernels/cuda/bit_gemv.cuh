#pragma once
// What matmul_chain.cuh takes of bit_gemv.cuh and what that includes, for fibers (chain_fibers.h).

#include "base/float.h"
#include "kernels/cuda/bit_cells.cuh"
#include "kernels/cuda/integer_gemv.h"

#define LOWBIT_SM90 1

namespace lowbit::cuda {

inline void mma_bits(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t words[] = {a0, a1, a2, a3, b0, b1};
  const int lane = int(chain_fibers::current % 32), g = lane >> 2, t = lane & 3;
  chain_fibers::exchange(words, 6, [&](const auto& word) {
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
          c[2 * half + i] += std::popcount(word(4 * g + j, size_t(half)) & word(4 * (2 * t + i) + j, 4)) +
                             std::popcount(word(4 * g + j, size_t(2 + half)) & word(4 * (2 * t + i) + j, 5));
    return 0;
  });
}

inline uint32_t shared_address(const void* p) {
  return uint32_t(static_cast<const uint8_t*>(p) - chain_fibers::block->shared);
}
inline chain_fibers::CopyBarrier& barrier_at(uint32_t barrier) { return chain_fibers::block->barriers[barrier / 8]; }
inline void barrier_init(uint32_t barrier, int arrivals) { barrier_at(barrier) = {0, arrivals, 0, 0}; }
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  barrier_at(barrier).bytes += bytes;
  ++barrier_at(barrier).arrived;
  barrier_at(barrier).settle();
}
inline void barrier_wait(uint32_t barrier, int parity) {
  while ((barrier_at(barrier).phase & 1) == parity) chain_fibers::yield();
}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  std::memcpy(chain_fibers::block->shared + to, from, bytes);
  barrier_at(barrier).bytes -= bytes;
  barrier_at(barrier).settle();
}
inline void barriers_visible_to_copies() {}

struct Quantizer {
  float scale, inverse;
};
inline Quantizer quantizer_of(uint32_t largest) {
  const float a = bits_to_f32(largest);
  if (largest > 0x7f800000u) return {bits_to_f32(0x7fc00000u), 0.0f};
  if (a < 0x1p-120f) return {0.0f, 0.0f};
  if (largest == 0x7f800000u) return {a, 0.0f};
  return {a / 127.0f, 127.0f / a};
}
/// Of f32.
inline void load_four(const void* p, Element, int64_t first, int64_t count, bool, float (&v)[4]) {
  for (int i = 0; i < 4; ++i) v[i] = first + i < count ? static_cast<const float*>(p)[first + i] : 0.0f;
}

}  // namespace lowbit::cuda
