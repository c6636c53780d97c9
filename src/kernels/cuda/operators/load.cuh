#pragma once
// Shared by the products of few bits: loads of rows that may begin and end anywhere, and the epilogue of a sum.

#include <cuda_runtime.h>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda_operators_api.h"

namespace lowbit::cuda::operators {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;
inline constexpr int64_t kMostGemvTokens = 8;  // of x: what is read once for all of them

/// Whether rows of a matrix begin at multiples of 16 bytes.
inline bool in_sixteens(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 16 == 0;
}

/// Bytes [0, 16) from `p` on, zeros from `left` on. Nothing behind `left` is read.
__device__ __forceinline__ uint4 load_16(const uint8_t* p, int64_t left, bool aligned) {
  if (left <= 0) return uint4{0, 0, 0, 0};
  if (aligned && left >= 16) return __ldg(reinterpret_cast<const uint4*>(p));
  uint32_t word[4] = {};
  for (int i = 0; i < 16; ++i)
    if (i < left) word[i / 4] |= uint32_t{p[i]} << (8 * (i % 4));
  return uint4{word[0], word[1], word[2], word[3]};
}

/// The first `left` of 128 bits.
__device__ __forceinline__ uint4 first_bits(uint4 v, int64_t left) {
  if (left >= 128) return v;
  uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t here = left - 32 * i;
    if (here < 32) word[i] &= here <= 0 ? 0u : (1u << here) - 1u;
  }
  return uint4{word[0], word[1], word[2], word[3]};
}

/// Byte b of word i becomes byte i of word b.
__device__ __forceinline__ uint4 transpose_bytes(uint4 v) {
  const uint32_t a = __byte_perm(v.x, v.y, 0x5140), b = __byte_perm(v.z, v.w, 0x5140);
  const uint32_t c = __byte_perm(v.x, v.y, 0x7362), d = __byte_perm(v.z, v.w, 0x7362);
  return uint4{__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
               __byte_perm(c, d, 0x7632)};
}

__device__ __forceinline__ int add_bytes(uint4 v, int sum) {
  sum = __dp4a(static_cast<int>(v.x), 0x01010101, sum);
  sum = __dp4a(static_cast<int>(v.y), 0x01010101, sum);
  sum = __dp4a(static_cast<int>(v.z), 0x01010101, sum);
  return __dp4a(static_cast<int>(v.w), 0x01010101, sum);
}

// ---- Ends: a sum to y.

struct Int2End {
  Int2Product p;
  struct Column {
    float ws;
  };
  struct Row {
    float s;
  };
  __device__ __forceinline__ Column column(int64_t j) const {
    int64_t low = 0, high = p.row_ends == nullptr ? 0 : p.ranges - 1;
    while (low < high) {  // the first range that ends behind j
      const int64_t middle = (low + high) / 2;
      if (p.row_ends[middle] > j)
        high = middle;
      else
        low = middle + 1;
    }
    return {load_element(p.ws, p.scale_element, low)};
  }
  __device__ __forceinline__ Row row(int64_t i) const { return {load_element(p.s, p.scale_element, i)}; }
  __device__ __forceinline__ float of(int sum, Row row, Column column) const {
    const auto v = static_cast<float>(sum);
    return __fmul_rn(p.multiplies ? __fmul_rn(v, row.s) : __fdiv_rn(v, row.s), column.ws);
  }
};

struct BitEnd {
  BitProduct p;
  struct Column {
    float scale, bias;
  };
  struct Row {
    float scale;
  };
  __device__ __forceinline__ Column column(int64_t j) const {
    return {p.weight_scales == nullptr ? 1.0f : p.weight_scales[j], p.bias == nullptr ? 0.0f : p.bias[j]};
  }
  __device__ __forceinline__ Row row(int64_t i) const { return {p.x_scales == nullptr ? 1.0f : p.x_scales[i]}; }
  __device__ __forceinline__ float of(int sum, Row row, Column column) const {
    return __fmaf_rn(__fmul_rn(static_cast<float>(sum), column.scale), row.scale, column.bias);
  }
};

/// Columns j and, if there is one, j + 1 of row i; j is even.
template <class End>
__device__ __forceinline__ void store_pair(const End& end, int64_t i, int64_t j, float v, float w) {
  const auto& p = end.p;
  const int64_t at = i * p.ldy + j;
  const int bytes = element_bytes(p.y_element);
  if (j + 1 < p.n && p.ldy % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % (2 * bytes) == 0) {
    if (p.y_element == Element::kF32) {
      *reinterpret_cast<float2*>(static_cast<float*>(p.y) + at) = float2{v, w};
    } else {
      const bool f16 = p.y_element == Element::kF16;
      const uint32_t low = f16 ? f16_nearest(v) : f32_to_bf16(v), high = f16 ? f16_nearest(w) : f32_to_bf16(w);
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.y) + at) = low | high << 16;
    }
    return;
  }
  if (j < p.n) store_element(p.y, p.y_element, at, v);
  if (j + 1 < p.n) store_element(p.y, p.y_element, at + 1, w);
}

}  // namespace lowbit::cuda::operators
