#pragma once
// The pipeline for 2 to 16 tokens, on every architecture from sm_80 on. A block is 16 or 32 rows of weights, its warps
// share K, and every lane copies the words of its own operands to shared memory, all that fit before the previous
// kernel has ended: no lane waits for another one's weights.
//
// Shapes:   any n, k; x with rows at multiples of 16 bytes; groups of 64 columns (f16, bf16: 32) or multiples.
// x:        all of it, swizzled, then ldmatrix. One token: gemv.cuh.
// Numerics: integers: the sum of each group is exact and put into shared memory; threads scale and accumulate them in
//           the order of docs/numerics.md#matmul. f16, bf16: one fma with the scale per group or 64 columns, warps
//           added in ascending order.
// Limits:   latency below about 8 MB of weights, then memory; with 16 rows reading x, once per block.

#include "kernels/cuda/gemm/epilogue/epilogue.cuh"
#include "kernels/cuda/gemm/primitives/mma.cuh"
#include "kernels/cuda/gemm/schedule/skinny.h"

namespace lowbit::cuda {

/// kColumnTiles tiles of 8 tokens; 0: one token (gemv.cuh).
template <GemmActivation X_, int Bits_, int ColumnTiles_>
struct SkinnyTile {
  static constexpr GemmActivation X = X_;
  static constexpr int kBits = Bits_, kColumnTiles = ColumnTiles_;
  using Order = FragmentOrder<kBits, kXBytes<X>>;
  using Sum = typename SumOf<X>::Type;
  static constexpr int kRows = kColumnTiles == 0 ? 1 : 8 * kColumnTiles;
};

__device__ __forceinline__ void skinny_wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void skinny_let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Starts the copy of a lane's words of one batch to where the same lane reads them: nobody else needs to know.
template <class Order>
__device__ __forceinline__ void copy_words(uint32_t to, const uint8_t* pack, int batch, int lane128) {
  constexpr int kWords = Order::kLaneWords;
  const uint8_t* const at = pack + batch * (kPackLanes * kWords * 4);
  const int lane = lane128 & 31;
  if constexpr (kWords < 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to + lane * kWords * 4),
                 "l"(at + lane128 * kWords * 4), "n"(kWords * 4)
                 : "memory");
  } else {
#pragma unroll
    for (int c = 0; c < kWords / 4; ++c)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + (c * 32 + lane) * 16),
                   "l"(at + (c * kPackLanes + lane128) * 16)
                   : "memory");
  }
}
template <class Order>
__device__ __forceinline__ void read_words(const uint8_t* from, uint32_t* w) {
  constexpr int kWords = Order::kLaneWords;
  const int lane = threadIdx.x & 31;
  if constexpr (kWords == 1) {
    w[0] = reinterpret_cast<const uint32_t*>(from)[lane];
  } else if constexpr (kWords == 2) {
    const uint2 v = reinterpret_cast<const uint2*>(from)[lane];
    w[0] = v.x, w[1] = v.y;
  } else {
#pragma unroll
    for (int c = 0; c < kWords / 4; ++c) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[c * 32 + lane];
      w[4 * c] = v.x, w[4 * c + 1] = v.y, w[4 * c + 2] = v.z, w[4 * c + 3] = v.w;
    }
  }
}

/// Four bytes of the token's x from `at` on; zeros behind its end.
__device__ __forceinline__ uint32_t x_word(const uint8_t* x, int at, int row_bytes) {
  if (at + 4 <= row_bytes && reinterpret_cast<uintptr_t>(x) % 4 == 0) return *reinterpret_cast<const uint32_t*>(x + at);
  uint32_t v = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at + i < row_bytes) v |= uint32_t(x[at + i]) << (8 * i);
  return v;
}

/// All of x, zeros behind its columns; chunks of 16 bytes swizzled by the row. A warp brings 128 bytes of four rows at
/// a time.
__device__ __forceinline__ void skinny_stage_x(const GemmArgs& p, uint8_t* to, int row_bytes) {
  const uint32_t base = uint32_t(__cvta_generic_to_shared(to));
  const int lane = threadIdx.x & 31, chunk = lane & 7, warps = blockDim.x / 32;
  for (int pack = threadIdx.x / 32; pack < p.k_blocks; pack += warps) {
    const int from = pack * 128 + 16 * chunk, left = row_bytes - from, valid = left < 0 ? 0 : left > 16 ? 16 : left;
    const uint8_t* x = static_cast<const uint8_t*>(p.x) + (lane >> 3) * p.x_row_bytes + (valid > 0 ? from : 0);
    const uint32_t at = base + pack * p.m * 128;
    for (int row = lane >> 3; row < p.m; row += 4, x += 4 * p.x_row_bytes)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + row * 128 + ((chunk ^ (row & 7)) << 4)),
                   "l"(x), "r"(valid)
                   : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void skinny_store(const GemmArgs& p, int64_t to, float y) {
  switch (GemmOutput(p.output)) {
    case GemmOutput::kF32:
      static_cast<float*>(p.y)[to] = y;
      break;
    case GemmOutput::kF16:
      static_cast<__half*>(p.y)[to] = __float2half_rn(y);
      break;
    case GemmOutput::kBf16:
      static_cast<__nv_bfloat16*>(p.y)[to] = __float2bfloat16_rn(y);
      break;
  }
}

/// Output i of a block, and what it takes besides the sums: asked for before they are there.
struct SkinnyOutput {
  int m, r, n;
  bool there;
  float bias = 0.0f, xs = 1.0f;
  __device__ SkinnyOutput(const GemmArgs& p, const SkinnyOffsets& at, int n0, int i)
      : m(i >> (p.row_tiles == 2 ? 5 : 4)), r(i & (at.rows - 1)), n(n0 + r), there(i < p.m * at.rows && n < p.n) {
    if (!there) return;
    if (p.bias != nullptr) bias = __ldg(p.bias + n);
    if (p.x_scale != nullptr && p.x_scale_group == 0) xs = p.x_scale[m * p.x_scale_row];
  }
};

/// Epilogue of a block: the dequantizing sum over groups, or the sum over the warps that shared K.
template <class T>
__device__ __forceinline__ void skinny_finish(const GemmArgs& p, const uint8_t* shared, const SkinnyOffsets& at, int n0,
                                              SkinnyOutput output) {
  const auto* const sums = reinterpret_cast<const typename T::Sum*>(shared + at.sums);
  const float* const scales = reinterpret_cast<const float*>(shared + at.scales);
  const int slot = p.m * at.rows;
  for (int i = threadIdx.x; i < slot; i += blockDim.x) {
    if (i != int(threadIdx.x)) output = SkinnyOutput(p, at, n0, i);
    if (!output.there) continue;
    const int m = output.m, r = output.r, n = output.n;
    float acc = 0.0f;
    if constexpr (kIntegers<T::X>) {
      if (p.groups > 1) {
#pragma unroll 8
        for (int g = 0; g < p.groups; ++g) {
          float v = any_sum<T::X, T::kBits>(sums[g * slot + i]);
          if (p.x_scale_group != 0) v = __fmul_rn(v, p.x_scale[m * p.x_scale_row + g * p.x_scale_group]);
          acc = __fmaf_rn(v, scales[g * at.rows + r], acc);
        }
      } else {
        int sum = 0;
#pragma unroll 8
        for (int s = 0; s < p.slots; ++s) sum += sums[s * slot + i];
        if constexpr (T::X == GemmActivation::kBit) sum = 4 * sum + __ldg(p.w_terms + n) + p.x_terms[m];
        float v = any_sum<T::X, T::kBits>(sum);
        if (p.x_scale_group != 0) v = __fmul_rn(v, p.x_scale[m * p.x_scale_row]);
        acc = __fmaf_rn(v, scales[r], acc);
      }
    } else {
#pragma unroll 8
      for (int s = 0; s < p.slots; ++s) acc = __fadd_rn(acc, sums[s * slot + i]);
    }
    skinny_store(p, m * p.ldy + n, finished<T::X>(acc, output.xs, output.bias));
  }
}

/// A lane's sums to their slot: rows 2 g and 2 g + 1 are neighbours.
template <class T, class V>
__device__ __forceinline__ void skinny_put(const GemmArgs& p, uint8_t* sums, int rows, int slot, int row, const V* d) {
  struct alignas(8) Pair {
    V first, second;
  };
  const int t = threadIdx.x & 3;
  V* const to = reinterpret_cast<V*>(sums) + slot * p.m * rows + row;
#pragma unroll
  for (int j = 0; j < T::kColumnTiles; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int m = 8 * j + 2 * t + c;
      if (m < p.m) *reinterpret_cast<Pair*>(to + m * rows) = {d[4 * j + c], d[4 * j + 2 + c]};
    }
}

/// Two halves of a pipeline of batches, a lane's own: its words of batches [.., end) on their way to shared memory.
template <class Order>
struct WordPipeline {
  static constexpr int kBatchBytes = Order::kLaneWords * 128;
  static constexpr int kNextBlock = kPanelPacks * Order::kPackBytes;
  const GemmArgs& p;
  const uint8_t* tiles;  // of the lane's rows
  uint32_t base;         // shared address
  int at, lane128, end;  // at: its offset

  __device__ __forceinline__ int offset(int half) const { return at + half * p.half_batches * kBatchBytes; }
  __device__ __forceinline__ void fill(int first, int half) const {
#pragma unroll 4
    for (int i = 0; i < p.half_batches; ++i) {
      const int batch = first + i;
      if (batch < end)
        copy_words<Order>(base + at + (half * p.half_batches + i) * kBatchBytes,
                          tiles + int64_t(batch >> 1) * kNextBlock, batch & 1, lane128);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

/// Scales: 16 rows are 64 aligned bytes, and rows behind the last one have scales too (padded_rows()).
__device__ __forceinline__ void skinny_stage_scales(const GemmArgs& p, uint32_t to, int rows, int n0) {
  for (int i = threadIdx.x; i < p.groups * (rows / 4); i += blockDim.x) {
    const int g = i / (rows / 4), chunk = i % (rows / 4), n = min(n0 + 4 * chunk, p.n_padded - 4);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 16),
                 "l"(p.scales + int64_t(g) * p.n_padded + n)
                 : "memory");
  }
}

/// A lane's sums of 16 rows by all tokens: of the group at hand, and scaled ones.
template <class T>
struct SkinnySums {
  using Sum = typename T::Sum;
  static constexpr int kSums = 4 * T::kColumnTiles;
  const GemmArgs& p;
  const SkinnyOffsets& at;
  uint8_t* shared;
  uint32_t x_at;
  int lane, x_read, row, slot;
  Sum d[kSums];
  float acc[kSums];

  __device__ __forceinline__ SkinnySums(const GemmArgs& args, const SkinnyOffsets& offsets, uint8_t* memory,
                                        uint32_t base, int row_tile, int first_slot)
      : p(args), at(offsets), shared(memory), lane(threadIdx.x & 31), slot(first_slot) {
    // ldmatrix: lane l gives the address of row l % 8 of matrix l / 8: the two words of a step, of two tiles or two
    // steps.
    const int x_row = T::kColumnTiles == 2 ? (lane & 7) + (lane >> 4 << 3) : lane & 7;
    x_read = min(x_row, p.m - 1);
    x_at = base + at.x + x_read * 128;
    row = row_tile * 16 + 2 * (lane >> 2);
#pragma unroll
    for (int i = 0; i < kSums; ++i) d[i] = 0, acc[i] = 0.0f;
  }
  __device__ __forceinline__ void multiply(int batch, const uint32_t* a) {
    const uint32_t pack = x_at + (batch >> 1) * p.m * 128;
    const int first = (batch & 1) * 4;  // chunk of 16 bytes
    uint32_t b[4];
    if constexpr (T::kColumnTiles == 1) {
      load_matrices(b, pack + (((first + (lane >> 3)) ^ (x_read & 7)) << 4));
      mma<T::X>(d, a, b[0], b[1]);
      mma<T::X>(d, a + 4, b[2], b[3]);
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        load_matrices(b, pack + (((first + 2 * step + (lane >> 3 & 1)) ^ (x_read & 7)) << 4));
        mma<T::X>(d, a + 4 * step, b[0], b[1]);
        mma<T::X>(d + 4, a + 4 * step, b[2], b[3]);
      }
    }
  }
  /// The group ends with this batch.
  __device__ __forceinline__ void scale_accumulate(int batch) {
    if constexpr (kIntegers<T::X>) {
      skinny_put<T>(p, shared + at.sums, at.rows, slot++, row, d);
    } else {
      const int g = p.groups > 1 ? batch / p.slot_batches : 0;
      const float2 s = *reinterpret_cast<const float2*>(shared + at.scales + (g * at.rows + row) * 4);
#pragma unroll
      for (int i = 0; i < kSums; ++i) acc[i] = __fmaf_rn(d[i], i & 2 ? s.y : s.x, acc[i]);
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) d[i] = 0;
  }
};

/// Batches [begin, pipeline.end), whose first two halves are on their way.
template <class T>
__device__ __forceinline__ void skinny_sum(SkinnySums<T>& sums, const WordPipeline<typename T::Order>& pipeline,
                                           int begin) {
  using Order = typename T::Order;
  const GemmArgs& p = sums.p;
  const int end = pipeline.end;
  int left = p.scale_batches, half = 0;
#pragma unroll 1
  for (int first = begin; first < end; first += p.half_batches, half ^= 1) {
    // The first two fills have arrived with x; of later ones at most the other half's is under way.
    if (first - begin >= 2 * p.half_batches) asm volatile("cp.async.wait_group 1;" ::: "memory");
    const uint8_t* const words = sums.shared + pipeline.offset(half);
    const int count = min(p.half_batches, end - first);
    uint32_t w[Order::kLaneWords];
    read_words<Order>(words, w);
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      uint32_t a[8];
      decode<T::X, T::kBits>(w, p.half_zero, a);
      if (i + 1 < count) read_words<Order>(words + (i + 1) * pipeline.kBatchBytes, w);
      sums.multiply(first + i, a);
      if (--left == 0 || first + i + 1 == end) {
        sums.scale_accumulate(first + i);
        left = p.scale_batches;
      }
    }
    if (first + 2 * p.half_batches < end)
      pipeline.fill(first + 2 * p.half_batches, half);
    else
      asm volatile("cp.async.commit_group;" ::: "memory");
  }
}

template <class T>
__global__ void __maxnreg__(64) gemm_skinny(const __grid_constant__ GemmArgs p) {
  using Order = typename T::Order;
  constexpr bool kInts = kIntegers<T::X>;
  constexpr int kBatchK = Order::kPackK / 2;
  extern __shared__ __align__(128) uint8_t shared[];
  skinny_let_next_kernel_start();
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row_tile = warp % p.row_tiles, depth = warp / p.row_tiles;
  const SkinnyOffsets at(p);
  const int tile = min(int(blockIdx.x) * p.row_tiles + row_tile, p.packs * 4 - 1), n0 = blockIdx.x * at.rows;
  const int begin = depth * p.warp_batches, end = min(begin + p.warp_batches, (p.k + kBatchK - 1) / kBatchK);
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const int of_warp = warp * 2 * p.half_batches * WordPipeline<Order>::kBatchBytes;
  const WordPipeline<Order> pipeline{p,
                                     p.tiles + pack_index(tile / 4, 0, p.k_blocks) * Order::kPackBytes,
                                     base,
                                     at.weights + of_warp,
                                     tile % 4 * 32 + lane,
                                     end};
  pipeline.fill(begin, 0);
  pipeline.fill(begin + p.half_batches, 1);
  skinny_stage_scales(p, base + at.scales, at.rows, n0);
  skinny_wait_for_previous_kernel();
  const SkinnyOutput output(p, at, n0, threadIdx.x);
  skinny_stage_x(p, shared + at.x, p.k * kXBytes<T::X>);
  __syncthreads();

  SkinnySums<T> sums(p, at, shared, base, row_tile, kInts && p.groups > 1 ? begin / p.slot_batches : depth);
  skinny_sum(sums, pipeline, begin);
  if constexpr (kInts) {
    if (begin >= end && p.groups == 1) skinny_put<T>(p, shared + at.sums, at.rows, sums.slot, sums.row, sums.d);
  } else {
    skinny_put<T>(p, shared + at.sums, at.rows, depth, sums.row, sums.acc);
  }
  __syncthreads();
  skinny_finish<T>(p, shared, at, n0, output);
}

}  // namespace lowbit::cuda
