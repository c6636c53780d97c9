#pragma once
// x of the integer GEMV on its way to shared memory: copied (int8) or quantized (f32, f16, bf16). Per 64 columns the 16
// words of four codes are transposed as a 4 x 4 matrix, so that lane t's operands of four slots are 16 bytes. Columns
// from k on are zero. Beside the codes: their sums, per row or per group, and the scales.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/integer_gemv.h"

namespace lowbit::cuda {

/// Where word t of quad `quad` (16 columns) goes: place[4 t].
__device__ __forceinline__ uint32_t* staged_quad(const GemvArgs& a, uint8_t* smem, int row, int quad) {
  return reinterpret_cast<uint32_t*>(smem + a.x_at + row * a.x_stride) + (quad & ~3) * 4 + (quad & 3);
}

/// Adds the sum of two lanes (32 columns) to its group's. All lanes of a warp call it.
__device__ __forceinline__ void add_group_sum(const GemvArgs& a, uint8_t* smem, int row, int quad, int sum) {
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  const int group = quad >> (1 + a.group_shift);
  if ((threadIdx.x & 1) == 0 && group < a.groups)
    atomicAdd(reinterpret_cast<int*>(smem + a.x_sums_at) + row * a.groups + group, sum);
}

/// The sum over all columns of a row, from every thread's part.
__device__ __forceinline__ void add_row_sum(const GemvArgs& a, uint8_t* smem, int row, int part) {
  const int sum = __reduce_add_sync(0xffffffffu, part);
  if ((threadIdx.x & 31) == 0) atomicAdd(reinterpret_cast<int*>(smem + a.x_sums_at) + row * a.groups, sum);
}
template <int kRows>
__device__ __forceinline__ void add_row_sums(const GemvArgs& a, uint8_t* smem, const int (&parts)[kRows]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (kRows > 1 && row >= a.m) break;
    add_row_sum(a, smem, row, parts[row]);
  }
}

/// Stores 16 codes; returns their sum.
__device__ __forceinline__ int store_quad(uint32_t* place, const uint4& v) {
  place[0] = v.x, place[4] = v.y, place[8] = v.z, place[12] = v.w;
  int sum = __dp4a(static_cast<int>(v.x), 0x01010101, 0);
  sum = __dp4a(static_cast<int>(v.y), 0x01010101, sum);
  sum = __dp4a(static_cast<int>(v.z), 0x01010101, sum);
  return __dp4a(static_cast<int>(v.w), 0x01010101, sum);
}

/// Columns 16 quad.. of a row, byte by byte; zeros from k on.
inline __device__ __noinline__ uint4 load_loose_codes(const int8_t* x, int quad, int k) {
  uint32_t v[4] = {};
  for (int i = 0; i < 16; ++i)
    if (16 * quad + i < k) v[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(x[16 * quad + i])) << (8 * (i % 4));
  return {v[0], v[1], v[2], v[3]};
}
/// Columns 16 quad.. of a row, zeros from k on. `aligned`: the row begins at a multiple of 16 bytes.
__device__ __forceinline__ uint4 load_codes(const int8_t* x, int quad, int k, bool aligned) {
  if (aligned && 16 * quad + 16 <= k) return *reinterpret_cast<const uint4*>(x + 16 * quad);
  return load_loose_codes(x, quad, k);
}

template <bool kGrouped, int kRows>
__device__ __forceinline__ void stage_codes(const GemvArgs& a, uint8_t* smem, int quads) {
  const auto* const x = static_cast<const int8_t*>(a.x);
  const bool aligned = ((reinterpret_cast<uintptr_t>(x) | static_cast<uintptr_t>(a.m > 1 ? a.ldx : 0)) & 15) == 0;
  // Scales are under way with x.
  const int scales = a.m * (a.x_groups ? a.groups : 1), own = threadIdx.x;
  const float x_scale = own < scales ? a.x_scales[own] : 0.0f;
  int parts[kRows] = {};
  for (int base = threadIdx.x & ~31; base < quads; base += blockDim.x) {
    const int quad = base + static_cast<int>(threadIdx.x & 31);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (kRows > 1 && row >= a.m) break;
      const uint4 v = load_codes(x + row * a.ldx, quad, a.k, aligned);
      int sum = 0;
      if (quad < quads) sum = store_quad(staged_quad(a, smem, row, quad), v);
      if constexpr (kGrouped) add_group_sum(a, smem, row, quad, sum);
      parts[row] += sum;
    }
  }
  if constexpr (!kGrouped) add_row_sums<kRows>(a, smem, parts);
  auto* const to = reinterpret_cast<float*>(smem + a.x_scales_at);
  if (own < scales) to[own] = x_scale;
  for (int i = own + blockDim.x; i < scales; i += blockDim.x) to[i] = a.x_scales[i];
}

/// 16 elements as floats; zeros from k on.
__device__ __forceinline__ void load_floats(const uint8_t* x, Element e, int quad, int k, bool aligned,
                                            float (&v)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float part[4];
    load_four(x, e, 16 * quad + 4 * i, k, aligned, part);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[4 * i + j] = part[j];
  }
}

/// Bits of the largest magnitude of a row, or of each group of it, by a pass over it. `kept`: this thread's first quad.
template <bool kGrouped>
__device__ __forceinline__ void find_largest(const GemvArgs& a, uint32_t* largest, const uint8_t* x, int quads,
                                             bool aligned, float (&kept)[16]) {
  const bool grouped = kGrouped && a.x_groups;
  uint32_t most = 0;
  const int start = threadIdx.x & ~31;
#pragma unroll 1
  for (int base = start; base < quads; base += blockDim.x) {
    const int quad = base + static_cast<int>(threadIdx.x & 31);
    float v[16];
    load_floats(x, a.x_element, quad, a.k, aligned, v);
    uint32_t here = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) here = max(here, magnitude_bits(v[i]));
    if (base == start) {
#pragma unroll
      for (int i = 0; i < 16; ++i) kept[i] = v[i];
    }
    most = max(most, here);
    if (!grouped) continue;
    here = max(here, __shfl_xor_sync(0xffffffffu, here, 1));
    const int group = quad >> (1 + a.group_shift);
    if ((threadIdx.x & 1) == 0 && group < a.groups) atomicMax(largest + group, here);
  }
  if (grouped) return;
  most = __reduce_max_sync(0xffffffffu, most);
  if ((threadIdx.x & 31) == 0) atomicMax(largest, most);
}

/// Two passes over x, the second from registers or the cache.
template <bool kGrouped, int kRows>
__device__ __forceinline__ void stage_floats(const GemvArgs& a, uint8_t* smem, int quads) {
  const int bytes = element_bytes(a.x_element), scales = a.x_groups ? a.groups : 1;
  const auto where = reinterpret_cast<uintptr_t>(a.x) | static_cast<uintptr_t>(a.m > 1 ? a.ldx * bytes : 0);
  const bool aligned = (where & static_cast<uintptr_t>(4 * bytes - 1)) == 0;
  uint32_t* const largest = reinterpret_cast<uint32_t*>(smem + a.largest_at);
  float kept[16];
  for (int row = 0; row < (kRows == 1 ? 1 : a.m); ++row)
    find_largest<kGrouped>(a, largest + row * scales, static_cast<const uint8_t*>(a.x) + row * a.ldx * bytes, quads,
                           aligned, kept);
  __syncthreads();
  const int start = threadIdx.x & ~31;
#pragma unroll 1
  for (int row = 0; row < (kRows == 1 ? 1 : a.m); ++row) {
    int row_sum = 0;
    const uint8_t* const x = static_cast<const uint8_t*>(a.x) + row * a.ldx * bytes;
    float inverse = quantizer_of(largest[row * scales]).inverse;
#pragma unroll 1
    for (int base = start; base < quads; base += blockDim.x) {
      const int quad = base + static_cast<int>(threadIdx.x & 31);
      if (kGrouped && a.x_groups)
        inverse = quantizer_of(largest[row * scales + min(quad >> (1 + a.group_shift), a.groups - 1)]).inverse;
      if (kRows > 1 || base != start) load_floats(x, a.x_element, quad, a.k, aligned, kept);
      uint32_t codes[4] = {};
#pragma unroll
      for (int i = 0; i < 16; ++i)
        codes[i / 4] |= (static_cast<uint32_t>(quantize_one(kept[i], inverse)) & 0xffu) << (8 * (i % 4));
      int sum = 0;
      if (quad < quads) sum = store_quad(staged_quad(a, smem, row, quad), {codes[0], codes[1], codes[2], codes[3]});
      if constexpr (kGrouped) add_group_sum(a, smem, row, quad, sum);
      row_sum += sum;
    }
    if constexpr (!kGrouped) add_row_sum(a, smem, row, row_sum);
  }
  for (int i = threadIdx.x; i < a.m * scales; i += blockDim.x)
    reinterpret_cast<float*>(smem + a.x_scales_at)[i] = quantizer_of(largest[i]).scale;
}

}  // namespace lowbit::cuda
