#pragma once
// The GEMV pipeline, one token, on every architecture from sm_80 on. A block takes several tiles of 16 rows of weights,
// its warps share K. A warp works alone until the sums of all tiles are done: it copies its own weights, scales and
// columns of x.
//
// Shapes:   any n, k and alignment of x; groups of 64 columns (f16, bf16: 32) or multiples.
// Memory:   a warp's weights are one sequence of steps of 128 columns (bits: 1024), tile after tile, several of them on
//           their way at any time, the first ones asked for before the previous kernel has ended. Where launches
//           overlap, a multiprocessor has one block of each of two: the next launch's weights arrive while this one
//           ends (docs/lab/gpu-one-token.md).
// x:        in shared memory as lanes want it: [block of K][lane t][word], so that 32 bytes are all that a lane needs
//           of a block.
// Numerics: integers as gemm_skinny.cuh; f16, bf16: one fma with the scale per 128 columns where groups are multiples
//           of that, elsewhere per 32, warps added in ascending order.
// Limits:   memory; for few rows of weights, the chain wait - read x - products - sums - store.

#include <climits>
#include <type_traits>

#include "kernels/cuda/gemm/mainloop/gemm_skinny.cuh"

namespace lowbit::cuda {

/// A step: 128 bytes of x with integers, 256 with halves, and 16 rows of weights.
template <class T>
struct GemvStep {
  static constexpr int kWords = T::Order::kLaneWords, kBlocks = kXBytes<T::X>, kBatches = 2 * kBlocks;
  static constexpr int kBatchBytes = 128 * kWords, kBytes = kBatches * kBatchBytes, kSlots = gemv_slots(kBytes);
  // In memory: pieces of up to 512 bytes, those of four tiles side by side.
  static constexpr int kPiece = kBatchBytes < 512 ? kBatchBytes : 512,
                       kPieces = 2 * kBatchBytes / kPiece;  // of a block
  static constexpr int kNextBlock = kPanelPacks * T::Order::kPackBytes;
};

/// A block's tiles: every stride-th one from blockIdx.x on, so that all of them lie at the same position of their
/// panels and blocks that run together read neighbours.
__device__ __forceinline__ int gemv_stride() { return int((gridDim.x - (blockIdx.x & 7) + 7) >> 3) << 3; }

struct GemvLane {
  int lane, warp, t, row;    // row: the first of this lane's two
  int first, blocks, steps;  // blocks of K of this warp, the same as steps
  int stride, tiles;         // of the block
  __device__ GemvLane(const GemmArgs& p, int step_blocks)
      : lane(threadIdx.x & 31),
        warp(__shfl_sync(0xffffffffu, int(threadIdx.x) >> 5, 0)),  // the compiler sees that it is one for all lanes
        t(threadIdx.x & 3),
        row((threadIdx.x >> 2 & 7) * 2),
        first(warp * p.warp_steps * step_blocks),
        blocks(min(p.warp_steps * step_blocks, p.k_blocks - first)),
        steps((blocks + step_blocks - 1) / step_blocks),
        stride(gemv_stride()),
        tiles((p.n - 16 * int(blockIdx.x) + 16 * stride - 1) / (16 * stride)) {}
};

/// A warp's weights on their way. Lanes copy 16 bytes each, which others read.
template <class T>
struct GemvPipeline {
  using Step = GemvStep<T>;
  static constexpr int kNextStep = Step::kBlocks * Step::kNextBlock;
  // Copies of 512 bytes; one may bring both blocks.
  static constexpr int kCopies = Step::kBytes / 512, kOfBlock = kCopies < Step::kBlocks ? 1 : kCopies / Step::kBlocks;
  static __device__ constexpr int copy_from(int i) {
    return i / kOfBlock * Step::kNextBlock + i % kOfBlock * 4 * Step::kPiece;
  }
  // Offsets that fit an instruction.
  static constexpr int kMiddle = Step::kBytes == 1024 && copy_from(1) == 2048 ? 1024 : 0;
  const uint8_t* from;   // this lane's 16 bytes of the next step
  uint32_t slots;        // where they go
  int left, steps;       // steps left of this tile, 0: there is none; of a tile
  int tiles, next_tile;  // tiles left; blocks from the end of a tile's steps to the next one's
  int whole;             // steps left behind one that has all its blocks
  bool second;           // this lane copies the second block of a step

  __device__ GemvPipeline(const GemmArgs& p, const GemvLane& at, uint32_t to) {
    const int piece = at.lane * 16 / Step::kPiece, block = piece / Step::kPieces, tile = blockIdx.x;
    from = p.tiles + pack_index(tile >> 2, at.first + block, p.k_blocks) * T::Order::kPackBytes +
           ((tile & 3) + piece % Step::kPieces * 4) * Step::kPiece + at.lane * 16 % Step::kPiece + kMiddle;
    slots = to + at.lane * 16;
    left = steps = at.steps;
    tiles = at.tiles;
    whole = Step::kBlocks == 2 && at.blocks % 2 != 0 ? 1 : 0;
    second = block != 0;
    next_tile = (at.stride >> 3) * p.k_blocks - steps * Step::kBlocks;
    asm volatile("" : "+r"(next_tile));  // worked out once, not in every step
  }
  /// The next step, if there is one, into slot `slot` bytes from the first; a group of its own in any case.
  __device__ void ask(int slot) {
    static_assert(Step::kBytes % 512 == 0);
    if (left > 0) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        if ((i < kOfBlock && !second) || left > whole)  // what is left out is multiplied by zeros of x
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slots + slot + i * 512),
                       "l"(from + (copy_from(i) - kMiddle))
                       : "memory");
      from += kNextStep;
      if (--left == 0) {
        from += int64_t(next_tile) * Step::kNextBlock;
        if (--tiles > 0) left = steps;
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

/// Scales of this warp's groups for all tiles of the block, [tile][group][16 rows]: 64 aligned bytes each, and rows
/// behind the last one have scales too.
__device__ __forceinline__ void gemv_ask_scales(const GemmArgs& p, const GemvLane& at, uint32_t to, int first,
                                                int groups) {
  for (int i = at.lane; i < 4 * groups; i += 32) {
    uint32_t address = to + first * 64 + i * 16;
    const float* from = p.scales + int64_t(first + (i >> 2)) * p.n_padded + 16 * int(blockIdx.x) + 4 * (i & 3);
#pragma unroll 1
    for (int tile = 0; tile < at.tiles; ++tile, address += p.groups * 64, from += 16 * at.stride)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  }
}

/// Columns of x of this warp's steps: word w of 16 bytes j of a block is word 8 w + j here. Zeros behind the row's end.
__device__ __forceinline__ void gemv_stage_x(const GemmArgs& p, const GemvLane& at, uint32_t* to, int row_bytes,
                                             int blocks) {
  const auto* const x = static_cast<const uint8_t*>(p.x);
  for (int c = at.lane; c < 8 * blocks; c += 32) {
    const int byte = (8 * at.first + c) * 16;
    uint4 v;
    if (p.x_aligned && byte + 16 <= row_bytes)
      v = *reinterpret_cast<const uint4*>(x + byte);
    else
      v = {x_word(x, byte, row_bytes), x_word(x, byte + 4, row_bytes), x_word(x, byte + 8, row_bytes),
           x_word(x, byte + 12, row_bytes)};
    uint32_t* const address = to + (at.first + (c >> 3)) * 32 + (c & 7);
    address[0] = v.x, address[8] = v.y, address[16] = v.z, address[24] = v.w;
  }
  __syncwarp();
}

/// Scales and bias for a thread that finishes a row, loaded long before. Thread r has row r % 16 of tile r / 16 of the
/// block.
template <GemmActivation X>
struct GemvEpilogue {
  int n, terms = 0;
  bool mine;
  float bias = 0.0f, scale = 1.0f, xs = 1.0f;
  __device__ explicit GemvEpilogue(const GemmArgs& p)
      : n((int(blockIdx.x) + int(threadIdx.x >> 4) * gemv_stride()) * 16 + int(threadIdx.x & 15)),
        mine(int(threadIdx.x) < 16 * p.row_tiles && n < p.n) {
    if (!mine) return;
    if (p.bias != nullptr) bias = __ldg(p.bias + n);
    if (p.groups == 1) scale = __ldg(p.scales + n);
    if constexpr (X == GemmActivation::kBit) terms = __ldg(p.w_terms + n);
  }
  __device__ void ask_for_x(const GemmArgs& p) {  // behind the wait
    if (!mine || !kIntegers<X>) return;
    if (p.x_scale_group == 0) xs = *p.x_scale;
    if constexpr (X == GemmActivation::kBit) terms += *p.x_terms;
  }
};

/// A lane's words of a batch.
template <int Words>
__device__ __forceinline__ void gemv_words(const uint8_t* from, uint32_t* w) {
  if constexpr (Words == 1) {
    w[0] = *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (Words == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    w[0] = v.x, w[1] = v.y;
  } else {
#pragma unroll
    for (int c = 0; c < Words / 4; ++c) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + 512 * c);
      w[4 * c] = v.x, w[4 * c + 1] = v.y, w[4 * c + 2] = v.z, w[4 * c + 3] = v.w;
    }
  }
}

/// The dequantizing sum over groups, or the sum over warps, and the output.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void gemv_finish(const GemmArgs& p, const uint8_t* shared, const GemvEpilogue<X>& end) {
  const int tile = threadIdx.x >> 4, r = threadIdx.x & 15;
  const auto* const sums = reinterpret_cast<const float*>(shared + p.sums_at) + tile * p.slots * 16 + r;
  const auto* const scales = reinterpret_cast<const float*>(shared) + tile * p.groups * 16 + r;
  float acc = 0.0f;
  if (kIntegers<X> && p.groups > 1) {
    if (p.x_scale_group == 0) {
#pragma unroll 8
      for (int g = 0; g < p.groups; ++g) acc = __fmaf_rn(sums[16 * g], scales[16 * g], acc);
    } else {
#pragma unroll 4
      for (int g = 0; g < p.groups; ++g)
        acc = __fmaf_rn(__fmul_rn(sums[16 * g], p.x_scale[g * p.x_scale_group]), scales[16 * g], acc);
    }
  } else if (kIntegers<X>) {
    int sum = 0;
#pragma unroll 4
    for (int s = 0; s < p.slots; ++s) sum += reinterpret_cast<const int*>(sums)[16 * s];
    if constexpr (X == GemmActivation::kBit) sum = 4 * sum + end.terms;
    float v = any_sum<X, Bits>(sum);
    if (p.x_scale_group != 0) v = __fmul_rn(v, *p.x_scale);
    acc = __fmaf_rn(v, end.scale, acc);
  } else {
#pragma unroll 4
    for (int s = 0; s < p.slots; ++s) acc = __fadd_rn(acc, sums[16 * s]);
    acc = __fmul_rn(acc, end.scale);
  }
  skinny_store(p, end.n, finished<X>(acc, end.xs, end.bias));
}

/// All tiles of the block, this warp's share of K. Coarse: groups end where steps do, or there is one.
template <class T, bool Coarse>
struct GemvTiles {
  using Step = GemvStep<T>;
  using Sum = typename T::Sum;
  static constexpr bool kInts = kIntegers<T::X>;
  const GemmArgs& p;
  const GemvLane& at;
  const int first_group, warp_groups;
  Sum d[4], e[4];         // of the even and the odd batches
  float acc[2];           // halves: accumulated sums
  const float2* scales;   // halves: of the two rows, of this group
  uint8_t* sums;          // of this lane's rows: the next slot
  int left, groups_left;  // batches of this group, groups of this warp

  __device__ void run(GemvPipeline<T>& pipeline, uint8_t* shared, const uint8_t* words, const uint32_t* x) {
    const auto* tile_scales =
        reinterpret_cast<const float2*>(shared + ((p.groups > 1 ? first_group : at.warp) * 16 + at.row) * 4);
    uint8_t* tile_sums = shared + p.sums_at + at.row * 4 + (kInts && p.groups > 1 ? first_group : at.warp) * 64;
    int here = 0;
#pragma unroll 1
    for (int tile = 0; tile < at.tiles; ++tile) {
      scales = tile_scales, sums = tile_sums;
      left = p.groups > 1 ? p.slot_batches : INT_MAX;
      groups_left = warp_groups;
      clear();
      acc[0] = acc[1] = 0.0f;
      const uint32_t* own_x = x;
#pragma unroll 1
      for (int i = at.steps; i > 0; --i) {
        asm volatile("cp.async.wait_group %0;" ::"n"(Step::kSlots - 1) : "memory");
        __syncwarp();
        multiply(words + here, own_x);
        __syncwarp();
        pipeline.ask(here);  // while the last products are under way
        if constexpr (Coarse) end_step();
        own_x += 32 * Step::kBlocks;
        here = here + Step::kBytes == Step::kSlots * Step::kBytes ? 0 : here + Step::kBytes;
      }
      end_tile();
      if (p.groups > 1) tile_scales += p.groups * 8;
      tile_sums += p.slots * 64;
    }
  }

 private:
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = e[i] = 0;
  }
  template <class V>
  __device__ void put(V first, V second) {
    struct alignas(8) Pair {
      V a, b;
    };
    if (at.t == 0) *reinterpret_cast<Pair*>(sums) = {first, second};
  }
  __device__ void put_group() {  // integers: the exact sums of a group
    put(any_sum<T::X, T::kBits>(d[0] + e[0]), any_sum<T::X, T::kBits>(d[2] + e[2]));
    sums += 64;
    left = p.slot_batches;
    --groups_left;
    clear();
  }
  __device__ void scale_accumulate() {  // halves
    const float2 s = *scales;
    acc[0] = __fmaf_rn(d[0] + e[0], s.x, acc[0]), acc[1] = __fmaf_rn(d[2] + e[2], s.y, acc[1]);
    clear();
  }
  __device__ void multiply(const uint8_t* words, const uint32_t* x) {
    uint32_t w[Step::kBatches][Step::kWords];
#pragma unroll
    for (int b = 0; b < Step::kBatches; ++b) gemv_words<Step::kWords>(words + b * Step::kBatchBytes, w[b]);
#pragma unroll
    for (int b = 0; b < Step::kBatches; ++b) {
      uint32_t a[8];
      const uint4 of_x = *reinterpret_cast<const uint4*>(x + b / 2 * 32 + b % 2 * 4);
      decode<T::X, T::kBits>(w[b], p.half_zero, a);
      mma<T::X>(b % 2 == 0 ? d : e, a, of_x.x, of_x.y);
      mma<T::X>(b % 2 == 0 ? d : e, a + 4, of_x.z, of_x.w);
      if constexpr (!Coarse) end_batch();
    }
  }
  __device__ void end_batch() {  // behind the row's end there may be batches without a group
    if constexpr (!kInts) scale_accumulate();
    if (--left != 0 || groups_left == 0) return;
    if constexpr (kInts) {
      put_group();
    } else {
      left = p.slot_batches;
      if (--groups_left > 0) scales += 8;
    }
  }
  __device__ void end_step() {
    left -= Step::kBatches;
    if constexpr (kInts) {
      if (left == 0) put_group();
    } else {
      scale_accumulate();
      scales += left == 0 ? 8 : 0;
      left = left == 0 ? p.slot_batches : left;
    }
  }
  __device__ void end_tile() {
    if constexpr (!kInts)
      put(acc[0], acc[1]);
    else if (p.groups == 1)
      put(d[0] + e[0], d[2] + e[2]);
    else if (groups_left > 0)  // the last group, a short one
      put_group();
  }
};

template <class T>
__global__ void __launch_bounds__(kSkinnyThreads, 2) gemv_kernel(const __grid_constant__ GemmArgs p) {
  using Step = GemvStep<T>;
  extern __shared__ __align__(128) uint8_t shared[];
  const GemvLane at(p, Step::kBlocks);
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const int pipeline_at = p.weights_at + at.warp * (Step::kSlots * Step::kBytes);
  const int first_group = at.warp * p.warp_groups, warp_groups = min(p.warp_groups, p.groups - first_group);
  if (p.groups > 1)
    gemv_ask_scales(p, at, base, first_group, warp_groups);
  else if (at.lane < 16)  // one scale for the row comes last: ones for every warp
    reinterpret_cast<float*>(shared)[16 * at.warp + at.lane] = 1.0f;
  GemvPipeline<T> pipeline(p, at, base + pipeline_at);
#pragma unroll 1
  for (int i = 0; i < Step::kSlots; ++i) pipeline.ask(i * Step::kBytes);
  skinny_let_next_kernel_start();  // its weights come behind these
  GemvEpilogue<T::X> end(p);

  skinny_wait_for_previous_kernel();
  end.ask_for_x(p);
  auto* const x = reinterpret_cast<uint32_t*>(shared + p.x_at);
  gemv_stage_x(p, at, x, p.k * kXBytes<T::X>, at.steps * Step::kBlocks);
  const uint8_t* const words = shared + pipeline_at + at.lane * (Step::kWords < 4 ? 4 * Step::kWords : 16);
  const uint32_t* const own_x = x + at.first * 32 + 8 * at.t;
  const auto run = [&](auto coarse) {
    GemvTiles<T, coarse.value> tiles{p, at, first_group, warp_groups};
    tiles.run(pipeline, shared, words, own_x);
  };
  if (p.groups == 1 || p.slot_batches % Step::kBatches == 0)
    run(std::true_type{});
  else
    run(std::false_type{});
  asm volatile("cp.async.wait_all;" ::: "memory");  // scales
  __syncthreads();
  if (end.mine) gemv_finish<T::X, T::kBits>(p, shared, end);
}

template <GemmActivation X, int Bits, int ColumnTiles>
constexpr SkinnyKernel skinny_kernel() {
  using T = SkinnyTile<X, Bits, ColumnTiles>;
  if constexpr (ColumnTiles == 0)
    return {X, Bits, T::kRows, reinterpret_cast<const void*>(&gemv_kernel<T>)};
  else
    return {X, Bits, T::kRows, reinterpret_cast<const void*>(&gemm_skinny<T>)};
}

}  // namespace lowbit::cuda
