#pragma once
// In place of src/kernels/cuda/packed_ops.cuh, for a host compiler: behind block_fibers.h. Teams run in step.

#include <cstdint>
#include <cstring>
#include <vector>

#define LOWBIT_OUT_OF_LINE

namespace lowbit::cuda {

struct MmaLane {
  uint32_t a[4], b[2];
};
inline int mma_byte(uint32_t word, int i) { return static_cast<int>((word >> (8 * i)) & 255); }

/// `first`, `second`: a byte as a number.
template <class First, class Second>
void multiply_all_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const First& first,
                        const Second& second) {
  static std::vector<MmaLane> lanes;
  fibers::Machine& m = *fibers::machine;
  lanes.resize(std::max(lanes.size(), m.fibers.size()));
  const size_t thread = m.current, warp = thread / 32;
  lanes[thread] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  fibers::meet(m.warps[warp]);
  const int lane = static_cast<int>(thread % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    auto sum = static_cast<uint32_t>(c[i]);
    for (int k = 0; k < 32; ++k) {
      const MmaLane& of_a = lanes[warp * 32 + static_cast<size_t>(row % 8 * 4 + k % 16 / 4)];
      const MmaLane& of_b = lanes[warp * 32 + static_cast<size_t>(column * 4 + k % 16 / 4)];
      const int x = mma_byte(of_a.a[k / 16 * 2 + row / 8], k % 4), y = mma_byte(of_b.b[k / 16], k % 4);
      sum += static_cast<uint32_t>(first(x) * second(y));
    }
    c[i] = static_cast<int>(sum);
  }
  fibers::meet(m.warps[warp]);
}
inline int plain_byte(int byte) { return byte; }
inline int signed_byte(int byte) { return static_cast<int8_t>(byte); }
template <bool kSigned>
void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_all_bytes(c, a, b0, b1, plain_byte, kSigned ? signed_byte : plain_byte);
}
template <bool kSigned>
void multiply_signed_bytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_all_bytes(c, a, b0, b1, signed_byte, kSigned ? signed_byte : plain_byte);
}
template <bool kHigh>
uint32_t multiply_two(uint32_t a, uint32_t b, uint32_t c) {
  const auto half = [a](int i) { return static_cast<int>(static_cast<int16_t>(a >> (16 * i))); };
  return c + static_cast<uint32_t>(half(0) * mma_byte(b, 2 * kHigh) + half(1) * mma_byte(b, 2 * kHigh + 1));
}
inline uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t all = static_cast<uint64_t>(b) << 32 | a;
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v |= static_cast<uint32_t>((all >> (8 * ((which >> (4 * i)) & 7))) & 255) << (8 * i);
  return v;
}
inline uint2 load_once(const uint8_t* from) {
  uint2 v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
inline void load_once_if(bool is, uint2& v, const uint8_t* from) {
  if (is) v = load_once(from);
}
inline const uint8_t* load_pointer_once(const uint64_t* from) { return reinterpret_cast<const uint8_t*>(*from); }
inline void copy_to_shared_8(void* to, const void* from) { std::memcpy(to, from, 8); }
template <int kBytes, int kOffset>
void copy_to_shared_at(void* to, const void* from, bool is = true) {
  if (is) std::memcpy(static_cast<uint8_t*>(to) + kOffset, static_cast<const uint8_t*>(from) + kOffset, kBytes);
}
inline int thread_read_here() { return static_cast<int>(threadIdx.x); }
inline uint32_t kept(uint32_t v) { return v; }
inline float largest_of_warp(float v) {
  for (int w = 16; w > 0; w /= 2) {
    const float other = __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(v), w, 32));
    v = other > v ? other : v;
  }
  return v;
}
inline float larger_magnitude(float most, float v) {
  return most != most || v != v ? NAN : std::max(most, std::fabs(v));
}
inline bool all_of_warp(bool is) { return largest_of_warp(is ? 0.0f : 1.0f) == 0.0f; }
inline void sync_warp() { fibers::meet(fibers::machine->warps[fibers::machine->current / 32]); }
inline void sync_team(int) { fibers::meet(fibers::machine->all); }

}  // namespace lowbit::cuda
