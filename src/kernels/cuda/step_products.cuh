#pragma once
// Products of up to eight tokens with a scale per activation group of 32 columns, with the norm before and the gate or
// sum after them in a decoding step; one token alone: step_gemv.cuh. A block has 16 rows of weights, or 16 of a gate's
// and the same 16 of its factor's; its warps share K.
//
// Memory:   a thread copies its own words of weights to shared memory, kProductStages shares ahead, the first of them
//           before the previous kernel has ended: no barrier stands between shares. x becomes codes and scales in
//           shared memory: copied, or made here from floats.
// Numerics: docs/numerics.md#matmul: a warp adds whole weight groups, a thread per output adds those up.
// Limits:   latency: read x - norm - quantize - products - scale and add.

#include "kernels/cuda/block/rows.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/product_end.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_norm.cuh"
#include "kernels/cuda/step_copies.cuh"

namespace lowbit::cuda {

inline constexpr int kProductThreads = 256, kProductBatches = 4;  // batches of 64 columns of a warp at a time
inline constexpr int kProductStages = 4;                          // of weights that are under way

struct ProductPart {
  const uint8_t* tiles;
  const float* scales;  // [x groups, n_padded]
  const float* bias;
  float* y;
  int64_t ldy;
  uint32_t table[4];  // of those that look up: product_table()
  int n, n_padded, first_block;
};

struct ProductArgs {
  ProductPart part[kMostStepProducts];
  int parts;
  const float* rows;  // or codes and x_scales
  const int8_t* codes;
  const float* x_scales;
  int64_t ldx;
  const float* norm;
  int8_t* y_codes;  // or null: StepProducts has them
  float* y_scales;
  float eps;
  int m, k, k_blocks, x_group_count, per_scale, weight_groups;
  bool looks_up;            // kTable or kTrellis
  bool exact_scales;        // RowCodes
  int depth, warp_batches;  // warps that share K, and batches of one of them at a time
  ProductEnd end;
  // Byte positions in shared memory, and bytes of a row of codes.
  int weights_at, results_at, codes_at, x_scales_at, rows_at, norm_at, quarters_at, code_pitch;
  int chunks, stages;  // of K, and those that shared memory holds
  // One row: tiles of the launch, those of a block whose scales shared memory holds, and activation groups that share a
  // sum, 2^sum_shift; teams of a block, and bytes of shared memory of each, where weights_at and results_at are.
  int tiles, scale_stages, sum_shift, teams, team_bytes;
  int rounds, groups_at;  // tiles of a team; of codes of y: each round's outputs of both teams, [32], then who has come
};

/// The batches of 64 columns that a warp multiplies at a time.
struct ProductShare {
  int first, count;
  __device__ __forceinline__ ProductShare(const ProductArgs& p, int chunk) {
    const int batches = (p.k + 63) / 64, warp = static_cast<int>(threadIdx.x) / 32;
    first = (chunk * p.depth + warp) * p.warp_batches;
    count = warp < p.depth ? max(0, min(p.warp_batches, batches - first)) : 0;
  }
};

template <int Bits>
using ProductWords = uint32_t[kProductBatches][FragmentOrder<Bits, 1>::kLaneWords];

/// Bytes that a thread copies at once, how often for a batch, and bytes of a stage of a tile: the words, and behind
/// them those of a trellis that a share's first codes follow, of each quad.
template <int Bits>
struct ProductCopies {
  static constexpr int kWords = FragmentOrder<Bits, 1>::kLaneWords, kVector = kWords < 4 ? kWords : 4,
                       kBytes = 4 * kVector, kOfBatch = kWords / kVector,
                       kWordBytes = kProductBatches * kOfBatch * kProductThreads * kBytes,
                       kStageBytes = kWordBytes + (Bits == kTrellis ? kProductThreads / 4 * kBytes : 0);
  /// The offset of a thread's copy in a stage.
  static __device__ __forceinline__ int place(int batch, int copy) {
    return ((batch * kOfBatch + copy) * kProductThreads + static_cast<int>(threadIdx.x) % kProductThreads) * kBytes;
  }
  static __device__ __forceinline__ int history_place() {
    return kWordBytes + static_cast<int>(threadIdx.x) % kProductThreads / 4 * kBytes;
  }
};

/// Starts the copies of a thread's own words: it alone waits for them.
template <int Bits>
__device__ __forceinline__ void copy_product_words(const ProductArgs& p, const ProductPart& part, int tile,
                                                   const ProductShare& share, uint8_t* stage) {
  using Order = FragmentOrder<Bits, 1>;
  using Copies = ProductCopies<Bits>;
  const int lane128 = tile % 4 * 32 + static_cast<int>(threadIdx.x) % 32;
  const uint8_t* const tiles =
      part.tiles + pack_index(tile / 4, 0, p.k_blocks) * Order::kPackBytes + lane128 * Copies::kBytes;
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
    if (i >= share.count) break;
    const int batch = share.first + i;
    const uint8_t* const from =
        tiles + int64_t(batch / 2) * (kPanelPacks * Order::kPackBytes) + batch % 2 * (kPackLanes * Copies::kWords * 4);
#pragma unroll
    for (int c = 0; c < Copies::kOfBatch; ++c) {
      const uint32_t to = shared_address(stage + Copies::place(i, c));
      if constexpr (Copies::kBytes == 16) {
        copy_async_16(to, from + c * (kPackLanes * 16));
      } else {
        copy_async_8(to, from);
      }
    }
  }
  if constexpr (Bits == kTrellis) {  // of the last lane of the quad in the batch before
    const int batch = share.first - 1;
    if (share.count > 0 && batch >= 0 && lane128 % 4 == 0)
      copy_async_8(shared_address(stage + Copies::history_place()),
                   tiles + int64_t(batch / 2) * (kPanelPacks * Order::kPackBytes) +
                       batch % 2 * (kPackLanes * Copies::kBytes) + 3 * Copies::kBytes);
  }
}

template <int Bits>
__device__ __forceinline__ void load_product_words(const uint8_t* stage, ProductWords<Bits>& w) {
  using Copies = ProductCopies<Bits>;
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
#pragma unroll
    for (int c = 0; c < Copies::kOfBatch; ++c) {
      const uint8_t* const from = stage + Copies::place(i, c);
      uint32_t* const to = w[i] + c * Copies::kVector;
      if constexpr (Copies::kVector == 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
      } else {
        const uint2 v = *reinterpret_cast<const uint2*>(from);
        to[0] = v.x, to[1] = v.y;
      }
    }
  }
}

/// Of a share whose first batch is `first`, as the lane has copied it.
template <int Bits>
__device__ __forceinline__ RowHistory<Bits> load_product_history([[maybe_unused]] const uint8_t* stage,
                                                                 [[maybe_unused]] int first) {
  RowHistory<Bits> history;
  if constexpr (Bits == kTrellis)
    if (first > 0 && threadIdx.x % 4 == 0) {
      const uint2 v = *reinterpret_cast<const uint2*>(stage + ProductCopies<Bits>::history_place());
      history = {{v.x, v.y}};
    }
  return history;
}

// ---- x

/// Rows of floats into shared memory, and their norms' factors behind them. All threads.
__device__ __forceinline__ void stage_normed(const ProductArgs& p, uint8_t* shared, float* factors) {
  constexpr int kAtOnce = 4;
  auto* const rows = reinterpret_cast<float4*>(shared + p.rows_at);
  const auto* const from = reinterpret_cast<const float4*>(p.rows);
  const int thread = static_cast<int>(threadIdx.x), quads = p.m * p.k / 4;
  for (int base = thread; base < quads; base += kAtOnce * kProductThreads) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (base + i * kProductThreads < quads) v[i] = from[base + i * kProductThreads];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (base + i * kProductThreads < quads) rows[base + i * kProductThreads] = v[i];
  }
  __syncthreads();
  if (const int row = thread / 32; row < p.m) {
    const float factor = warp_inverse_rms(reinterpret_cast<const float*>(rows) + row * p.k, p.k, p.eps);
    if (thread % 32 == 0) factors[row] = factor;
  }
  __syncthreads();
}

/// Where the word of four codes from `column` on lies in its row: a lane's two words of an activation group lie side by
/// side.
__device__ __forceinline__ int code_offset(int column) {
  const int word = column % 32 / 4;
  return column - column % 32 + 4 * (2 * (word % 4) + word / 4);
}

/// Codes and scales of x in shared memory, zeros behind column k; eight lanes take one activation group, four columns
/// each.
template <bool kExact>
__device__ __forceinline__ void quantize_product_rows(const ProductArgs& p, uint8_t* shared) {
  constexpr int kAtOnce = 4;
  auto* const scales = reinterpret_cast<float*>(shared + p.x_scales_at);
  auto* const factors = reinterpret_cast<float*>(shared + p.results_at);  // until there are results
  if (p.norm != nullptr) stage_normed(p, shared, factors);
  const auto* const rows = p.norm != nullptr ? reinterpret_cast<const float*>(shared + p.rows_at) : p.rows;
  const auto* const by = reinterpret_cast<const float*>(shared + p.norm_at);
  const int of_row = (p.k + 63) / 64 * 16, total = p.m * of_row;
  for (int base = static_cast<int>(threadIdx.x); base - static_cast<int>(threadIdx.x) % 32 < total;
       base += kAtOnce * kProductThreads) {
    float4 v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + i * kProductThreads, row = at / of_row, column = 4 * (at % of_row);
      v[i] =
          at < total && column < p.k ? *reinterpret_cast<const float4*>(rows + row * p.k + column) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + i * kProductThreads, row = at / of_row, column = 4 * (at % of_row);
      if (at - static_cast<int>(threadIdx.x) % 32 >= total) break;  // a whole warp
      const bool inside = at < total;
      if (p.norm != nullptr && inside && column < p.k) {
        v[i] = normed(v[i], factors[row], *reinterpret_cast<const float4*>(by + column));
      }
      uint32_t most =
          max(max(magnitude_bits(v[i].x), magnitude_bits(v[i].y)), max(magnitude_bits(v[i].z), magnitude_bits(v[i].w)));
#pragma unroll
      for (int d = 1; d < 8; d *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
      Quantizer q = quantizer_of(largest_of_exact(most, kExact));
      if (kExact) q = exact_quantizer(q);
      if (!inside) continue;
      const auto code = [&](float x) { return static_cast<uint32_t>(quantize_one(x, q.inverse)); };
      *reinterpret_cast<uint32_t*>(shared + p.codes_at + row * p.code_pitch + code_offset(column)) = __byte_perm(
          __byte_perm(code(v[i].x), code(v[i].y), 0x0040), __byte_perm(code(v[i].z), code(v[i].w), 0x0040), 0x5410);
      const int x_group = column / 32;
      if (column % 32 == 0 && x_group < p.x_group_count) scales[row * p.x_group_count + x_group] = q.scale;
    }
  }
}

__device__ __forceinline__ void copy_product_codes(const ProductArgs& p, uint8_t* shared) {
  auto* const scales = reinterpret_cast<float*>(shared + p.x_scales_at);
  const int of_row = (p.k + 63) / 64 * 4, thread = static_cast<int>(threadIdx.x);  // 16 bytes each
#pragma unroll 4
  for (int at = thread; at < p.m * of_row; at += kProductThreads) {
    const int row = at / of_row, column = at % of_row * 16;
    const uint4 v = *reinterpret_cast<const uint4*>(p.codes + row * p.ldx + column);
    auto* const to = reinterpret_cast<uint32_t*>(shared + p.codes_at + row * p.code_pitch + code_offset(column));
    to[0] = v.x, to[2] = v.y, to[4] = v.z, to[6] = v.w;
  }
#pragma unroll 2
  for (int i = thread; i < p.m * p.x_group_count; i += kProductThreads) scales[i] = p.x_scales[i];
}

// ---- Products

/// A lane's four sums of a group into their slot [m][16]: rows 2 g and 2 g + 1 of the weights, 2 t and 2 t + 1 of x.
__device__ __forceinline__ void put_product(float* slot, int m, const float (&v)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  if (2 * t < m) *reinterpret_cast<float2*>(slot + 2 * t * 16 + 2 * g) = {v[0], v[2]};
  if (2 * t + 1 < m) *reinterpret_cast<float2*>(slot + (2 * t + 1) * 16 + 2 * g) = {v[1], v[3]};
}

/// A share's sums by groups of the weights, times the scales of x, into the groups' slots of `results`.
template <int Bits>
__device__ __forceinline__ void multiply_product(const ProductArgs& p, const ProductShare& share, const uint8_t* shared,
                                                 const ProductWords<Bits>& w, const uint32_t (&table)[4],
                                                 RowHistory<Bits> history, float* results) {
  constexpr GemmActivation kX = GemmActivation::kInt8;
  if (share.count == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4, first = 2 * share.first;
  // Behind the last activation group lie bytes that nobody uses the sums of.
  const uint8_t* const codes = shared + p.codes_at + min(g, p.m - 1) * p.code_pitch + 32 * first + 8 * t;
  int d[2 * kProductBatches][4];  // before any is used: nothing of one step waits for another's
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
    uint32_t a[kInt8Parts<Bits>][8];
    decode_int8_parts<Bits>(w[i], table, history, a);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int at = 2 * i + step;
      const uint2 x = *reinterpret_cast<const uint2*>(codes + 32 * at);
      d[at][0] = d[at][1] = d[at][2] = d[at][3] = 0;
#pragma unroll
      for (int part = 0; part < kInt8Parts<Bits>; ++part) mma<kX>(d[at], a[part] + 4 * step, x.x, x.y);
    }
  }
  const auto* const scales = reinterpret_cast<const float*>(shared + p.x_scales_at) + first;
  const float* const even = scales + min(2 * t, p.m - 1) * p.x_group_count;
  const float* const odd = scales + min(2 * t + 1, p.m - 1) * p.x_group_count;
  const int count = min(p.x_group_count - first, 2 * share.count);
  float* slot = results + first / p.per_scale * p.m * 16;
  float part[4] = {};
  int left = p.per_scale;
#pragma unroll
  for (int at = 0; at < 2 * kProductBatches; ++at) {
    if (at >= count) break;
    const float by_even = even[at], by_odd = odd[at];
#pragma unroll
    for (int c = 0; c < 4; ++c) part[c] = __fmaf_rn(narrow_sum<kX, Bits>(d[at][c]), c & 1 ? by_odd : by_even, part[c]);
    if (--left != 0 && first + at + 1 != p.x_group_count) continue;
    put_product(slot, p.m, part);
    slot += p.m * 16;
    left = p.per_scale;
    part[0] = part[1] = part[2] = part[3] = 0.0f;
  }
}

/// The scales of a tile's 16 rows of weights, [weight groups][16].
__device__ __forceinline__ void load_product_scales(const ProductArgs& p, const ProductPart& part, int n0,
                                                    float* scales) {
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < p.weight_groups * 16; at += kProductThreads)
    scales[at] = part.scales[int64_t(at / 16) * p.per_scale * part.n_padded + n0 + at % 16];
}

/// An output of its groups' sums, in their order.
__device__ __forceinline__ float add_product_groups(const ProductArgs& p, const float* from, const float* scale) {
  float acc = 0;
#pragma unroll 8
  for (int i = 0; i < p.weight_groups; ++i) acc = __fmaf_rn(from[i * p.m * 16], scale[i * 16], acc);
  return acc;
}

/// kTiles 2: the tiles are those of parts 0 and 1, and become one output. Three blocks of a multiprocessor: left alone,
/// the compiler goes for four, and registers spill.
template <int Bits, int kTiles, bool kExact = false>
__global__ void __launch_bounds__(kProductThreads, 3) step_products_kernel(const __grid_constant__ ProductArgs p) {
  LOWBIT_DYNAMIC_SHARED(product_shared);
  let_successor_start();
  const int thread = static_cast<int>(threadIdx.x), of_block = static_cast<int>(blockIdx.x);
  int mine = 0;
  while (kTiles == 1 && mine + 1 < p.parts && of_block >= p.part[mine + 1].first_block) ++mine;
  const int tile = kTiles == 1 ? of_block - p.part[mine].first_block : of_block, n0 = 16 * tile;
  auto* const scales = reinterpret_cast<float*>(product_shared);  // [tiles][weight groups][16]
  auto* const results = reinterpret_cast<float*>(product_shared + p.results_at);
  const int of_tile = p.weight_groups * 16, slots = of_tile * p.m;
  const auto stage_of = [&](int chunk, int i) {
    return product_shared + p.weights_at + (chunk % p.stages * kTiles + i) * ProductCopies<Bits>::kStageBytes;
  };
  const auto copy_chunk = [&](int chunk) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      if (chunk < p.chunks)
        copy_product_words<Bits>(p, p.part[kTiles == 1 ? mine : i], tile, ProductShare(p, chunk), stage_of(chunk, i));
    end_copies();
  };
#pragma unroll 1
  for (int chunk = 0; chunk < kProductStages; ++chunk) copy_chunk(chunk);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) load_product_scales(p, p.part[kTiles == 1 ? mine : i], n0, scales + i * of_tile);
  for (int i = thread; p.norm != nullptr && i < p.k / 4; i += kProductThreads)
    reinterpret_cast<float4*>(product_shared + p.norm_at)[i] = reinterpret_cast<const float4*>(p.norm)[i];
  // Threads that add groups up: 16 for a token, the second tile's from half of the block on.
  const int output = kTiles == 1 ? thread : thread % (kProductThreads / 2),
            second = kTiles == 1 ? 0 : thread / (kProductThreads / 2);
  const int r = output % 16, m = output / 16, n = n0 + r;
  const ProductPart& part = p.part[kTiles == 1 ? mine : second];
  const bool has_output = m < p.m && n < part.n;
  const float bias = part.bias == nullptr || !has_output ? 0.0f : part.bias[n];
  float* const to = part.y + m * part.ldy + n;
  wait_for_predecessor();
  const float before = p.end == ProductEnd::kAdd && has_output ? *to : 0.0f;
  if (p.rows != nullptr) {
    quantize_product_rows<kExact>(p, product_shared);
  } else {
    copy_product_codes(p, product_shared);
  }
  __syncthreads();
#pragma unroll 1
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    wait_for_copies<kProductStages - 1>();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const ProductShare share(p, chunk);
      ProductWords<Bits> w;
      load_product_words<Bits>(stage_of(chunk, i), w);
      multiply_product<Bits>(p, share, product_shared, w, p.part[kTiles == 1 ? mine : i].table,
                             load_product_history<Bits>(stage_of(chunk, i), share.first), results + i * slots);
    }
    copy_chunk(chunk + kProductStages);
  }
  __syncthreads();
  const float acc =
      m < p.m ? add_product_groups(p, results + second * slots + output, scales + second * of_tile + r) : 0.0f;
  float y = __fadd_rn(acc, bias);
  if constexpr (kTiles == 2) {
    __syncthreads();  // all have read what lies there
    if (second == 1 && m < p.m) results[output] = y;
    __syncthreads();
    if (second == 1) return;
    if (m < p.m) y = gated(y, results[output], p.end);
  }
  if (has_output) *to = p.end == ProductEnd::kAdd ? __fadd_rn(before, y) : y;
}

}  // namespace lowbit::cuda
