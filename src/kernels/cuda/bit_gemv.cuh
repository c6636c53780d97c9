#pragma once
// y[n] = sum_k x[k] real(w)[n, k] for one token: integer weights of 1 or 2 bits with one scale per row; x as int8
// codes, or as floats that are quantized here. Products of bits: x is cut into its eight bit planes, which are eight
// columns of mma.m16n8k256.b1, or eight of its rows for each bit of the codes, and weights are the other operand as
// they lie in memory (integer_gemv.h). Nothing is unpacked, and nothing of the mma is wasted:
//
//     sum_k code x = sum_e sum_p 2^e s_p popcount(bit e of codes & plane p of x),  s_p = 2^p, -128 for p = 7
//
// Counted codes (ternary, plans for one token): value + 1 of the two bits are set, so that both weigh the same.
// Planes have every bit twice, one popcount serves both bits of the codes, and two bits cost what one does.
//
// Shapes:   a thread block takes consecutive tiles of 16 rows of w. A strip is kPer blocks of 64 bytes of every row. A
// warp
//           has one strip, cuts its columns of x itself, and keeps their planes in registers: no barrier stands between
//             x and
//           the products. Teams of warps, one warp per strip, take tiles in turn.
// Memory:   all weights of the thread block come by one bulk copy per tile before x is touched.
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

/// Shared memory: this, the weights, and a transposition buffer of planes for each warp.
struct BitShared {
  int sums[kMostBitTiles * kTileRows];
  int sum_x;         // where there are offsets
  uint32_t largest;  // magnitude of x, as bits
  uint64_t barriers[kMostBitTiles];
};

/// Of kWords words of kWords cells of B bits in every half or whole byte: word f gets, at cell c, what word c held at
/// cell f.
template <int B, int kWords>
__device__ __forceinline__ void transpose_cells(uint32_t* v) {
#pragma unroll
  for (int d = 1; d < kWords; d *= 2) {
    const int shift = B * d;
    const uint32_t low = shift == 1 ? 0x55555555u : shift == 2 ? 0x33333333u : 0x0f0f0f0fu;
#pragma unroll
    for (int f = 0; f < kWords; ++f) {
      if ((f & d) != 0) continue;
      const uint32_t a = v[f], b = v[f + d];
      v[f] = (a & low) | (b << shift & ~low);
      v[f + d] = (a >> shift & low) | (b & ~low);
    }
  }
}

/// Four codes of x from a column on, byte by byte; zeros behind the end.
__device__ __forceinline__ uint32_t load_four_codes(const int8_t* x, int column, int k) {
  uint32_t v = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i)
    if (column + i < k) v |= static_cast<uint32_t>(static_cast<uint8_t>(x[column + i])) << (8 * i);
  return v;
}

/// A lane's words of x: columns `first` + 16 f to + 3 are word f. x: where column `first` is; left: columns from there
/// on.
template <int B>
__device__ __forceinline__ void load_words(const int8_t* x, int left, bool aligned, uint32_t (&v)[8 / B]) {
  if (aligned) {
#pragma unroll
    for (int f = 0; f < 8 / B; ++f) v[f] = 16 * f < left ? *reinterpret_cast<const uint32_t*>(x + 16 * f) : 0;
  } else {
#pragma unroll
    for (int f = 0; f < 8 / B; ++f) v[f] = load_four_codes(x, 16 * f, left);
  }
}

/// Sixteen bytes or eight of a lane's four columns, as they lie in memory.
template <class Raw, int kWords>
__device__ __forceinline__ void load_raw(const uint8_t* x, int bytes, int left, Raw (&raw)[kWords]) {
#pragma unroll
  for (int f = 0; f < kWords; ++f) raw[f] = 16 * f < left ? *reinterpret_cast<const Raw*>(x + 16 * f * bytes) : Raw{};
}

/// The columns of load_raw() as floats; x, left: as load_words().
template <int B>
__device__ __forceinline__ void load_columns(const GemvArgs& a, const uint8_t* x, int left, bool aligned,
                                             float (&v)[8 / B][4]) {
  if (!aligned) {
#pragma unroll
    for (int f = 0; f < 8 / B; ++f) load_four(x, a.x_element, 16 * f, left, false, v[f]);
  } else if (a.x_element == Element::kF32) {
    float4 raw[8 / B];
    load_raw(x, 4, left, raw);
#pragma unroll
    for (int f = 0; f < 8 / B; ++f) v[f][0] = raw[f].x, v[f][1] = raw[f].y, v[f][2] = raw[f].z, v[f][3] = raw[f].w;
  } else {
    uint2 raw[8 / B];
    load_raw(x, 2, left, raw);
    const bool bf16 = a.x_element == Element::kBf16;
#pragma unroll
    for (int f = 0; f < 8 / B; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto half = static_cast<uint16_t>((i < 2 ? raw[f].x : raw[f].y) >> (16 * (i & 1)));
        v[f][i] = bf16 ? bf16_to_f32(half) : f16_value(half);
      }
    }
  }
}

/// A lane's words of codes of floats, quantized by the largest magnitude of the row; returns the scale. All warps call
/// it.
template <int B>
__device__ __forceinline__ float quantize_words(const GemvArgs& a, uint8_t* smem, const uint8_t* from, int left,
                                                bool aligned, uint32_t (&v)[8 / B]) {
  float x[8 / B][4];
  load_columns<B>(a, from, left, aligned, x);
  uint32_t most = 0;
#pragma unroll
  for (int f = 0; f < 8 / B; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) most = max(most, magnitude_bits(x[f][i]));
  }
  uint32_t& largest = reinterpret_cast<BitShared*>(smem)->largest;
  most = __reduce_max_sync(0xffffffffu, most);
  if ((threadIdx.x & 31) == 0) atomicMax(&largest, most);
  __syncthreads();
  const Quantizer q = quantizer_of(largest);
#pragma unroll
  for (int f = 0; f < 8 / B; ++f) {
    uint32_t code[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) code[i] = static_cast<uint32_t>(quantize_one(x[f][i], q.inverse));
    v[f] = __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
  }
  return q.scale;
}

/// Words of shared memory in which a warp's lanes exchange planes; lanes meet each bank once.
template <int kPer>
inline constexpr int kExchangeWords = kPer == 2 ? 288 : 160;

/// Cuts a lane's words into planes and returns those that it multiplies by: plane g, words of lane t, of each of its
/// blocks. Two blocks: lanes g < 4 have word j = g of the first, others of the second. One: they share its words, four
/// planes each.
template <int B, int kPer, bool kCounted>
__device__ __forceinline__ void exchange_planes(uint32_t (&v)[8 / B], uint32_t* exchange, uint4 (&planes)[kPer]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, upper = g >> 2;
  constexpr int kWords = kPer == 2 ? 8 / B : 4 / B, kApart = kPer == 2 ? 144 : 80;
  if constexpr (kPer == 1) {
    const int down = 4 * upper;
#pragma unroll
    for (int f = 0; f < kWords; ++f) v[f] = (v[f] >> down & 0x0f0f0f0fu) | (v[f + kWords] >> down << 4 & 0xf0f0f0f0u);
  }
  transpose_cells<B, kWords>(v);
  uint32_t* const place = exchange + upper * kApart + t * 4 + (g & 3);
#pragma unroll
  for (int f = 0; f < kWords; ++f) {
#pragma unroll
    for (int e = 0; e < B; ++e) {
      const uint32_t bits = v[f] >> e & (B == 1 ? 0xffffffffu : 0x55555555u);
      place[(B * f + e) * 16] = kCounted ? bits * 3 : bits;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    planes[i] = *reinterpret_cast<const uint4*>(exchange + (kPer == 2 ? i * kApart : upper * 16) + lane * 4);
}

/// Sums of a tile's rows of codes of one bit, or counted ones: rows of w are the rows of the mma, planes its columns.
/// Lane t has planes 2 t and 2 t + 1 of rows g and g + 8. Returns the row's sum; lanes of t < 2 have row g + 8 t.
__device__ __forceinline__ int sum_planes(const int (&c)[4]) {
  const int t = threadIdx.x & 3;
  int row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    row[half] = (c[2 * half] << (2 * t)) + (c[2 * half + 1] << (2 * t)) * (t == 3 ? -2 : 2);
  int sum = (t & 1) == 0 ? row[0] : row[1];  // even lanes go on with row g, odd ones with row g + 8
  sum += __shfl_xor_sync(0xffffffffu, (t & 1) == 0 ? row[1] : row[0], 1);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

/// Of codes of two bits: planes are the rows of the mma, those for bit 1 of the codes behind those for bit 0, and rows
/// of w its columns, eight in c[0], eight in c[1]. Lanes of g < 4 have row 8 (g & 1) + 2 t + (g >> 1).
__device__ __forceinline__ int sum_planes(const int (&c)[2][4]) {
  const int g = (threadIdx.x & 31) >> 2;
  int v[2][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int sum = (c[half][i] + 2 * c[half][i + 2]) << g;
      v[half][i] = g == 7 ? -sum : sum;
    }
  }
  int mine[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    mine[i] = ((g & 1) == 0 ? v[0][i] : v[1][i]) + __shfl_xor_sync(0xffffffffu, (g & 1) == 0 ? v[1][i] : v[0][i], 4);
  int sum = (g & 2) == 0 ? mine[0] : mine[1];
  sum += __shfl_xor_sync(0xffffffffu, (g & 2) == 0 ? mine[1] : mine[0], 8);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

/// Starts the copies of all weights; zeros where sums will be.
__device__ __forceinline__ void begin_bits(const GemvArgs& a, uint8_t* smem, const GemvRange& range) {
  const int tile_bytes = a.blocks_of_row * kTileBlockBytes;
  BitShared& shared = *reinterpret_cast<BitShared*>(smem);
  const uint32_t to = shared_address(smem) + kBitWeightsAt, barriers = shared_address(shared.barriers);
  const uint8_t* const from = a.codes + static_cast<int64_t>(range.first) * tile_bytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < range.count; ++i) barrier_init(barriers + 8 * i, LOWBIT_SM90 ? 1 : blockDim.x);
    shared.sum_x = 0;
    shared.largest = 0;
#if LOWBIT_SM90
    barriers_visible_to_copies();
    for (int i = 0; i < range.count; ++i) {
      barrier_expect(barriers + 8 * i, tile_bytes);
      copy_bulk(to + i * tile_bytes, from + i * tile_bytes, tile_bytes, barriers + 8 * i);
    }
#endif
  }
#if !LOWBIT_SM90
  __syncthreads();
  for (int i = 0; i < range.count; ++i) {
    for (int at = 16 * threadIdx.x; at < tile_bytes; at += 16 * blockDim.x)
      copy_async_16(to + i * tile_bytes + at, from + i * tile_bytes + at);
    copies_arrive(barriers + 8 * i);
  }
#endif
  for (int i = threadIdx.x; i < range.count * kTileRows; i += blockDim.x) shared.sums[i] = 0;
}

/// y of a row of the thread block, whatever there is to do to it.
__device__ __forceinline__ void finish_row(const GemvArgs& a, const BitShared& shared, int row, int r, float scale,
                                           float x_scale) {
  const float inside = a.x_groups ? x_scale : 1.0f;
  float acc = __fmaf_rn(__fmaf_rn(static_cast<float>(shared.sums[r]), inside, 0.0f), scale, 0.0f);
  if (a.offsets != nullptr)
    acc = __fmaf_rn(__fmaf_rn(static_cast<float>(shared.sum_x), inside, 0.0f), a.offsets[row], acc);
  const float bias = a.bias == nullptr ? 0.0f : a.bias[row];
  store_element(a.y, a.y_element, row, a.x_groups ? __fadd_rn(acc, bias) : __fmaf_rn(acc, x_scale, bias));
}

/// A warp's strip and the tiles of its team.
template <int B, int kPer, bool kCounted>
struct BitStrip {
  const GemvArgs& a;
  uint8_t* smem;
  int tiles, team, strip;
  uint4 weights[kPer][2];  // of a tile: rows 0 to 7 and 8 to 15

  /// Adds the products with every tile of the team to its rows' sums. more: what each row gets beside.
  __device__ void multiply(const uint4 (&planes)[kPer], int more) {
    constexpr bool kColumns = B == 2 && !kCounted;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int row = kColumns ? 8 * (g & 1) + 2 * t + (g >> 1) : g + 8 * t;  // whose sum this lane has
    const bool adds = kColumns ? g < 4 : t < 2;
    BitShared& shared = *reinterpret_cast<BitShared*>(smem);
    for (int tile = team; tile < tiles; tile += a.teams) {
      barrier_wait(shared_address(shared.barriers) + 8 * tile, 0);
      fetch(tile);
      int sum = 0;
      if constexpr (kColumns) {
        sum = columns(planes);
      } else {
        sum = rows(planes);
      }
      if (adds) add_shared(shared.sums + tile * kTileRows + row, a.mul * sum + more);
    }
  }

 private:
  /// False where a strip of two blocks has one.
  __device__ bool whole() const { return kPer == 1 || kPer * strip + 1 < a.blocks_of_row; }

  /// All of a tile's before the first product: what comes behind a branch would wait for it.
  __device__ void fetch(int tile) {
    const uint8_t* const from =
        smem + kBitWeightsAt + (tile * a.blocks_of_row + strip * kPer) * kTileBlockBytes + (threadIdx.x & 31) * 16;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i > 0 && !whole()) break;
      weights[i][0] = shared_16(from + i * kTileBlockBytes);
      weights[i][1] = shared_16(from + i * kTileBlockBytes + 8 * kBlockBytes);
    }
  }
  __device__ int rows(const uint4 (&planes)[kPer]) const {
    int c[4] = {};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i > 0 && !whole()) break;
      const uint4 low = weights[i][0], high = weights[i][1];
      mma_bits(c, low.x, high.x, low.y, high.y, planes[i].x, planes[i].y);
      mma_bits(c, low.z, high.z, low.w, high.w, planes[i].z, planes[i].w);
    }
    return sum_planes(c);
  }
  __device__ int columns(const uint4 (&planes)[kPer]) const {
    int c[2][4] = {};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i > 0 && !whole()) break;
      const uint4 p = planes[i];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 w = weights[i][half];
        mma_bits(c[half], p.x, p.x << 1, p.y, p.y << 1, w.x, w.y);
        mma_bits(c[half], p.z, p.z << 1, p.w, p.w << 1, w.z, w.w);
      }
    }
    return sum_planes(c);
  }
};

template <int B, int kPer, bool kFloats, bool kCounted = false>
__global__ void __launch_bounds__(32 * kBitWarps<kPer>, 2) bit_gemv(const __grid_constant__ GemvArgs a) {
  using Order = GemvOrder<B>;
  extern __shared__ __align__(128) uint8_t smem[];
  const GemvRange range(a);
  if constexpr (!kFloats) let_successor_start();
  begin_bits(a, smem, range);
  const int first_row = range.first * kTileRows, rows = min(range.count * kTileRows, a.n - first_row);
  float scale = static_cast<int>(threadIdx.x) < rows ? a.scales[first_row + threadIdx.x] : 0.0f;
  float* const y = static_cast<float*>(a.y) + first_row + threadIdx.x;
  const uint32_t own = shared_address(reinterpret_cast<const BitShared*>(smem)->sums + threadIdx.x);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int team = (warp * a.team_inverse) >> 16, strip = warp - team * a.team_warps;
  const int block = kPer * strip + (kPer == 2 ? g >> 2 : 0);
  const int first = 16 * (block * Order::kSlots + (g & 3) * Order::kFields) + 4 * t, left = a.k - first;
  const int bytes = kFloats ? element_bytes(a.x_element) : 1;
  const uint8_t* const from = static_cast<const uint8_t*>(a.x) + first * bytes;
  const int loose = (static_cast<int>(reinterpret_cast<uintptr_t>(a.x)) & (4 * bytes - 1)) | (a.k & 3);
  BitStrip<B, kPer, kCounted> mine{a, smem, range.count, team, strip};
  __syncthreads();
  wait_for_predecessor_with(from, y, own, left, loose);
  if constexpr (kFloats) let_successor_start();  // any earlier, and its copies would hold up x, which is longer here

  uint32_t v[Order::kFields];
  float x_scale;
  if constexpr (kFloats) {
    x_scale = quantize_words<B>(a, smem, from, left, loose == 0, v);
  } else {
    load_words<B>(reinterpret_cast<const int8_t*>(from), left, loose == 0, v);
    x_scale = a.x_scales[0];
  }
  int sum = 0;
#pragma unroll
  for (int f = 0; f < Order::kFields; ++f) sum = __dp4a(static_cast<int>(v[f]), 0x01010101, sum);
  if (kPer == 1 && g >= 4) sum = 0;
  uint4 planes[kPer];
  exchange_planes<B, kPer, kCounted>(v, reinterpret_cast<uint32_t*>(smem + a.planes_at) + warp * kExchangeWords<kPer>,
                                     planes);
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (a.offsets != nullptr && team == 0 && lane == 0) add_shared(&reinterpret_cast<BitShared*>(smem)->sum_x, sum);
  mine.multiply(planes, a.add * sum);
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  if (r >= rows) return;
  if (a.plain) {
    *y = __fmaf_rn(__fmaf_rn(static_cast<float>(load_shared(own)), scale, 0.0f), x_scale, 0.0f);
  } else {
    finish_row(a, *reinterpret_cast<const BitShared*>(smem), first_row + r, r, scale, x_scale);
  }
}

}  // namespace lowbit::cuda
