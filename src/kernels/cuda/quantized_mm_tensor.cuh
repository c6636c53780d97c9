#pragma once
// quantized_mm<BITS> on tensor cores, at f32 accuracy: x is cut into three bf16 parts that add up to it exactly (8 + 8 + 8
// significant bits), small integer weights are exact in bf16, and so is every product; sums are f32. A part of a row of x is a
// column of the mma, so that one row of x costs no more instructions than eight would.
//
// Shapes:   a thread block makes 16 * kRowTiles outputs of up to 8 * kColumnTiles * kColumnWarps / 3 rows of x; its warps are
//           kRowTiles x kColumnWarps x kDepthWarps, and depth warps share the chunks of 64 bytes of a weight row.
// Memory:   weights go from global memory to registers, all chunks of a pass before x is touched.
// Order:    lane t of a chunk holds 16 bytes of rows g and g + 8; pair i of a word is codes i and i + 16 / BITS of it.
// Error:    sums of a chunk are added to f32 sums by ordinary additions, since tensor cores truncate.

#include "kernels/cuda/quantized_mm.cuh"

namespace lowbit::cuda {

inline constexpr int kParts = 3, kChunkBytes = 64;

/// How the warps of a thread block share the work.
template <int kWarpsOf, int kRowTilesOf, int kColumnWarpsOf, int kColumnTilesOf, int kMostChunksOf>
struct TensorShape {
  static constexpr int kRowTiles = kRowTilesOf, kColumnWarps = kColumnWarpsOf, kColumnTiles = kColumnTilesOf;
  static constexpr int kWarps = kWarpsOf, kDepthWarps = kWarps / (kRowTiles * kColumnWarps);
  static constexpr int kMostChunks = kMostChunksOf;  // of a warp in a pass
  static constexpr int kColumns = 8 * kColumnTiles * kColumnWarps;
  static constexpr int kRowsOfX = kColumns / kParts;
};

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Codes i and i + 16 / BITS of a word as two bf16. 128 + c has c in its lowest bits, so a code is put there and 128 taken off.
template <int BITS>
__device__ __forceinline__ uint32_t decode_pair(uint32_t word, int i) {
  constexpr uint32_t kOne = 0x3f803f80u;
  if constexpr (BITS == 1) {
    return and_xor(word << (15 - i), 0x80008000u, 0xbf80bf80u);
  } else if constexpr (BITS == 2) {
    const int place = 2 * (i % 3);  // three fields fit below the exponent; fma brings them to place 0 and takes 2 off
    const uint32_t field = and_xor(word >> (6 * (i / 3)), 0x00030003u << place, 0x43004300u);
    const uint32_t factor = place == 0 ? kOne : place == 2 ? 0x3e803e80u : 0x3d803d80u;        // 1, 1/4, 1/16
    const uint32_t minus = place == 0 ? 0xc302c302u : place == 2 ? 0xc208c208u : 0xc120c120u;  // -130, -34, -10
    return fma_bf16x2(field, factor, minus);
  } else if constexpr (BITS == 4) {
    return fma_bf16x2(and_xor(word >> (4 * i), 0x000f000fu, 0x43084308u), kOne, 0xc308c308u);  // 128 + (c ^ 8) - 136
  } else {
    const uint32_t bytes = word >> (8 * i);  // the sign bit decides between -128 and -256
    return fma_bf16x2(and_xor(bytes, 0x007f007fu, 0x43004300u), kOne, and_xor(bytes, 0x00800080u, 0xc300c300u));
  }
}

/// 16 bytes of a weight row from `byte` on; zeros behind the row's end.
__device__ __forceinline__ uint4 load_weights(const uint8_t* row, int64_t byte, int64_t row_bytes, bool aligned) {
  if (aligned && byte + 16 <= row_bytes) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(row + byte));
    return v;
  }
  uint32_t v[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (byte + i < row_bytes) v[i / 4] |= static_cast<uint32_t>(row[byte + i]) << (8 * (i % 4));
  return {v[0], v[1], v[2], v[3]};
}

/// The three bf16 parts of v, as their bits in the upper halves. Infinity and NaN have one part.
__device__ __forceinline__ void split(float v, uint32_t (&parts)[kParts]) {
  const uint32_t bits = f32_to_bits(v);
  if ((bits & 0x7f800000u) == 0x7f800000u) {
    parts[0] = (bits & 0x007fffffu) != 0 ? 0x7fc00000u : bits;
    parts[1] = parts[2] = 0;
    return;
  }
  parts[0] = bits & 0xffff0000u;
  const float rest = __fsub_rn(v, bits_to_f32(parts[0]));
  parts[1] = f32_to_bits(rest) & 0xffff0000u;
  parts[2] = f32_to_bits(__fsub_rn(rest, bits_to_f32(parts[1])));
}

/// x of `chunks` chunks from `first` on as parts: column (3 row + part), then [chunk][4 pairs][lane t][pair of columns].
template <int BITS, class Shape>
__device__ __forceinline__ void stage_parts(const QuantizedConfig& p, const void* input, int64_t m0, int rows,
                                            int first, int chunks, int column_bytes, uint8_t* smem) {
  constexpr int kPairsOfWord = 16 / BITS, kQuads = 4 * kPairsOfWord / 4;  // of a lane's 16 bytes
  const int bytes = element_bytes(p.input_element);
  const auto where = reinterpret_cast<uintptr_t>(input) | static_cast<uintptr_t>(p.input_stride * bytes);
  const bool aligned = (where & static_cast<uintptr_t>(4 * bytes - 1)) == 0;
  const int places = chunks * kQuads * 4;
  const auto stage = [&](int row, int place) {
    const uint8_t* const x = static_cast<const uint8_t*>(input) + (m0 + row) * p.input_stride * bytes;
    const int t = place & 3, quad = place / 4 % kQuads, chunk = place / 4 / kQuads;
    // Four pairs: eight columns, the second four 16 / BITS behind the first; with 8 bits, of two words.
    const int pair = 4 * quad, word = pair / kPairsOfWord, within = pair % kPairsOfWord;
    const int64_t k = (static_cast<int64_t>(first + chunk) * 4 + t) * (128 / BITS) + word * (32 / BITS) + within;
    float low[4], high[4];
    load_four(x, p.input_element, k, p.k, aligned, low);
    load_four(x, p.input_element, k + (BITS == 8 ? 4 : 16 / BITS), p.k, aligned, high);
    uint32_t words[kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // 8 bits: pairs (0, 2), (1, 3) of each of two words.
      const float first_of_pair = BITS == 8 ? (i < 2 ? low[i] : high[i - 2]) : low[i];
      const float second_of_pair = BITS == 8 ? (i < 2 ? low[i + 2] : high[i]) : high[i];
      uint32_t a[kParts], b[kParts];
      split(first_of_pair, a);
      split(second_of_pair, b);
#pragma unroll
      for (int part = 0; part < kParts; ++part) words[part][i] = __byte_perm(a[part], b[part], 0x7632);
    }
    uint8_t* const column = smem + row * kParts * column_bytes + place * 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      *reinterpret_cast<uint4*>(column + part * column_bytes) = {words[part][0], words[part][1], words[part][2],
                                                                 words[part][3]};
  };
  if constexpr (Shape::kColumnTiles == 1) {  // few rows: no division
    for (int row = 0; row < rows; ++row)
      for (int place = threadIdx.x; place < places; place += blockDim.x) stage(row, place);
  } else {
#pragma unroll 2
    for (int item = threadIdx.x; item < rows * places; item += blockDim.x) {
      const int row = item / places;
      stage(row, item - row * places);
    }
  }
}

/// Adds one chunk of a warp: sums[tile] += scale * products.
template <int BITS, int kColumnTiles>
__device__ __forceinline__ void add_chunk(const uint4& low, const uint4& high, const uint8_t* parts, int column_stride,
                                          float scale_low, float scale_high, float (&sums)[kColumnTiles][4]) {
  constexpr int kPairsOfWord = 16 / BITS, kQuads = kPairsOfWord;
  const uint32_t w[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  float c[kColumnTiles][2][4] = {};
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = 4 * quad + i;
      a[0][i] = decode_pair<BITS>(w[0][pair / kPairsOfWord], pair % kPairsOfWord);
      a[1][i] = decode_pair<BITS>(w[1][pair / kPairsOfWord], pair % kPairsOfWord);
    }
#pragma unroll
    for (int tile = 0; tile < kColumnTiles; ++tile) {
      const uint4 b = *reinterpret_cast<const uint4*>(parts + tile * column_stride + quad * 64);
      mma_bf16(c[tile][0], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
      mma_bf16(c[tile][kColumnTiles == 1 ? 1 : 0], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kColumnTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float product = kColumnTiles == 1 ? __fadd_rn(c[tile][0][i], c[tile][1][i]) : c[tile][0][i];
      sums[tile][i] = __fmaf_rn(product, i < 2 ? scale_low : scale_high, sums[tile][i]);
    }
}

/// Sums of parts and depth warps, then scale, bias and the store. `sums` lie in shared memory as [depth][row][column].
template <class Shape>
__device__ __forceinline__ void finish_outputs(const QuantizedConfig& p, void* output, const float* sums, int64_t m0,
                                               int rows, int64_t n0) {
  constexpr int kOutputs = 16 * Shape::kRowTiles, kPitch = Shape::kColumns + 1;
  for (int i = threadIdx.x; i < kOutputs * rows; i += blockDim.x) {
    const int r = i % kOutputs, row = i / kOutputs;
    if (n0 + r >= p.n) continue;
    float y = 0;
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part)  // the small ones first
#pragma unroll
      for (int depth = 0; depth < Shape::kDepthWarps; ++depth)
        y = __fadd_rn(y, sums[(depth * kOutputs + r) * kPitch + row * kParts + part]);
    if (p.groups <= 1) y = __fmul_rn(y, scale_of(p, n0 + r, 0));
    if (p.bias != nullptr) y = __fadd_rn(y, p.bias[n0 + r]);
    store_element(output, p.output_element, (m0 + row) * p.output_stride + n0 + r, y);
  }
}

/// passes of `pass_chunks` chunks of x at a time. Groups of columns are whole chunks.
template <int BITS, class Shape>
__global__ void __launch_bounds__(32 * Shape::kWarps)
    quantized_mm(const void* input, const uint8_t* weight, void* output, const __grid_constant__ QuantizedConfig p,
                 int pass_chunks, int column_bytes) {
  extern __shared__ __align__(128) uint8_t smem[];
  let_successor_start();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int depth = warp % Shape::kDepthWarps, column_warp = warp / Shape::kDepthWarps % Shape::kColumnWarps;
  const int row_tile = warp / Shape::kDepthWarps / Shape::kColumnWarps;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * 16 * Shape::kRowTiles,
                m0 = static_cast<int64_t>(blockIdx.y) * Shape::kRowsOfX;
  const int rows = static_cast<int>(min(static_cast<int64_t>(Shape::kRowsOfX), p.m - m0));
  const int64_t row_low = min(n0 + row_tile * 16 + g, p.n - 1), row_high = min(n0 + row_tile * 16 + g + 8, p.n - 1);
  const uint8_t *const low = weight + row_low * p.weight_stride, *const high = weight + row_high * p.weight_stride;
  const bool aligned = ((reinterpret_cast<uintptr_t>(weight) | static_cast<uintptr_t>(p.weight_stride)) & 15) == 0;
  const int64_t row_bytes = (p.k * BITS + 7) / 8;
  const int chunks = static_cast<int>((row_bytes + kChunkBytes - 1) / kChunkBytes);
  const int group_chunks = p.groups > 1 ? static_cast<int>(p.group * BITS / (8 * kChunkBytes)) : chunks + 1;
  // The mma's columns that no row of x fills read the last one's; their sums are not used.
  const int last = max(rows * kParts - 1, 0);
  float sums[Shape::kColumnTiles][4] = {};
  for (int first = 0; first < chunks; first += pass_chunks) {
    const int here = min(pass_chunks, chunks - first);
    uint4 w[Shape::kMostChunks][2];
#pragma unroll
    for (int i = 0; i < Shape::kMostChunks; ++i) {
      const int chunk = depth + i * Shape::kDepthWarps;
      if (chunk >= here) break;
      const int64_t byte = static_cast<int64_t>(first + chunk) * kChunkBytes + t * 16;
      w[i][0] = load_weights(low, byte, row_bytes, aligned);
      w[i][1] = load_weights(high, byte, row_bytes, aligned);
    }
    if (first == 0) {
      wait_for_predecessor();
    } else {
      __syncthreads();
    }
    stage_parts<BITS, Shape>(p, input, m0, rows, first, here, column_bytes, smem);
    __syncthreads();
    const int column = column_warp * Shape::kColumnTiles * 8 + g;
#pragma unroll
    for (int i = 0; i < Shape::kMostChunks; ++i) {
      const int chunk = depth + i * Shape::kDepthWarps;
      if (chunk >= here) break;
      float scale_low = 1, scale_high = 1;
      if (p.groups > 1) {
        scale_low = scale_of(p, row_low, (first + chunk) / group_chunks);
        scale_high = scale_of(p, row_high, (first + chunk) / group_chunks);
      }
      const uint8_t* const parts = smem + chunk * (16 / BITS) * 64 + t * 16;
      if constexpr (Shape::kColumnTiles == 1) {
        add_chunk<BITS, 1>(w[i][0], w[i][1], parts + min(column, last) * column_bytes, 0, scale_low, scale_high, sums);
      } else {
        add_chunk<BITS, Shape::kColumnTiles>(w[i][0], w[i][1], parts + column * column_bytes, 8 * column_bytes,
                                             scale_low, scale_high, sums);
      }
    }
  }
  __syncthreads();
  constexpr int kPitch = Shape::kColumns + 1;
  float* const all = reinterpret_cast<float*>(smem);
#pragma unroll
  for (int tile = 0; tile < Shape::kColumnTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row_tile * 16 + g + (i < 2 ? 0 : 8),
                c = (column_warp * Shape::kColumnTiles + tile) * 8 + 2 * t + (i & 1);
      all[(depth * 16 * Shape::kRowTiles + r) * kPitch + c] = sums[tile][i];
    }
  __syncthreads();
  finish_outputs<Shape>(p, output, all, m0, rows, n0);
}

}  // namespace lowbit::cuda
