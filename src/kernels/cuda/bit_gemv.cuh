#pragma once
// y[n] = sum_k x[k] real(w)[n, k] for one row of x: integer weights of 1 or 2 bits with one scale per row, int8 codes of x.
// Products of bits: x is cut into its eight bit planes, which are the eight columns of mma.m16n8k256.b1, and weights are its A
// operand as they lie in memory (integer_gemv.h). Nothing is unpacked, and no column of the mma is wasted:
//
//     sum_k code x = sum_e sum_p 2^e s_p popcount(bit e of codes & plane p of x),  s_p = 2^p, -128 for p = 7
//
// Shapes:   a thread block takes consecutive tiles of 16 rows of w; its warps share their blocks of 64 bytes evenly.
// Memory:   all weights of the thread block come by one run of bulk copies before x is touched.
// Numerics: integer sums are exact and equal the reference's.
// Limits:   reading the weights; for few rows of w, the chain wait - read x - cut it - mma - add over warps - store.

#include "kernels/cuda/integer_gemv.cuh"

namespace lowbit::cuda {

/// c[16, 8] += popcount(a[16, 256 bits] & b[256 bits, 8]). Lane 4 g + t holds words t and 4 + t of rows g and g + 8.
__device__ __forceinline__ void mma_bits(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Four codes of x from column k on, byte by byte; zeros behind the end.
__device__ __forceinline__ uint32_t load_four_codes(const int8_t* x, int column, int k) {
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i)
    if (column + i < k) v |= static_cast<uint32_t>(static_cast<uint8_t>(x[column + i])) << (8 * i);
  return v;
}

/// Planes of x as the words of w lie: [block][plane][lane t][word j], code f of byte b at bit 8 b + B f. Adds the sum of x.
template <int B>
__device__ __forceinline__ void stage_planes(const GemvArgs& a, uint8_t* smem) {
  using Order = GemvOrder<B>;
  const auto* const x = static_cast<const int8_t*>(a.x);
  auto* const planes = reinterpret_cast<uint32_t*>(smem + a.planes_at);
  const bool aligned = ((reinterpret_cast<uintptr_t>(x) | static_cast<uintptr_t>(a.k)) & 3) == 0;
  const float x_scale = threadIdx.x == 0 ? a.x_scales[0] : 0.0f;  // under way with x
  int sum = 0;
  for (int place = threadIdx.x; place < a.blocks_of_row * 16; place += blockDim.x) {
    const int t = place & 3, j = place >> 2 & 3, block = place >> 4;
    const int first = 16 * (block * Order::kSlots + j * Order::kFields) + 4 * t;
    uint32_t v[Order::kFields], out[8] = {};
    if (aligned) {
#pragma unroll
      for (int f = 0; f < Order::kFields; ++f)
        v[f] = first + 16 * f < a.k ? *reinterpret_cast<const uint32_t*>(x + first + 16 * f) : 0;
    } else {
#pragma unroll
      for (int f = 0; f < Order::kFields; ++f) v[f] = load_four_codes(x, first + 16 * f, a.k);
    }
#pragma unroll
    for (int f = 0; f < Order::kFields; ++f) {
      sum = __dp4a(static_cast<int>(v[f]), 0x01010101, sum);
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const int up = B * f - p;
        out[p] |= (up >= 0 ? v[f] << up : v[f] >> -up) & (0x01010101u << (B * f));
      }
    }
#pragma unroll
    for (int p = 0; p < 8; ++p) planes[block * 128 + p * 16 + t * 4 + j] = out[p];
  }
  const int parts[1] = {sum};
  add_row_sums<1>(a, smem, parts);
  if (threadIdx.x == 0) *reinterpret_cast<float*>(smem + a.x_scales_at) = x_scale;
}

/// Adds the sums of a tile: lane t has planes 2 t and 2 t + 1 of rows g and g + 8, for each bit e of the codes.
template <int B>
__device__ __forceinline__ void add_planes(int* sums, int tile, int (&c)[B][4]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  int row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int even = 0, odd = 0;
#pragma unroll
    for (int e = 0; e < B; ++e) {
      even += c[e][2 * half] << e, odd += c[e][2 * half + 1] << e;
      c[e][2 * half] = c[e][2 * half + 1] = 0;
    }
    int sum = (even << (2 * t)) + (odd << (2 * t)) * (t == 3 ? -2 : 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    row[half] = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
  if (t == 0) atomicAdd(sums + tile * kTileRows + g, row[0]);
  if (t == 1) atomicAdd(sums + tile * kTileRows + g + 8, row[1]);
}

/// Weights and scales, and zeros where sums will be.
__device__ __forceinline__ void begin_bits(const GemvArgs& a, uint8_t* smem, const GemvRange& range) {
  const int first_row = range.first * kTileRows, rows = min(range.count * kTileRows, a.n - first_row);
  const int bytes = range.count * a.blocks_of_row * kTileBlockBytes;
  const uint8_t* const from = a.codes + static_cast<int64_t>(range.first) * a.blocks_of_row * kTileBlockBytes;
#if LOWBIT_SM90
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(smem + a.barriers_at);
    barrier_init(barrier, 1);
    barriers_visible_to_copies();
    barrier_expect(barrier, bytes);
    constexpr int kCopy = 16 << 10;
    for (int at = 0; at < bytes; at += kCopy)
      copy_bulk(shared_address(smem) + at, from + at, min(kCopy, bytes - at), barrier);
  }
#else
  for (int at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x)
    copy_async_16(shared_address(smem) + at, from + at);
#endif
  for (int i = threadIdx.x; i < rows; i += blockDim.x)
    copy_async_4(shared_address(smem + a.scales_at) + 4 * i, a.scales + first_row + i);
  int* const zeros = reinterpret_cast<int*>(smem + a.sums_at);
  for (int i = threadIdx.x; i < (a.x_scales_at - a.sums_at) / 4; i += blockDim.x) zeros[i] = 0;
}

template <int B>
__global__ void __launch_bounds__(384, 3) bit_gemv(const __grid_constant__ GemvArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  let_successor_start();
  const GemvRange range(a);
  begin_bits(a, smem, range);
  // A warp's blocks and where they begin, before the wait: divisions take time.
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int blocks = range.count * a.blocks_of_row, begin = blocks * warp / warps, end = blocks * (warp + 1) / warps;
  int tile = begin / a.blocks_of_row, column = begin - tile * a.blocks_of_row;
  asm volatile("" : "+r"(tile), "+r"(column));
  int* const sums = reinterpret_cast<int*>(smem + a.sums_at);
  const uint8_t* weights = smem + begin * kTileBlockBytes + lane * 16;
  const uint8_t* const planes = smem + a.planes_at + lane * 16;  // plane g, words of lane t
  __syncthreads();
  wait_for_predecessor();
  stage_planes<B>(a, smem);
  wait_for_all_copies();
  __syncthreads();
#if LOWBIT_SM90
  barrier_wait(shared_address(smem + a.barriers_at), 0);
#endif

  int c[B][4] = {};
#pragma unroll 2
  for (int block = begin; block < end; ++block, weights += kTileBlockBytes) {
    const uint4 low = shared_16(weights), high = shared_16(weights + 8 * kBlockBytes);
    const uint4 x = shared_16(planes + column * 512);
#pragma unroll
    for (int e = 0; e < B; ++e) {
      mma_bits(c[e], low.x, high.x, low.y, high.y, x.x << e, x.y << e);
      mma_bits(c[e], low.z, high.z, low.w, high.w, x.z << e, x.w << e);
    }
    if (++column == a.blocks_of_row) {
      add_planes<B>(sums, tile++, c);
      column = 0;
    }
  }
  if (column != 0 && begin < end) add_planes<B>(sums, tile, c);
  __syncthreads();
  finish_tiles<false, 1>(a, smem, range, 0, range.count, 0);
}

}  // namespace lowbit::cuda
