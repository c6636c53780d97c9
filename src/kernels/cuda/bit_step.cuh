#pragma once
// Products of one token with weights of 1 or 2 bits and one scale per row (bit_gemv.cuh), and what stands before and
// behind them in a decoding step: norm and quantization of x; the residual sum, or act(gate) * up, in place of a store.
//
// Shapes:   a thread block takes consecutive tiles of 16 rows of all parts, or pairs of a gate's tile and its factor's.
// Memory:   all weights of the thread block, scales and the norm come before the previous kernel has ended; then x.
// Numerics: codes of normed rows with one scale (docs/numerics.md#activations): the norm's factor is part of their
//           scale alone, so a warp of its own works it out beside the products.
// Limits:   the chain wait - read x - largest magnitude - codes - planes - mma - store.

#include "kernels/cuda/bit_gemv.cuh"
#include "kernels/cuda/product_end.cuh"
#include "kernels/cuda/step_norm.cuh"
#include "kernels/cuda/team_barrier.cuh"

namespace lowbit::cuda {

struct BitStepPart {
  const uint8_t* codes;
  const float *scales, *bias;
  float* y;
  int n, first_tile;
};

struct BitStepArgs {
  GemvArgs cut;  // how the work is cut, and what a code stands for
  BitStepPart part[kMostStepProducts];
  int parts;
  const float *rows, *norm;
  float eps;
  ProductEnd end;
  int norm_at, codes_at, factor_at;  // bytes in shared memory; behind the factor are largest magnitudes of warps
  int workers;                       // threads but for the norm's warp
};

__device__ __forceinline__ bool gates(ProductEnd end) {
  return end == ProductEnd::kSilu || end == ProductEnd::kSquaredRelu;
}

/// A tile of the launch: of which part, and its place there.
struct BitStepTile {
  int part, tile;
  __device__ BitStepTile(const BitStepArgs& p, int at) : part(0), tile(at) {
    if (gates(p.end)) {
      part = at & 1;
      tile = at >> 1;
      return;
    }
    while (part + 1 < p.parts && at >= p.part[part + 1].first_tile) ++part;
    tile = at - p.part[part].first_tile;
  }
};

/// Starts the copies of all weights; zeros where sums will be.
__device__ __forceinline__ void begin_bit_step(const BitStepArgs& p, uint8_t* smem, const GemvRange& range) {
  const int tile_bytes = p.cut.blocks_of_row * kTileBlockBytes, thread = static_cast<int>(threadIdx.x);
  BitShared& shared = *reinterpret_cast<BitShared*>(smem);
  const uint32_t to = shared_address(smem) + kBitWeightsAt, barriers = shared_address(shared.barriers);
  const auto source = [&](int i) {
    const BitStepTile at(p, range.first + i);
    return p.part[at.part].codes + int64_t{at.tile} * tile_bytes;
  };
  if (thread == 0) {
    for (int i = 0; i < range.count; ++i)
      barrier_init(barriers + 8 * i, LOWBIT_SM90 ? 1 : static_cast<int>(blockDim.x));
#if LOWBIT_SM90
    barriers_visible_to_copies();
    for (int i = 0; i < range.count; ++i) {
      barrier_expect(barriers + 8 * i, tile_bytes);
      copy_bulk(to + i * tile_bytes, source(i), tile_bytes, barriers + 8 * i);
    }
#endif
  }
#if !LOWBIT_SM90
  __syncthreads();
  for (int i = 0; i < range.count; ++i) {
    for (int at = 16 * thread; at < tile_bytes; at += 16 * static_cast<int>(blockDim.x))
      copy_async_16(to + i * tile_bytes + at, source(i) + at);
    copies_arrive(barriers + 8 * i);
  }
#endif
  for (int i = thread; i < range.count * kTileRows; i += static_cast<int>(blockDim.x)) shared.sums[i] = 0;
}

/// Four columns of x that a thread has in each round: the rounds of a thread block hold a row.
template <int B, int kPer>
inline constexpr int kStepRounds = B == 1 ? 8 : 2 * kPer;

/// The row's codes in shared memory, times the norm's weight and quantized by its largest magnitude, zeros up to
/// `width`; returns the scale without the norm's factor. `rows`: the thread's first columns. Each thread makes four
/// columns of a round; rounds that no thread has columns in are left out, since many warps share the time that
/// instructions take. All workers, which meet afterwards.
template <int kRounds>
__device__ __forceinline__ float quantize_step_row(const BitStepArgs& p, const float* rows, uint8_t* smem, int width) {
  const int k = p.cut.k, first = 4 * static_cast<int>(threadIdx.x), step = 4 * p.workers;
  float4 v[kRounds];
  const auto each = [&](int end, const auto& work) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (i * step >= end) break;
      work(i, v[i], first + i * step < end);
    }
  };
  each(width, [&](int i, float4& x, bool) {
    x = first + i * step < k ? *reinterpret_cast<const float4*>(rows + i * step) : float4{0, 0, 0, 0};
  });
  if (p.norm != nullptr) {
    wait_for_all_copies();  // of norms
    each(k, [&](int i, float4& x, bool inside) {
      if (!inside) return;
      auto* const at = reinterpret_cast<float4*>(smem + p.norm_at + 4 * (first + i * step));
      const float4 w = *at;
      *at = x;  // for the norm's warp
      x = {__fmul_rn(x.x, w.x), __fmul_rn(x.y, w.y), __fmul_rn(x.z, w.z), __fmul_rn(x.w, w.w)};
    });
  }
  uint32_t most = 0;
  each(k, [&](int, const float4& x, bool) { most = max(most, largest_bits(x)); });
  auto* const of_warps = reinterpret_cast<uint32_t*>(smem + p.factor_at + 16);
  const unsigned lane = threadIdx.x % 32;
  most = __reduce_max_sync(0xffffffffu, most);
  if (lane == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  const Quantizer q =
      step_quantizer(__reduce_max_sync(0xffffffffu, lane < static_cast<unsigned>(p.workers) / 32 ? of_warps[lane] : 0));
  each(width, [&](int i, const float4& x, bool inside) {
    if (inside) *reinterpret_cast<uint32_t*>(smem + p.codes_at + first + i * step) = four_codes(x, q.inverse);
  });
  return q.scale;
}

/// A thread's output, as known before there are sums: row r of tile `tile` of the thread block.
struct BitStepOutput {
  float* y = nullptr;
  float scale = 0, bias = 0;
  __device__ void find(const BitStepArgs& p, int tile, int r) {
    const BitStepTile at(p, tile);
    const BitStepPart& part = p.part[at.part];
    const int row = at.tile * kTileRows + r;
    if (row >= part.n) return;
    y = part.y + row;
    scale = part.scales[row];
    if (part.bias != nullptr) bias = part.bias[row];
  }
  __device__ float of(int sum, float x_scale) const {
    return __fmaf_rn(__fmaf_rn(static_cast<float>(sum), scale, 0.0f), x_scale, bias);
  }
};

template <int B, int kPer>
__global__ void __launch_bounds__(32 * (kBitWarps<kPer> + 1), 2) bit_step(const __grid_constant__ BitStepArgs p) {
  using Order = GemvOrder<B>;
  extern __shared__ __align__(128) uint8_t smem[];
  const GemvArgs& a = p.cut;
  const bool pairs = gates(p.end);
  GemvRange range(a);  // of tiles, or of pairs
  if (pairs) range.first *= 2, range.count *= 2;
  let_successor_start();
  begin_bit_step(p, smem, range);
  const int thread = static_cast<int>(threadIdx.x), r = thread % kTileRows, of_thread = thread / kTileRows;
  BitStepOutput out, factor;
  if (thread < range.count * kTileRows && !pairs) out.find(p, range.first + of_thread, r);
  if (thread < range.count / 2 * kTileRows && pairs) {
    out.find(p, range.first + 2 * of_thread, r);
    factor.find(p, range.first + 2 * of_thread + 1, r);
  }
  if (p.norm != nullptr) {  // each thread's own
    for (int i = 4 * thread; thread < p.workers && i < a.k; i += 4 * p.workers)
      copy_to_shared_16(smem + p.norm_at + 4 * i, p.norm + i);
  }
  const int lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int team = (warp * a.team_inverse) >> 16, strip = warp - team * a.team_warps;
  const int of_row = kPer * strip + (kPer == 2 ? g >> 2 : 0);
  const int first = 16 * (of_row * Order::kSlots + (g & 3) * Order::kFields) + 4 * t;
  BitStrip<B, kPer, false> mine{a, smem, range.count, team, strip};
  const float* const rows = p.rows + 4 * thread;
  __syncthreads();
  wait_for_predecessor_with(rows, out.y, 0, thread, 0);
  auto* const factor_of_norm = reinterpret_cast<float*>(smem + p.factor_at);
  if (thread >= p.workers) {
    __syncthreads();
    const float by = warp_inverse_rms(reinterpret_cast<const float*>(smem + p.norm_at), a.k, p.eps);
    if (lane == 0) *factor_of_norm = by;
    __syncthreads();
    return;
  }

  const float before = out.y != nullptr && p.end == ProductEnd::kAdd ? *out.y : 0.0f;
  float x_scale = quantize_step_row<kStepRounds<B, kPer>>(p, rows, smem, a.team_warps * kPer * (512 / B));
  team_barrier(1, p.workers);
  uint32_t v[Order::kFields];
#pragma unroll
  for (int f = 0; f < Order::kFields; ++f)
    v[f] = *reinterpret_cast<const uint32_t*>(smem + p.codes_at + first + 16 * f);
  int sum = 0;
#pragma unroll
  for (int f = 0; f < Order::kFields; ++f) sum = __dp4a(static_cast<int>(v[f]), 0x01010101, sum);
  if (kPer == 1 && g >= 4) sum = 0;
  uint4 planes[kPer];
  exchange_planes<B, kPer, false>(v, reinterpret_cast<uint32_t*>(smem + a.planes_at) + warp * kExchangeWords<kPer>,
                                  planes);
  sum = __reduce_add_sync(0xffffffffu, sum);
  mine.multiply(planes, a.add * sum);
  __syncthreads();
  if (out.y == nullptr) return;
  if (p.norm != nullptr) x_scale = __fmul_rn(x_scale, *factor_of_norm);
  const int* const sums = reinterpret_cast<const BitShared*>(smem)->sums;
  if (pairs) {
    const int at = 2 * of_thread * kTileRows + r;
    *out.y = gated(out.of(sums[at], x_scale), factor.of(sums[at + kTileRows], x_scale), p.end);
  } else {
    const float y = out.of(sums[thread], x_scale);
    *out.y = p.end == ProductEnd::kAdd ? __fadd_rn(before, y) : y;
  }
}

}  // namespace lowbit::cuda
