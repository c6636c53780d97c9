#pragma once
// Where a tile's sums go: to c from registers, or through shared memory by the copy engine, which stores while the next
// tile is multiplied.

#include "kernels/cuda/fp8/pipeline.cuh"

namespace lowbit::cuda::fp8 {

/// The box that a warp stores at once, of results of two bytes.
constexpr int kBoxRows = 16, kBoxColumns = 64, kBoxBytes = kBoxRows * kBoxColumns * 2;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Columns [j, j + 2) of row i; j is even.
__device__ __forceinline__ void store_pair(const DeviceGemm& g, int64_t end, int64_t i, int64_t j, float v, float w) {
  const int bytes = g.element == Fp8Element::kF32 ? 8 : 4;
  if (g.ldc % 2 != 0 || j + 1 >= g.n || i >= end || reinterpret_cast<uintptr_t>(g.c) % bytes != 0) {
    store_one(g, end, i, j, v);
    store_one(g, end, i, j + 1, w);
    return;
  }
  const int64_t at = i * g.ldc + j;
  if (g.element == Fp8Element::kF32)
    *reinterpret_cast<float2*>(static_cast<float*>(g.c) + at) = float2{v, w};
  else
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(g.c) + at) = two_halves(g.element, v, w);
}

/// Lane t of four gets word t of each of them.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

template <class T>
__device__ __forceinline__ void add_bias(const DeviceGemm& g, int q0, float (&acc)[T::kSums]) {
#pragma unroll
  for (int i = 0; i < T::kSums; ++i) {
    const int j = q0 + i / 4 * 8 + int(threadIdx.x) % 4 * 2 + i % 2;
    if (j < g.n) acc[i] += g.bias[j];
  }
}

template <class T>
__device__ __forceinline__ void store_tile(const DeviceGemm& g, int64_t end, int row, int q0,
                                           const float (&acc)[T::kSums]) {
  const int t = threadIdx.x % 4;
  const bool wide = g.element != Fp8Element::kF32 && g.ldc % 8 == 0 && reinterpret_cast<uintptr_t>(g.c) % 16 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + 8 * half;
#pragma unroll
    for (int j = 0; j < T::kQ / 8; j += 4) {
      if (wide && j + 4 <= T::kQ / 8 && q0 + 8 * j + 32 <= g.n) {
        uint32_t w[4];
#pragma unroll
        for (int x = 0; x < 4; ++x)
          w[x] = two_halves(g.element, acc[4 * (j + x) + 2 * half], acc[4 * (j + x) + 2 * half + 1]);
        transpose_quad(w);
        if (i < end)
          *reinterpret_cast<uint4*>(static_cast<uint16_t*>(g.c) + i * g.ldc + q0 + 8 * (j + t)) =
              uint4{w[0], w[1], w[2], w[3]};
      } else {
#pragma unroll
        for (int x = j; x < j + 4 && x < T::kQ / 8; ++x)
          store_pair(g, end, i, q0 + 8 * x + 2 * t, acc[4 * x + 2 * half], acc[4 * x + 2 * half + 1]);
      }
    }
  }
}

// ---- By the copy engine, results of two bytes

/// Four matrices of 8 x 8 halves; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
               "r"(w[2]), "r"(w[3])
               : "memory");
}

/// A warp's 16 rows of a tile from row `row` on, in boxes of 64 columns, through `boxes` in shared memory, which is
/// this warp's. Boxes lie in 128-byte swizzle.
template <class T>
__device__ __forceinline__ void store_boxes(const DeviceGemm& g, const CUtensorMap* c_map, int row, int q0,
                                            uint32_t boxes, const float (&acc)[T::kSums]) {
  const int lane = int(threadIdx.x) % 32, line = lane % 16, half = lane / 16;
#pragma unroll
  for (int j = 0; j < T::kQ / 8; j += 2) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = two_halves(g.element, acc[4 * j + 2 * i], acc[4 * j + 2 * i + 1]);
    const int chunk = j % 8 + half;
    store_matrices(boxes + j / 8 * kBoxBytes + line * 128 + ((chunk ^ line % 8) << 4), w);
  }
  fence_async();
  __syncwarp();
  if (lane == 0)
    for (int box = 0; box < T::kQ / kBoxColumns; ++box)
      if (q0 + box * kBoxColumns < g.n) box_store(c_map, q0 + box * kBoxColumns, row, boxes + box * kBoxBytes);
}

#endif

}  // namespace lowbit::cuda::fp8
