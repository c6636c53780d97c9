#pragma once
// y[m, n] = sum_k x[m, k] real(w)[n, k] for 1 to 8 rows of x: integer weights of 1, 2, 4 or 8 bits, int8 activations.
//
// Shapes:   one thread block takes consecutive tiles of 16 rows of w and all of x; its warps share the blocks of a row.
// Memory:   weights are copied to shared memory before x is touched, so that a dependent launch fills the time in which its
//           predecessor finishes; `buffers` units are in flight at once.
// Numerics: integer sums are exact and equal the reference's, floats are folded in its order (docs/numerics.md#matmul).
// Limits:   reading the weights; for few rows of w, the chain wait - read x - mma - add over warps - store.
// Source:   seed 002 sections 4.2 to 4.4, with the faults of its row sections and fixed shapes left out.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/integer_gemv.h"
#include "kernels/cuda/ptx.cuh"

namespace lowbit::cuda {

__device__ __forceinline__ uint4 shared_16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

/// The tiles of this thread block.
struct GemvRange {
  int first, count;
  __device__ explicit GemvRange(const GemvArgs& a) {
    const int64_t b = blockIdx.x, blocks = gridDim.x;
    first = static_cast<int>(b * a.tiles / blocks);
    count = static_cast<int>((b + 1) * a.tiles / blocks) - first;
  }
};

/// Starts the copy of unit `u` of this thread block into its buffer.
template <bool kBulk>
__device__ __forceinline__ void start_unit(const GemvArgs& a, uint8_t* smem, int first_tile, int u) {
  const int buffer = u % a.buffers, tile = first_tile + u / a.segments, segment = u % a.segments;
  const int blocks = min(a.segment, a.blocks_of_row - segment * a.segment), bytes = blocks * kBlockBytes;
  const uint32_t barrier = shared_address(smem + a.barriers_at) + 8 * buffer;
  const uint32_t to = shared_address(smem) + buffer * a.unit_bytes;
  const uint8_t* from = a.codes + static_cast<int64_t>(segment) * a.segment * kBlockBytes;
#if LOWBIT_SM90
  if constexpr (kBulk) {
    if (threadIdx.x < kTileRows) {
      if (threadIdx.x == 0) barrier_expect(barrier, kTileRows * bytes);
      __syncwarp(0xffffu);
      const int row = min(tile * kTileRows + static_cast<int>(threadIdx.x), a.n - 1);
      copy_bulk(to + threadIdx.x * a.unit_stride, from + row * a.row_bytes, bytes, barrier);
    }
    return;
  }
#endif
  const int per_row = bytes / 16, count = kTileRows * per_row;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int r = i / per_row, c = i - r * per_row, row = min(tile * kTileRows + r, a.n - 1);
    copy_async_16(to + r * a.unit_stride + c * 16, from + row * a.row_bytes + c * 16);
  }
  copies_arrive(barrier);
}

/// x in shared memory: every 64 columns a 4 x 4 transpose of words, so that lane t's operands of four slots are 16 bytes.
__device__ __forceinline__ uint32_t* staged_word(const GemvArgs& a, uint8_t* smem, int row, int word) {
  const int within = word & 15, place = (word & ~15) + (within & 3) * 4 + (within >> 2);
  return reinterpret_cast<uint32_t*>(smem + a.x_at + row * a.x_stride) + place;
}

/// Adds `sum` of eight lanes (one group of 32 columns) or of a warp (ungrouped) to its place.
template <bool kGrouped>
__device__ __forceinline__ void add_x_sum(const GemvArgs& a, uint8_t* smem, int row, int word, int sum) {
  int* const sums = reinterpret_cast<int*>(smem + a.x_sums_at) + row * a.groups;
  if constexpr (kGrouped) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    const int group = word >> (3 + a.group_shift);
    if ((threadIdx.x & 7) == 0 && group < a.groups) atomicAdd(sums + group, sum);
  } else {
    sum = __reduce_add_sync(0xffffffffu, sum);
    if ((threadIdx.x & 31) == 0) atomicAdd(sums, sum);
  }
}

/// int8 x: copied.
template <bool kGrouped>
__device__ void stage_codes(const GemvArgs& a, uint8_t* smem, int words) {
  const bool aligned = (reinterpret_cast<uintptr_t>(a.x) | static_cast<uintptr_t>(a.ldx)) % 4 == 0;
  for (int row = 0; row < a.m; ++row) {
    const int8_t* x = static_cast<const int8_t*>(a.x) + row * a.ldx;
    int total = 0;
    for (int base = threadIdx.x & ~31; base < words; base += blockDim.x) {
      const int word = base + static_cast<int>(threadIdx.x & 31);
      uint32_t v = 0;
      if (aligned && 4 * word + 4 <= a.k) {
        v = *reinterpret_cast<const uint32_t*>(x + 4 * word);
      } else {
        for (int i = 0; i < 4; ++i)
          if (4 * word + i < a.k) v |= static_cast<uint32_t>(static_cast<uint8_t>(x[4 * word + i])) << (8 * i);
      }
      if (word < words) *staged_word(a, smem, row, word) = v;
      const int sum = __dp4a(static_cast<int>(v), 0x01010101, 0);
      if constexpr (kGrouped) add_x_sum<true>(a, smem, row, word, sum);
      total += sum;
    }
    if constexpr (!kGrouped) add_x_sum<false>(a, smem, row, 0, total);
  }
  const int scales = a.m * (a.x_groups ? a.groups : 1);
  for (int i = threadIdx.x; i < scales; i += blockDim.x)
    reinterpret_cast<float*>(smem + a.x_scales_at)[i] = a.x_scales[i];
}

/// f32, f16 or bf16 x: quantized here. Two passes over x, the second from the cache.
template <bool kGrouped>
__device__ void stage_floats(const GemvArgs& a, uint8_t* smem, int words) {
  const int bytes = element_bytes(a.x_element);
  const bool aligned =
      (reinterpret_cast<uintptr_t>(a.x) | static_cast<uintptr_t>(a.ldx * bytes)) % static_cast<unsigned>(4 * bytes) == 0;
  const int scales = a.x_groups ? a.groups : 1;
  uint32_t* const largest = reinterpret_cast<uint32_t*>(smem + a.largest_at);
  for (int row = 0; row < a.m; ++row) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x) + row * a.ldx * bytes;
    uint32_t most = 0;
    for (int base = threadIdx.x & ~31; base < words; base += blockDim.x) {
      const int word = base + static_cast<int>(threadIdx.x & 31);
      float v[4];
      load_four(x, a.x_element, 4 * static_cast<int64_t>(word), a.k, aligned, v);
      uint32_t here = max(max(magnitude_bits(v[0]), magnitude_bits(v[1])), max(magnitude_bits(v[2]), magnitude_bits(v[3])));
      if (kGrouped && a.x_groups) {
        here = max(here, __shfl_xor_sync(0xffffffffu, here, 1));
        here = max(here, __shfl_xor_sync(0xffffffffu, here, 2));
        here = max(here, __shfl_xor_sync(0xffffffffu, here, 4));
        const int group = word >> (3 + a.group_shift);
        if ((threadIdx.x & 7) == 0 && group < a.groups) atomicMax(largest + row * scales + group, here);
      }
      most = max(most, here);
    }
    if (!(kGrouped && a.x_groups)) {
      most = __reduce_max_sync(0xffffffffu, most);
      if ((threadIdx.x & 31) == 0) atomicMax(largest + row * scales, most);
    }
  }
  __syncthreads();
  for (int row = 0; row < a.m; ++row) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x) + row * a.ldx * bytes;
    float inverse = quantizer_of(largest[row * scales]).inverse;
    int total = 0;
    for (int base = threadIdx.x & ~31; base < words; base += blockDim.x) {
      const int word = base + static_cast<int>(threadIdx.x & 31);
      if (kGrouped && a.x_groups)
        inverse = quantizer_of(largest[row * scales + min(word >> (3 + a.group_shift), a.groups - 1)]).inverse;
      float v[4];
      load_four(x, a.x_element, 4 * static_cast<int64_t>(word), a.k, aligned, v);
      const uint32_t codes = quantize_four(v, inverse);
      if (word < words) *staged_word(a, smem, row, word) = codes;
      const int sum = __dp4a(static_cast<int>(codes), 0x01010101, 0);
      if constexpr (kGrouped) add_x_sum<true>(a, smem, row, word, sum);
      total += sum;
    }
    if constexpr (!kGrouped) add_x_sum<false>(a, smem, row, 0, total);
  }
  for (int i = threadIdx.x; i < a.m * scales; i += blockDim.x)
    reinterpret_cast<float*>(smem + a.x_scales_at)[i] = quantizer_of(largest[i]).scale;
}

/// Adds the sums of a lane (rows g and g + 8, columns 2 t and 2 t + 1) to those of the thread block [groups][m][rows].
__device__ __forceinline__ void add_sums(const GemvArgs& a, int* sums, int group, int row, const int (&c)[4]) {
  const int rows = a.batch * kTileRows, t = threadIdx.x & 3;
  int* const to = sums + (group * a.m + 2 * t) * rows + row;
  if (2 * t < a.m) {
    atomicAdd(to, c[0]);
    atomicAdd(to + 8, c[2]);
  }
  if (2 * t + 1 < a.m) {
    atomicAdd(to + rows, c[1]);
    atomicAdd(to + rows + 8, c[3]);
  }
}

/// A block of 64 bytes, scales per row: fields stay where they are, each has a sum of its own that is 2^(B f) too large.
template <int B, int kSums>
__device__ __forceinline__ void add_block(const uint8_t* weights, int stride, const uint8_t* x, int (&c)[kSums][4]) {
  using Order = GemvOrder<B>;
  const uint4 low = shared_16(weights), high = shared_16(weights + 8 * stride);
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t v[Order::kSlots];
#pragma unroll
  for (int i = 0; i < Order::kFields; ++i) {
    const uint4 part = shared_16(x + i * 64);
    v[4 * i] = part.x, v[4 * i + 1] = part.y, v[4 * i + 2] = part.z, v[4 * i + 3] = part.w;
  }
#pragma unroll
  for (int f = 0; f < Order::kFields; ++f) {
    const int sum = f % kSums, shift = B * (f - sum);
    const uint32_t mask = Order::kMask << (B * sum);
#pragma unroll
    for (int j = 0; j < 4; j += 2)
      mma_u8_s8(c[sum], (w[j] >> shift) & mask, (w[4 + j] >> shift) & mask, (w[j + 1] >> shift) & mask,
                (w[5 + j] >> shift) & mask, v[j * Order::kFields + f], v[(j + 1) * Order::kFields + f]);
  }
}

/// The same with sums per group of 32 << group_shift columns; they are added to the thread block's as a group ends.
template <int B>
__device__ __forceinline__ void add_block_groups(const GemvArgs& a, const uint8_t* weights, int stride, const uint8_t* x,
                                                 int first_step, int row, int* sums) {
  using Order = GemvOrder<B>;
  const uint4 low = shared_16(weights), high = shared_16(weights + 8 * stride);
  const uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int c[4] = {};
#pragma unroll
  for (int i = 0; i < Order::kFields; ++i) {
    const uint4 part = shared_16(x + i * 64);
    const uint32_t v[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int h = 0; h < 4; h += 2) {
      const int s = 4 * i + h, j0 = s / Order::kFields, j1 = (s + 1) / Order::kFields;
      const int f0 = B * (s % Order::kFields), f1 = B * ((s + 1) % Order::kFields);
      mma_u8_s8(c, (w[j0] >> f0) & Order::kMask, (w[4 + j0] >> f0) & Order::kMask, (w[j1] >> f1) & Order::kMask,
                (w[4 + j1] >> f1) & Order::kMask, v[h], v[h + 1]);
      const int step = first_step + s / 2, group = step >> a.group_shift;
      const bool ends = ((step + 1) & ((1 << a.group_shift) - 1)) == 0 || s + 2 == Order::kSlots;
      if (ends) {
        if (group < a.groups) add_sums(a, sums, group, row, c);
        c[0] = c[1] = c[2] = c[3] = 0;
      }
    }
  }
}

/// y of `tiles` tiles from their sums, which are zeroed again.
template <bool kGrouped>
__device__ __forceinline__ void finish_tiles(const GemvArgs& a, uint8_t* smem, int first_tile, int tiles, int range_first) {
  const int rows = a.batch * kTileRows;
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  const int* const x_sums = reinterpret_cast<const int*>(smem + a.x_sums_at);
  const float* const x_scales = reinterpret_cast<const float*>(smem + a.x_scales_at);
  const float* const staged = reinterpret_cast<const float*>(smem + a.scales_at);
  for (int i = threadIdx.x; i < tiles * kTileRows * a.m; i += blockDim.x) {
    const int m = i / (tiles * kTileRows), r = i - m * tiles * kTileRows, row = first_tile * kTileRows + r;
    if (row >= a.n) {
      for (int g = 0; g < a.groups; ++g) sums[(g * a.m + m) * rows + r] = 0;
      continue;
    }
    float acc = 0;
#pragma unroll 4
    for (int g = 0; g < a.groups; ++g) {
      int& place = sums[(g * a.m + m) * rows + r];
      const int sum_x = x_sums[m * a.groups + g], sum = a.mul * place + a.add * sum_x;
      place = 0;
      const float scale = kGrouped ? a.scales[static_cast<int64_t>(g) * a.n + row] : staged[row - range_first * kTileRows];
      const float x_scale = a.x_groups ? x_scales[m * a.groups + g] : 1.0f;
      acc = __fmaf_rn(__fmul_rn(static_cast<float>(sum), x_scale), scale, acc);
      if (a.offsets != nullptr)
        acc = __fmaf_rn(__fmul_rn(static_cast<float>(sum_x), x_scale), a.offsets[static_cast<int64_t>(g) * a.n + row], acc);
    }
    const float bias = a.bias == nullptr ? 0.0f : a.bias[row];
    const float y = a.x_groups ? __fadd_rn(acc, bias) : __fmaf_rn(acc, x_scales[m], bias);
    store_element(a.y, a.y_element, m * a.ldy + row, y);
  }
}

/// What needs no x: barriers, the first weights, and scales.
template <bool kGrouped, bool kBulk>
__device__ __forceinline__ void begin_block(const GemvArgs& a, uint8_t* smem, const GemvRange& range) {
  const uint32_t barriers = shared_address(smem + a.barriers_at);
  if (threadIdx.x == 0) {
    for (int b = 0; b < a.buffers; ++b) barrier_init(barriers + 8 * b, kBulk ? 1 : blockDim.x);
#if LOWBIT_SM90
    barriers_visible_to_copies();
#endif
  }
  if constexpr (kBulk) {
    __syncwarp();
  } else {
    __syncthreads();
  }
  const int units = min(a.buffers, range.count * a.segments);
  if constexpr (kBulk)
    for (int u = 0; u < units; ++u) start_unit<kBulk>(a, smem, range.first, u);
  const int first_row = range.first * kTileRows, rows = min(range.count * kTileRows, a.n - first_row);
  if constexpr (kGrouped) {
    for (int i = threadIdx.x; i < a.groups * ((rows + 31) / 32); i += blockDim.x) {
      const int64_t at = static_cast<int64_t>(i % a.groups) * a.n + first_row + i / a.groups * 32;
      prefetch_to_l2(a.scales + at);
    }
  } else {
    for (int i = threadIdx.x; i < rows; i += blockDim.x)
      copy_async_4(shared_address(smem + a.scales_at) + 4 * i, a.scales + first_row + i);
  }
  if constexpr (!kBulk)  // after the scales: the arrival at the first unit's barrier speaks for them, too
    for (int u = 0; u < units; ++u) start_unit<kBulk>(a, smem, range.first, u);
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  for (int i = threadIdx.x; i < a.batch * kTileRows * a.m * a.groups; i += blockDim.x) sums[i] = 0;
  int* const x_sums = reinterpret_cast<int*>(smem + a.x_sums_at);
  for (int i = threadIdx.x; i < a.m * a.groups; i += blockDim.x) x_sums[i] = 0;
  uint32_t* const largest = reinterpret_cast<uint32_t*>(smem + a.largest_at);
  for (int i = threadIdx.x; i < a.m * (a.x_groups ? a.groups : 1); i += blockDim.x) largest[i] = 0;
}

template <int B, bool kGrouped, bool kBulk>
__global__ void __launch_bounds__(512) integer_gemv(const __grid_constant__ GemvArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  if constexpr (kBulk && !LOWBIT_SM90) return;  // chosen on compute capability 9 and higher only
  constexpr int kSums = GemvOrder<B>::kFields < 4 ? GemvOrder<B>::kFields : 4;
  let_successor_start();
  const GemvRange range(a);
  begin_block<kGrouped, kBulk>(a, smem, range);
  __syncthreads();
  wait_for_predecessor();
  const int words = a.blocks_of_row * GemvOrder<B>::kColumns / 4;
  if (a.x_element == Element::kInt8) {
    stage_codes<kGrouped>(a, smem, words);
  } else {
    stage_floats<kGrouped>(a, smem, words);
  }
  if constexpr (!kGrouped && kBulk) wait_for_all_copies();
  __syncthreads();

  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const uint8_t* const x = smem + a.x_at + min(g, a.m - 1) * a.x_stride + t * 16;
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  const int units = range.count * a.segments;
  for (int u = 0; u < units; ++u) {
    const int segment = u % a.segments, tile = u / a.segments;  // tile within the range
    const int blocks = min(a.segment, a.blocks_of_row - segment * a.segment);
    const uint8_t* const unit = smem + (u % a.buffers) * a.unit_bytes + g * a.unit_stride + t * 16;
    barrier_wait(shared_address(smem + a.barriers_at) + 8 * (u % a.buffers), (u / a.buffers) & 1);
    const int row = tile % a.batch * kTileRows + g;
    if constexpr (kGrouped) {
      for (int b = warp; b < blocks; b += warps) {
        const int block = segment * a.segment + b;
        add_block_groups<B>(a, unit + b * kBlockBytes, a.unit_stride, x + block * (GemvOrder<B>::kFields * 64),
                            block * (GemvOrder<B>::kSlots / 2), row, sums);
      }
    } else {
      int c[kSums][4] = {};
      for (int b = warp; b < blocks; b += warps)
        add_block<B, kSums>(unit + b * kBlockBytes, a.unit_stride,
                            x + (segment * a.segment + b) * (GemvOrder<B>::kFields * 64), c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int f = 1; f < kSums; ++f) c[0][i] += c[f][i] >> (B * f);
      }
      if (warp < blocks) add_sums(a, sums, 0, row, c[0]);
    }
    const bool refill = u + a.buffers < units;
    const bool finish = segment + 1 == a.segments && (tile + 1 == range.count || (tile + 1) % a.batch == 0);
    if (refill || finish) __syncthreads();
    if (refill) start_unit<kBulk>(a, smem, range.first, u + a.buffers);
    if (finish) {
      const int done = tile % a.batch + 1;
      finish_tiles<kGrouped>(a, smem, range.first + tile + 1 - done, done, range.first);
      if (tile + 1 < range.count) __syncthreads();
    }
  }
}

}  // namespace lowbit::cuda
