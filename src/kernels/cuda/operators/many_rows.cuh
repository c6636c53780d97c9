#pragma once
// Products of few bits with many tokens, by mma.sync on every GPU.
//
// A thread block has a tile of 32 MF tokens by 32 NF rows of w, eight warps of 16 MF by 8 NF. 128 bytes of each row
// of x and what belongs to them of w are in shared memory, the next ones in registers meanwhile. The order of columns
// within a product is free: lane t of four takes bytes 16 t to 16 t + 15 of 64, two mma's worth.

#include "kernels/cuda/operators/load.cuh"

namespace lowbit::cuda::operators {

inline constexpr int kDepth = 128;  // bytes of x

/// Bank conflicts: two neighbouring rows of 128 bytes have their halves the other way round.
__device__ __forceinline__ int place_128(int row, int piece) {
  return row * kDepth + ((piece ^ ((row & 1) << 2)) << 4);
}

__device__ __forceinline__ void mma_s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_b1(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// int8 x with 2-bit codes in rows: a byte has columns 4 b to 4 b + 3, so that field i of a word's bytes belongs to
/// columns i, 4 + i, ... and the bytes of x are brought into that order.
struct Int2Rows {
  using End = Int2End;
  static constexpr int kRowBytes = kDepth / 4;
  static constexpr bool kSums = true;
  __device__ static uint4 load_x(const Int2Product& p, int64_t row, int64_t at, bool aligned) {
    const auto* const x = reinterpret_cast<const uint8_t*>(p.x) + row * p.ldx + at;
    return transpose_bytes(load_16(x, row < p.m ? p.k - at : 0, aligned));
  }
  /// Piece i of the tile of w that begins at row n0, at byte `at` of x's rows.
  __device__ static uint4 load_w(const Int2Product& p, int64_t n0, int64_t at, int i, bool aligned) {
    const int64_t row = n0 + i / 2, byte = at / 4 + i % 2 * 16;
    return load_16(p.weight + row * p.weight_stride + byte, row < p.n ? (p.k + 3) / 4 - byte : 0, aligned);
  }
  __device__ static int place_w(int i) { return i / 2 * kRowBytes + ((i % 2 ^ (i / 8 & 1)) << 4); }
  /// The four words of lane t for row r of the tile, bytes [64 sub, 64 sub + 64) of x.
  __device__ static uint4 words(const uint8_t* w, int r, int sub, int t) {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(w + r * kRowBytes + ((sub ^ (r / 4 & 1)) << 4) + 4 * t);
    return spread(word);
  }
  __device__ static uint4 spread(uint32_t word) {
    return uint4{word & 0x03030303u, word >> 2 & 0x03030303u, word >> 4 & 0x03030303u, word >> 6 & 0x03030303u};
  }
  __device__ static void multiply(int (&c)[4], const uint4& a, const uint4& b, const uint4& w) {
    mma_s8(c, a.x, b.x, a.y, b.y, w.x, w.y);
    mma_s8(c, a.z, b.z, a.w, b.w, w.z, w.w);
  }
  /// From the sum of codes times x, not values.
  __device__ static int value(int c, int x_sum, const Int2Product&) { return c - 2 * x_sum; }
};

/// Int2Rows for weights in tiles of 16 x 32: 32 words of 16 codes, field i of whose bytes belongs to columns 4 i to 4 i
/// + 3.
struct Int2Tiles : Int2Rows {
  __device__ static uint4 load_x(const Int2Product& p, int64_t row, int64_t at, bool aligned) {
    return load_16(reinterpret_cast<const uint8_t*>(p.x) + row * p.ldx + at, row < p.m ? p.k - at : 0, aligned);
  }
  __device__ static uint4 load_w(const Int2Product& p, int64_t n0, int64_t at, int i, bool aligned) {
    const int64_t band = n0 / 16 + i / 32, block = at / 32 + i % 32 / 8, blocks = p.k / 32;
    return load_16(p.weight + (band * blocks + block) * 128 + i % 8 * 16, 16 * band < p.n && block < blocks ? 16 : 0,
                   aligned);
  }
  __device__ static int place_w(int i) { return 16 * i; }
  __device__ static uint4 words(const uint8_t* w, int r, int sub, int t) {
    const int piece = 4 * sub + t, word = r / 16 * 128 + piece / 2 * 32 + r % 16 / 8 * 16 + piece % 2 * 8 + r % 8;
    return spread(reinterpret_cast<const uint32_t*>(w)[word]);
  }
};

/// Bits with bits: those that are 1 in both and those that are 0 in both are counted.
struct Bits {
  using End = BitEnd;
  static constexpr int kRowBytes = kDepth;
  static constexpr bool kSums = false;
  __device__ static uint4 load(const uint8_t* rows, int64_t row, int64_t stride, int64_t count, int64_t at, int64_t k,
                               bool aligned) {
    return first_bits(load_16(rows + row * stride + at, row < count ? (k + 7) / 8 - at : 0, aligned), k - 8 * at);
  }
  __device__ static uint4 load_x(const BitProduct& p, int64_t row, int64_t at, bool aligned) {
    return load(p.x, row, p.x_stride, p.m, at, p.k, aligned);
  }
  __device__ static uint4 load_w(const BitProduct& p, int64_t n0, int64_t at, int i, bool aligned) {
    return load(p.weight, n0 + i / 8, p.weight_stride, p.n, at + i % 8 * 16, p.k, aligned);
  }
  __device__ static int place_w(int i) { return place_128(i / 8, i % 8); }
  __device__ static uint4 words(const uint8_t* w, int r, int sub, int t) {
    return *reinterpret_cast<const uint4*>(w + place_128(r, 4 * sub + t));
  }
  __device__ static void multiply(int (&c)[4], const uint4& a, const uint4& b, const uint4& w) {
    mma_b1(c, a.x, b.x, a.y, b.y, w.x, w.y);
    mma_b1(c, a.z, b.z, a.w, b.w, w.z, w.w);
    mma_b1(c, ~a.x, ~b.x, ~a.y, ~b.y, ~w.x, ~w.y);
    mma_b1(c, ~a.z, ~b.z, ~a.w, ~b.w, ~w.z, ~w.w);
  }
  /// Columns behind the last are 0 in both, and were counted.
  __device__ static int value(int c, int, const BitProduct& p) {
    const int64_t bits = (p.k + 8 * kDepth - 1) / (8 * kDepth) * (8 * kDepth);
    return static_cast<int>(2 * (c - (bits - p.k)) - p.k);
  }
};

template <class Kind, int MF, int NF>
struct ManyRows {
  static constexpr int kM = 32 * MF, kN = 32 * NF;
  static constexpr int kXPieces = kM * 8 / kThreads, kWBytes = kN * Kind::kRowBytes;
  static constexpr int kWPieces = (kWBytes / 16 + kThreads - 1) / kThreads;
  static_assert(kM * 8 % kThreads == 0);
  using Problem = decltype(Kind::End::p);

  /// The words that the thread fetches for one step.
  struct Stage {
    uint4 x[kXPieces], w[kWPieces];
    __device__ __forceinline__ void load(const Problem& p, int64_t m0, int64_t n0, int64_t at, bool x_aligned,
                                         bool w_aligned) {
      const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int j = 0; j < kXPieces; ++j)
        x[j] = Kind::load_x(p, m0 + thread / 8 + 32 * j, at + thread % 8 * 16, x_aligned);
#pragma unroll
      for (int j = 0; j < kWPieces; ++j)
        if (const int i = thread + kThreads * j; 16 * i < kWBytes) w[j] = Kind::load_w(p, n0, at, i, w_aligned);
    }
    __device__ __forceinline__ void store(uint8_t* to_x, uint8_t* to_w) const {
      const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int j = 0; j < kXPieces; ++j)
        *reinterpret_cast<uint4*>(to_x + place_128(thread / 8 + 32 * j, thread % 8)) = x[j];
#pragma unroll
      for (int j = 0; j < kWPieces; ++j)
        if (const int i = thread + kThreads * j; 16 * i < kWBytes)
          *reinterpret_cast<uint4*>(to_w + Kind::place_w(i)) = w[j];
    }
  };

  __device__ static __forceinline__ void multiply(const uint8_t* x, const uint8_t* w, int (&c)[MF][NF][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int g = lane / 4, t = lane % 4, row0 = warp / 4 * 16 * MF + g, column0 = warp % 4 * 8 * NF + g;
#pragma unroll
    for (int sub = 0; sub < kDepth / 64; ++sub) {
      uint4 b[NF];
#pragma unroll
      for (int j = 0; j < NF; ++j) b[j] = Kind::words(w, column0 + 8 * j, sub, t);
#pragma unroll
      for (int i = 0; i < MF; ++i) {
        const uint4 upper = *reinterpret_cast<const uint4*>(x + place_128(row0 + 16 * i, 4 * sub + t));
        const uint4 lower = *reinterpret_cast<const uint4*>(x + place_128(row0 + 16 * i + 8, 4 * sub + t));
#pragma unroll
        for (int j = 0; j < NF; ++j) Kind::multiply(c[i][j], upper, lower, b[j]);
      }
    }
  }

  __device__ static __forceinline__ void store(const typename Kind::End& end, int64_t m0, int64_t n0, const int* x_sums,
                                               const int (&c)[MF][NF][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int row0 = warp / 4 * 16 * MF + lane / 4;
    const int64_t column0 = n0 + warp % 4 * 8 * NF + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < NF; ++j) {
      const int64_t column = column0 + 8 * j;
      if (column >= end.p.n) continue;
      const auto first = end.column(column), second = end.column(column + 1 < end.p.n ? column + 1 : column);
#pragma unroll
      for (int i = 0; i < 2 * MF; ++i) {
        const int row = row0 + 8 * i;
        if (m0 + row >= end.p.m) continue;
        const auto of_row = end.row(m0 + row);
        const int(&sums)[4] = c[i / 2][j];
        const int one = Kind::value(sums[i % 2 * 2], x_sums[row], end.p);
        const int two = Kind::value(sums[i % 2 * 2 + 1], x_sums[row], end.p);
        store_pair(end, m0 + row, column, end.of(one, of_row, first), end.of(two, of_row, second));
      }
    }
  }
};

template <class Kind, int MF, int NF>
__global__ void __launch_bounds__(kThreads, 2)
    many_rows(const __grid_constant__ typename Kind::End end, int bytes_of_row, bool x_aligned, bool w_aligned) {
  using T = ManyRows<Kind, MF, NF>;
  __shared__ __align__(16) uint8_t x[T::kM * kDepth], w[T::kWBytes];
  __shared__ int x_sums[T::kM];
  const int64_t across = (end.p.n + T::kN - 1) / T::kN;
  const int64_t m0 = blockIdx.x / across * T::kM, n0 = blockIdx.x % across * T::kN;
  int c[MF][NF][4] = {}, sums[T::kXPieces] = {};
  typename T::Stage stage;
  stage.load(end.p, m0, n0, 0, x_aligned, w_aligned);
  for (int at = 0; at < bytes_of_row; at += kDepth) {
    if (at > 0) __syncthreads();
    stage.store(x, w);
    if constexpr (Kind::kSums) {
#pragma unroll
      for (int j = 0; j < T::kXPieces; ++j) sums[j] = add_bytes(stage.x[j], sums[j]);
    }
    __syncthreads();
    if (at + kDepth < bytes_of_row) stage.load(end.p, m0, n0, at + kDepth, x_aligned, w_aligned);
    T::multiply(x, w, c);
  }
#pragma unroll
  for (int j = 0; j < T::kXPieces; ++j) {
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], d);
    if (threadIdx.x % 8 == 0) x_sums[threadIdx.x / 8 + 32 * j] = sums[j];
  }
  __syncthreads();
  T::store(end, m0, n0, x_sums, c);
}

}  // namespace lowbit::cuda::operators
