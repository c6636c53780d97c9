#pragma once
// quantized_mm<BITS> for one or two tokens. A part of a token is a column of the mma, so that one row costs no
// more instructions than two.
//
// Shapes:   a thread block makes 16 outputs per token; its warps share the chunks of 64 bytes of the weight rows.
// Memory:   weights go from global memory to registers, all chunks of a pass before x is touched.
// Error:    sums of a chunk are added to f32 sums by ordinary additions, since tensor cores truncate.
// Limits:   reading the weights.

#include "kernels/cuda/quantized_mm_parts.cuh"

namespace lowbit::cuda {

inline constexpr int kDecodeRows = 2, kDecodeWarps = 8, kChunkBytes = 64, kMostChunks = 8;

/// x of `chunks` chunks from `first` on as parts: column (3 row + part), then [chunk][quad][lane t][pair of columns].
template <int BITS>
__device__ __forceinline__ void stage_decode(const QuantizedConfig& p, const void* input, int rows, int first,
                                             int chunks, int column_bytes, uint8_t* smem) {
  constexpr int kQuads = 16 / BITS;  // of a lane's 16 bytes
  const bool aligned = fours_aligned(p, input);
  for (int row = 0; row < rows; ++row) {
    const uint8_t* const x = row_of_x(p, input, row);
    for (int place = threadIdx.x; place < chunks * kQuads * 4; place += blockDim.x) {
      const int t = place & 3, quad = place / 4 % kQuads, chunk = place / 4 / kQuads;
      const int64_t k = column_of_quad<BITS>((static_cast<int64_t>(first + chunk) * 4 + t) * (128 / BITS), quad);
      float low[4], high[4];
      load_four(x, p.input_element, k, p.k, aligned, low);
      load_four(x, p.input_element, k + kPairApart<BITS>, p.k, aligned, high);
      uint4 quads[kParts];
      split_pairs<BITS>(low, high, quads);
      uint8_t* const column = smem + row * kParts * column_bytes + place * 16;
#pragma unroll
      for (int part = 0; part < kParts; ++part) *reinterpret_cast<uint4*>(column + part * column_bytes) = quads[part];
    }
  }
}

/// Adds one chunk of a warp: sums += scale * products.
template <int BITS>
__device__ __forceinline__ void add_chunk(const uint4& low, const uint4& high, const uint8_t* parts, float scale_low,
                                          float scale_high, float (&sums)[4]) {
  constexpr int kPairsOfWord = 16 / BITS, kQuads = kPairsOfWord;
  const uint32_t w[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
  float c[2][4] = {};
#pragma unroll
  for (int quad = 0; quad < kQuads; ++quad) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = 4 * quad + i;
      a[0][i] = decode_pair<BITS>(w[0][pair / kPairsOfWord], pair % kPairsOfWord);
      a[1][i] = decode_pair<BITS>(w[1][pair / kPairsOfWord], pair % kPairsOfWord);
    }
    const uint4 b = *reinterpret_cast<const uint4*>(parts + quad * 64);
    mma_bf16(c[0], a[0][0], a[1][0], a[0][1], a[1][1], b.x, b.y);
    mma_bf16(c[1], a[0][2], a[1][2], a[0][3], a[1][3], b.z, b.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = __fmaf_rn(__fadd_rn(c[0][i], c[1][i]), i < 2 ? scale_low : scale_high, sums[i]);
}

/// Finishes a sum of products.
__device__ __forceinline__ void finish_output(const QuantizedConfig& p, void* output, int64_t m, int64_t n, float y) {
  if (p.groups <= 1) y = __fmul_rn(y, scale_of(p, n, 0));
  if (p.bias != nullptr) y = __fadd_rn(y, p.bias[n]);
  store_element(output, p.output_element, m * p.output_stride + n, y);
}

/// passes of `pass_chunks` chunks of x at a time. Groups of columns are whole chunks.
template <int BITS>
__global__ void __launch_bounds__(32 * kDecodeWarps)
    quantized_mm(const void* input, const uint8_t* weight, void* output, const __grid_constant__ QuantizedConfig p,
                 int pass_chunks, int column_bytes) {
  extern __shared__ __align__(128) uint8_t smem[];
  let_successor_start();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * 16;
  const int rows = static_cast<int>(p.m);
  const int64_t row_low = min(n0 + g, p.n - 1), row_high = min(n0 + g + 8, p.n - 1);
  const uint8_t *const low = weight + row_low * p.weight_stride, *const high = weight + row_high * p.weight_stride;
  const bool aligned = ((reinterpret_cast<uintptr_t>(weight) | static_cast<uintptr_t>(p.weight_stride)) & 15) == 0;
  const int64_t row_bytes = (p.k * BITS + 7) / 8;
  const int chunks = static_cast<int>((row_bytes + kChunkBytes - 1) / kChunkBytes);
  const int group_chunks = p.groups > 1 ? static_cast<int>(p.group * BITS / (8 * kChunkBytes)) : chunks + 1;
  // The mma's columns that no token fills read the last one's; their sums are not used.
  const uint8_t* const column = smem + min(g, rows * kParts - 1) * column_bytes + t * 16;
  float sums[4] = {};
  for (int first = 0; first < chunks; first += pass_chunks) {
    const int here = min(pass_chunks, chunks - first);
    // Neighbouring chunks, which share a line of 128 bytes, go to one warp where there are enough of them.
    const bool paired = here >= 2 * kDecodeWarps;
    const auto chunk_of = [&](int i) {
      return paired ? 2 * (warp + (i >> 1) * kDecodeWarps) + (i & 1) : warp + i * kDecodeWarps;
    };
    uint4 w[kMostChunks][2];
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      const int chunk = chunk_of(i);
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
    stage_decode<BITS>(p, input, rows, first, here, column_bytes, smem);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      const int chunk = chunk_of(i);
      if (chunk >= here) break;
      float scale_low = 1, scale_high = 1;
      if (p.groups > 1) {
        scale_low = scale_of(p, row_low, (first + chunk) / group_chunks);
        scale_high = scale_of(p, row_high, (first + chunk) / group_chunks);
      }
      add_chunk<BITS>(w[i][0], w[i][1], column + chunk * (16 / BITS) * 64, scale_low, scale_high, sums);
    }
  }
  __syncthreads();
  constexpr int kPitch = 9;
  float* const all = reinterpret_cast<float*>(smem);  // [warp][row][column]
#pragma unroll
  for (int i = 0; i < 4; ++i) all[(warp * 16 + g + (i < 2 ? 0 : 8)) * kPitch + 2 * t + (i & 1)] = sums[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * rows; i += blockDim.x) {
    const int r = i % 16, row = i / 16;
    if (n0 + r >= p.n) continue;
    float y = 0;
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part)  // the small ones first
#pragma unroll
      for (int depth = 0; depth < kDecodeWarps; ++depth)
        y = __fadd_rn(y, all[(depth * 16 + r) * kPitch + row * kParts + part]);
    finish_output(p, output, row, n0 + r, y);
  }
}

}  // namespace lowbit::cuda
