#pragma once
// step_products() of one token: the weights stream past it.
//
// Shapes:   a thread block has every gridDim'th tile of 16 rows, or pair of a gate's tile and its factor's, one after
//           the other; its warps share K. A share of a warp is up to eight steps of 32 columns.
// Products: all steps of a share multiply with the same operand, whose column s is the activation group of step s; a
//           step's sums count in that column alone. So lane 4 g + t keeps the sums of activation groups 2 t and 2 t + 1
//           for rows 2 g and 2 g + 1, and all lanes help to scale them; with x in one column a quarter of them would.
// Memory:   copies of weights and their scales run some shares ahead, over tiles, too, and begin before the previous
//           kernel has ended. One warp scales and adds a tile's groups while the others multiply the next tile. Where
//           tiles are many, a block has two teams of warps, which share x and have tiles of their own; half of their
//           first copies begin behind those of x. Of a gated product they have whole activation groups, and may leave
//           codes for the next launch.
// Numerics: docs/numerics.md#matmul: an activation group's sum is exact, those of a group of weights are added in
//           lanes that pass them on, and groups by one thread per output. Where a row of weights has one scale, that
//           thread adds all activation groups.
// Limits:   memory, where there are weights enough; else the chain read x - norm - quantize - products - scale and add.

#include "kernels/cuda/step_gemv_input.cuh"
#include "kernels/cuda/step_products.cuh"

namespace lowbit::cuda {

/// Shares that are under way, of each tile of a pair.
template <int Bits, int kTiles>
inline constexpr int kStepGemvStages = Bits == 8 || kTiles == 2 ? 2 : 4;

/// Blocks of a team that a multiprocessor has registers for: those of a launch and of the next one. Pairs of tiles on a
/// trellis would spill some with three.
template <int Bits, int kTiles>
inline constexpr int kStepGemvBlocks = Bits == kTrellis&& kTiles == 2 ? 2 : 3;

/// A tile of the launch, or tile `half` of a pair: the part that it belongs to, and its number there.
template <int kTiles>
struct StepGemvTile {
  int part, tile;
  __device__ __forceinline__ StepGemvTile(const ProductArgs& p, int of_launch, int half)
      : part(kTiles == 1 ? 0 : half), tile(of_launch) {
    if constexpr (kTiles == 1) {
      while (part + 1 < p.parts && of_launch >= p.part[part + 1].first_block) ++part;
      tile -= p.part[part].first_block;
    }
  }
};

/// The thread among those of its team.
__device__ __forceinline__ int step_gemv_thread() { return static_cast<int>(threadIdx.x % kProductThreads); }

/// The copies of a thread's own words and of the tiles' scales, share by share over the tiles of its block.
template <int Bits, int kTiles>
struct StepGemvCopies {
  using Order = FragmentOrder<Bits, 1>;
  using Copies = ProductCopies<Bits>;
  static constexpr int kPanelBytes = kPanelPacks * Order::kPackBytes;  // of two batches
  int tile, step, chunk = 0, stage = 0, scale_stage = 0;
  const uint8_t* from[kTiles] = {};

  /// A tile's scales, [groups][16] floats, and where its words begin.
  __device__ __forceinline__ void begin_tile(const ProductArgs& p, float* scales) {
    const int thread = step_gemv_thread();
#pragma unroll
    for (int half = 0; half < kTiles; ++half) {
      const StepGemvTile<kTiles> at(p, tile, half);
      const ProductPart& part = p.part[at.part];
      from[half] = part.tiles + pack_index(at.tile / 4, 0, p.k_blocks) * Order::kPackBytes +
                   (at.tile % 4 * 32 + thread % 32) * Copies::kBytes + thread / 32 * (p.warp_batches / 2) * kPanelBytes;
      float* const to = scales + (scale_stage * kTiles + half) * p.weight_groups * 16;
#pragma unroll 1
      for (int piece = thread; piece < 4 * p.weight_groups; piece += kProductThreads) {
        const int group = piece / 4, r = piece % 4 * 4;
        copy_to_shared_16(to + group * 16 + r,
                          part.scales + int64_t(group) * p.per_scale * part.n_padded + 16 * at.tile + r);
      }
    }
  }

  /// The next share, of `count` batches in chunk 0 and fewer by `of_chunk` in each that follows.
  __device__ __forceinline__ void next(const ProductArgs& p, uint8_t* shared, int count, int of_chunk) {
    if (tile < p.tiles) {
      if (chunk == 0) begin_tile(p, reinterpret_cast<float*>(shared));
      const int here = min(p.warp_batches, count - chunk * of_chunk);
#pragma unroll
      for (int half = 0; half < kTiles; ++half) {
        const uint32_t to = shared_address(shared + p.weights_at + (stage * kTiles + half) * Copies::kStageBytes) +
                            static_cast<uint32_t>(step_gemv_thread()) * Copies::kBytes;
#pragma unroll
        for (int i = 0; i < kProductBatches; ++i) {
          if (i >= here) break;
#pragma unroll
          for (int c = 0; c < Copies::kOfBatch; ++c)
            copy(to + (i * Copies::kOfBatch + c) * kProductThreads * Copies::kBytes,
                 from[half] + i / 2 * kPanelBytes + i % 2 * (kPackLanes * Copies::kWords * 4) + c * (kPackLanes * 16));
        }
        if constexpr (Bits == kTrellis) {  // of the last lane of the quad in the batch before, which ends a panel's
          const bool follows = here > 0 && (chunk != 0 || step_gemv_thread() >= 32);
          if (follows && step_gemv_thread() % 4 == 0)
            copy(shared_address(shared + p.weights_at + (stage * kTiles + half) * Copies::kStageBytes +
                                Copies::history_place()),
                 from[half] - kPanelBytes + (kPackLanes + 3) * Copies::kBytes);
        }
        from[half] += of_chunk / 2 * kPanelBytes;
      }
      stage = stage + 1 == kStepGemvStages<Bits, kTiles> ? 0 : stage + 1;
      if (++chunk == p.chunks) {
        chunk = 0;
        scale_stage = scale_stage + 1 == p.scale_stages ? 0 : scale_stage + 1;
        tile += step;
      }
    }
    end_copies();
  }

  static __device__ __forceinline__ void copy(uint32_t to, const uint8_t* from) {
    if constexpr (Copies::kBytes == 16) {
      copy_async_16(to, from);
    } else {
      copy_async_8(to, from);
    }
  }
};

/// Sums of an output: of groups of the weights, or of activation groups where a row of weights has one scale.
template <bool kRowScales>
__device__ __forceinline__ int step_gemv_sums(const ProductArgs& p) {
  return kRowScales ? p.x_group_count : p.weight_groups;
}

/// A lane's sums of a share of `count` batches from `first` on: rows 2 g and 2 g + 1, activation groups 2 t and 2 t + 1
/// of each. `x`: codes of the share's activation group g.
template <int Bits>
__device__ __forceinline__ void sum_step_gemv(const uint8_t* stage, int first, int count, uint2 x,
                                              const uint32_t (&table)[4], float (&sum)[4]) {
  constexpr GemmActivation kX = GemmActivation::kInt8;
  ProductWords<Bits> w;
  load_product_words<Bits>(stage, w);
  constexpr int kParts = kInt8Parts<Bits>;
  constexpr bool kByPairs = Bits != kTable && Bits != kTrellis;  // batches whose products do not wait for each other
  RowHistory<Bits> history = load_product_history<Bits>(stage, first);
  int own[4] = {};
#pragma unroll
  for (int i = 0; i < kProductBatches; ++i) {
    if ((i % 2 == 0 || !kByPairs) && i >= count) break;
    uint32_t a[kParts][8];
    decode_int8_parts<Bits>(w[i], table, history, a);
    int d[2][4] = {}, counts = static_cast<int>(threadIdx.x % 4) == i && i < count ? 1 : 0;
    asm("" : "+r"(counts));  // a factor: multiplying has a pipe of its own, choosing has not
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) mma<kX>(d[step], a[part] + 4 * step, x.x, x.y);
      own[step] += counts * d[step][step], own[2 + step] += counts * d[step][2 + step];
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) sum[c] = narrow_sum<kX, Bits>(own[c]);
}

/// Sums times the scales of x, by weight groups, into `slot`: the lane's rows of the group that has activation group 2
/// t + 1. kRowScales: sums alone, by activation groups.
template <bool kRowScales>
__device__ __forceinline__ void scale_step_gemv(const ProductArgs& p, const float (&sum)[4], float2 by, int x_groups,
                                                float* slot) {
  const int before = static_cast<int>(threadIdx.x % 4) * 2;  // activation groups of the share in the lanes below
  if (kRowScales || p.per_scale == 1) {
    if (before < x_groups)
      *reinterpret_cast<float2*>(slot - 16) = {__fmaf_rn(sum[0], by.x, 0.0f), __fmaf_rn(sum[2], by.x, 0.0f)};
    if (before + 1 < x_groups)
      *reinterpret_cast<float2*>(slot) = {__fmaf_rn(sum[1], by.y, 0.0f), __fmaf_rn(sum[3], by.y, 0.0f)};
    return;
  }
  float2 part = {__fmaf_rn(sum[1], by.y, __fmaf_rn(sum[0], by.x, 0.0f)),
                 __fmaf_rn(sum[3], by.y, __fmaf_rn(sum[2], by.x, 0.0f))};
#pragma unroll 1
  for (int below = 2; below < p.per_scale; below += 2) {
    const float2 other = {__shfl_up_sync(0xffffffffu, part.x, 1, 4), __shfl_up_sync(0xffffffffu, part.y, 1, 4)};
    part = {__fmaf_rn(sum[1], by.y, __fmaf_rn(sum[0], by.x, other.x)),
            __fmaf_rn(sum[3], by.y, __fmaf_rn(sum[2], by.x, other.y))};
  }
  const int end = before + 2;  // of a group here, which began in this share
  if ((end & (p.per_scale - 1)) == 0 && end - p.per_scale < x_groups) *reinterpret_cast<float2*>(slot) = part;
}

/// A lane's output in the warp that scales and adds, as known before there are sums: row lane % 16 of tile lane / 16.
struct StepGemvOutput {
  float* to = nullptr;
  float bias = 0, before = 0;
  template <int kTiles>
  __device__ __forceinline__ void find(const ProductArgs& p, int of_launch) {
    const int lane = static_cast<int>(threadIdx.x % 32), second = lane / 16;
    const StepGemvTile<kTiles> at(p, of_launch, second);
    const ProductPart& part = p.part[at.part];
    const int n = 16 * at.tile + lane % 16;
    to = nullptr;
    if (n >= part.n || (kTiles == 1 && second == 1)) return;
    to = part.y + n;
    bias = part.bias == nullptr ? 0.0f : part.bias[n];
  }
  __device__ __forceinline__ void fetch_before(const ProductArgs& p) {
    if (p.end == ProductEnd::kAdd && to != nullptr) before = *to;
  }
};

/// Codes of 32 outputs, half of which each of two teams has: the team that comes second makes them. One warp, whose
/// first 16 lanes have `y` of a tile.
__device__ __forceinline__ void put_step_codes(const ProductArgs& p, uint8_t* shared, float y, int of_launch,
                                               int round) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const group = reinterpret_cast<float*>(shared + p.groups_at) + 32 * round;
  if (lane < 16) group[of_launch % 2 * 16 + lane] = y;
  __threadfence_block();
  __syncwarp();
  uint32_t before = 0;
  if (lane == 0) before = atomicAdd(reinterpret_cast<uint32_t*>(shared + p.groups_at) + 32 * p.rounds + round, 1u);
  if (__shfl_sync(0xffffffffu, before, 0, 32) == 0) return;
  __threadfence_block();
  const float v = group[lane];
  uint32_t most = magnitude_bits(v);
#pragma unroll
  for (int d = 1; d < 32; d *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, d));
  const Quantizer q = step_quantizer(most);
  p.y_codes[of_launch / 2 * 32 + lane] = static_cast<int8_t>(quantize_one(v, q.inverse));
  if (lane == 0) p.y_scales[of_launch / 2] = q.scale;
}

/// Groups whose results and scales a lane of scale_and_add_groups() reads at once, whether there are so many or not.
inline constexpr int kGroupsAtOnce = 12;

/// The groups of a tile, or of a pair, in their order; one warp. kRowScales: activation groups, times `x_scales`.
/// put_codes(y): what else becomes of outputs of a pair, which the first 16 lanes have.
template <int kTiles, bool kRowScales, class PutCodes>
__device__ __forceinline__ void scale_and_add_groups(const ProductArgs& p, const float* results, const float* scales,
                                                     const float* x_scales, const StepGemvOutput& out,
                                                     const PutCodes& put_codes) {
  const int lane = static_cast<int>(threadIdx.x % 32), r = lane % 16, count = step_gemv_sums<kRowScales>(p),
            base = kTiles == 2 ? lane / 16 * count * 16 + r : r;
  float acc = 0;
#pragma unroll 1
  for (int i = 0; i < count; i += kGroupsAtOnce) {
    float result[kGroupsAtOnce], scale[kGroupsAtOnce];
#pragma unroll
    for (int j = 0; j < kGroupsAtOnce; ++j) {  // behind the last group lies what is not added
      result[j] = results[base + (i + j) * 16];
      scale[j] = kRowScales ? x_scales[i + j] : scales[base + (i + j) * 16];
    }
    const int left = count - i;
#pragma unroll
    for (int j = 0; j < kGroupsAtOnce; ++j)
      if (j < left) acc = __fmaf_rn(result[j], scale[j], acc);
  }
  if constexpr (kRowScales) acc = __fmaf_rn(acc, scales[kTiles == 2 ? lane : r], 0.0f);
  float y = __fadd_rn(acc, out.bias);
  if constexpr (kTiles == 2) {
    y = gated(y, __shfl_down_sync(0xffffffffu, y, 16), p.end);
    put_codes(y);
    if (lane >= 16) return;
  }
  if (out.to != nullptr) *out.to = p.end == ProductEnd::kAdd ? __fadd_rn(out.before, y) : y;
}

/// kTiles 2: the tiles are those of parts 0 and 1, and become one output. kRowScales: a row of weights has one scale.
/// kTeams: of kProductThreads each, which have x together and tiles of their own. With two of them half of the weights
/// that are under way are asked for behind x, which would wait for them. kExact: ProductArgs::exact_scales.
template <int Bits, int kTiles, bool kRowScales, int kTeams, bool kExact = false>
__global__ void __launch_bounds__(kProductThreads* kTeams, kStepGemvBlocks<Bits, kTiles> / kTeams)
    step_gemv_kernel(const __grid_constant__ ProductArgs p) {
  LOWBIT_DYNAMIC_SHARED(product_shared);
  constexpr int kThreads = kProductThreads * kTeams;
  constexpr int kStages = kStepGemvStages<Bits, kTiles>;
  let_successor_start();
  constexpr int kFirst = kStages / kTeams;  // copies before the wait
  const int team = kTeams == 1 ? 0 : static_cast<int>(threadIdx.x / kProductThreads), thread = step_gemv_thread(),
            of_launch = static_cast<int>(blockIdx.x) * kTeams + team, teams = static_cast<int>(gridDim.x) * kTeams;
  uint8_t* const own = product_shared + team * p.team_bytes;
  const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  const int of_half = step_gemv_sums<kRowScales>(p) * 16, of_tile = of_half * kTiles,
            of_chunk = p.depth * p.warp_batches, first = warp * p.warp_batches,
            count = warp < p.depth ? (p.k + 63) / 64 - first : 0;
  const auto* const scales = reinterpret_cast<const float*>(own);      // [scale stages][tiles][weight groups][16]
  auto* const results = reinterpret_cast<float*>(own + p.results_at);  // [2][tiles][sums][16]
  StepGemvCopies<Bits, kTiles> copies{of_launch, teams};
#pragma unroll 1
  for (int i = 0; i < kFirst; ++i) copies.next(p, own, count, of_chunk);
  StepGemvColumns<kThreads> by = {};
  if (p.norm != nullptr && p.rows != nullptr) {
    load_step_gemv<kThreads>(p.norm, p.k, 0, by);
    if (p.k > kShortRow) pad_norm_row(reinterpret_cast<float*>(product_shared + p.rows_at), p.k, kThreads);
  }
  StepGemvOutput out;
  if (warp == 0 && of_launch < p.tiles) out.find<kTiles>(p, of_launch);
  int codes_from = p.codes_at + 64 * first + 32 * g + 8 * t, scales_from = p.x_scales_at + 8 * (first + t),
      slot = ((2 * (first + t) + 1) >> p.sum_shift) * 16 + 2 * g;
  if constexpr (kTiles == 2 && kTeams == 2)
    for (int i = static_cast<int>(threadIdx.x); p.y_codes != nullptr && i < p.rounds; i += kThreads)
      reinterpret_cast<uint32_t*>(product_shared + p.groups_at)[32 * p.rounds + i] = 0;
  asm volatile("" : "+r"(codes_from), "+r"(scales_from), "+r"(slot));  // behind the wait each instruction costs time
  clear_behind_scales(p, product_shared);
  const ShortRow row(p);
  row.wait();
  stage_step_gemv<kThreads, kExact>(p, product_shared, row, by, [&] {
    out.fetch_before(p);
#pragma unroll 1
    for (int i = kFirst; i < kStages; ++i) copies.next(p, own, count, of_chunk);
  });
  __syncthreads();
  const uint8_t* const codes = product_shared + codes_from;
  const auto* const x_scales = reinterpret_cast<const float2*>(product_shared + scales_from);
  const uint8_t* stage = own + p.weights_at;
  int ordinal = 0, scale_stage = 0;
#pragma unroll 1
  for (int tile = of_launch; tile < p.tiles; tile += teams, ++ordinal) {
    float* const of = results + (ordinal & 1) * of_tile;
    uint32_t tables[kTiles][4] = {};  // of the tiles' parts
    if constexpr (Bits == kTable || Bits == kTrellis)
#pragma unroll
      for (int half = 0; half < kTiles; ++half) {
        const StepGemvTile<kTiles> at(p, tile, half);
#pragma unroll
        for (int i = 0; i < 4; ++i) tables[half][i] = p.part[at.part].table[i];
      }
    const bool accumulates = warp == ordinal % (kProductThreads / 32);
    if (accumulates && ordinal != 0) {
      out.find<kTiles>(p, tile);
      out.fetch_before(p);
    }
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      wait_for_copies<kStages - 1>();
      const int at = chunk * of_chunk, here = min(p.warp_batches, count - at);
      if (here > 0) {
        const uint2 x = *reinterpret_cast<const uint2*>(codes + 64 * at);
        const float2 factors = kRowScales ? float2{1, 1} : x_scales[at];
#pragma unroll
        for (int half = 0; half < kTiles; ++half) {
          float sum[4];
          sum_step_gemv<Bits>(stage + half * ProductCopies<Bits>::kStageBytes, first + at, here, x, tables[half], sum);
          scale_step_gemv<kRowScales>(p, sum, factors, min(2 * here, p.x_group_count - 2 * (first + at)),
                                      of + half * of_half + slot + (2 * at >> p.sum_shift) * 16);
        }
      }
      copies.next(p, own, count, of_chunk);
      stage += kTiles * ProductCopies<Bits>::kStageBytes;
      if (stage == own + p.results_at) stage = own + p.weights_at;
    }
    if constexpr (kTeams == 1) {
      __syncthreads();
    } else {
      sync_threads_at<kProductThreads>(team + 1);
    }
    if (accumulates)
      scale_and_add_groups<kTiles, kRowScales>(p, of, scales + scale_stage * kTiles * p.weight_groups * 16,
                                               reinterpret_cast<const float*>(product_shared + p.x_scales_at), out,
                                               [&](float y) {
                                                 if constexpr (kTiles == 2 && kTeams == 2)
                                                   if (p.y_codes != nullptr)
                                                     put_step_codes(p, product_shared, y, tile, ordinal);
                                               });
    scale_stage = scale_stage + 1 == p.scale_stages ? 0 : scale_stage + 1;
  }
}

}  // namespace lowbit::cuda
