#pragma once
// In place of src/kernels/cuda/half_matrices.cuh, for a host compiler. Sums are added one after the other, which is no
// device's order: tests compare kernels with each other bit for bit, and with the reference within a bound.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/float.h"
#include "tests/conformance/cuda_emulated/block_fibers.h"

namespace lowbit::cuda {

inline uint32_t f16_pair(float first, float second) {
  return uint32_t{f32_to_f16(first)} | uint32_t{f32_to_f16(second)} << 16;
}

/// Operands that a lane shows to its warp.
struct OperandsOfLane {
  uint32_t a[4], b[2];
  const void* row;
};
inline OperandsOfLane operands_of[1024];
inline const OperandsOfLane& operands_of_lane(int lane) { return operands_of[threadIdx.x / 32 * 32 + unsigned(lane)]; }

inline float half_of(uint32_t pair, int which) { return f16_to_f32(static_cast<uint16_t>(pair >> (16 * which))); }

/// c[16, 8] += a[16, 16] b[16, 8]; `element`: of a pair of 16 bits.
template <class Element>
void multiply_pairs(float (&c)[4], const uint32_t* a, uint32_t b0, uint32_t b1, const Element& element) {
  operands_of[threadIdx.x] = {{a[0], a[1], a[2], a[3]}, {b0, b1}, nullptr};
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const float x = element(operands_of_lane(row * 4 + k % 8 / 2).a[i / 2 + k / 8 * 2], k % 2);
      const float y = element(operands_of_lane(column * 4 + k % 8 / 2).b[k / 8], k % 2);
      c[i] = std::fmaf(x, y, c[i]);
    }
  }
  __syncwarp();
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_pairs(c, a, b0, b1, half_of);
}
inline void load_any_matrices(uint32_t (&to)[4], const void* row, bool transposed) {
  operands_of[threadIdx.x].row = row;
  __syncwarp();
  const int g = static_cast<int>(threadIdx.x % 32) / 4, t = static_cast<int>(threadIdx.x % 4);
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int h = 0; h < 2; ++h) {
      const int r = transposed ? 2 * t + h : g, column = transposed ? g : 2 * t + h;
      std::memcpy(&pair[h], static_cast<const uint16_t*>(operands_of_lane(8 * i + r).row) + column, 2);
    }
    to[i] = uint32_t{pair[0]} | uint32_t{pair[1]} << 16;
  }
  __syncwarp();
}
inline void load_matrices(uint32_t (&to)[4], const void* row) { load_any_matrices(to, row, false); }
inline void load_transposed_matrices(uint32_t (&to)[4], const void* row) { load_any_matrices(to, row, true); }

inline uint32_t transposed_matrix(uint32_t pair) {
  operands_of[threadIdx.x].b[0] = pair;
  __syncwarp();
  const int g = static_cast<int>(threadIdx.x % 32) / 4, t = static_cast<int>(threadIdx.x % 4);
  uint32_t to = 0;
  for (int h = 0; h < 2; ++h)
    to |= (operands_of_lane(4 * (2 * t + h) + g / 2).b[0] >> (16 * (g % 2)) & 0xffffu) << (16 * h);
  __syncwarp();
  return to;
}

inline void end_copies() {}
template <int kLeft>
void wait_for_copies() {}

inline float power_of_two(float x) { return std::exp2(x); }

}  // namespace lowbit::cuda
