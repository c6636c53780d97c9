#pragma once
// Sums of a tile of many rows over its blocks of K: products by the tensor cores, which are scaled and added to the
// results of lanes.

#include "kernels/cuda/fp8/many_rows_tiles.cuh"

namespace lowbit::cuda::fp8 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// acc += s times the scales: rows[0] and rows[1] for the columns below `edge`, rows[2] and rows[3] for the others.
template <class T>
__device__ __forceinline__ void scale_accumulate(const float (&s)[T::kSums], const float (&rows)[4], int edge,
                                                 float (&acc)[T::kSums]) {
#pragma unroll
  for (int first = 0; first < T::kQ; first += T::kOneChoice) {
    const bool second = !T::kOneScale && first >= edge;
    const float upper = second ? rows[2] : rows[0], lower = second ? rows[3] : rows[1];
#pragma unroll
    for (int i = first / 2; i < (first + T::kOneChoice) / 2; i += 4) {
      acc[i] = __fmaf_rn(s[i], upper, acc[i]);
      acc[i + 1] = __fmaf_rn(s[i + 1], upper, acc[i + 1]);
      acc[i + 2] = __fmaf_rn(s[i + 2], lower, acc[i + 2]);
      acc[i + 3] = __fmaf_rn(s[i + 3], lower, acc[i + 3]);
    }
  }
}

/// acc += s times the scales of a's two rows and b's columns, which are at `of_b` in shared memory.
template <class T>
__device__ __forceinline__ void scale_accumulate_rows(const float (&s)[T::kSums], float upper, float lower,
                                                      uint32_t of_b, float (&acc)[T::kSums]) {
#pragma unroll
  for (int j = 0; j < T::kQ / 8; ++j) {
    const float2 b = load_two_scales(of_b + 32 * j + 8 * (threadIdx.x % 4));
    acc[4 * j] = __fmaf_rn(s[4 * j] * upper, b.x, acc[4 * j]);
    acc[4 * j + 1] = __fmaf_rn(s[4 * j + 1] * upper, b.y, acc[4 * j + 1]);
    acc[4 * j + 2] = __fmaf_rn(s[4 * j + 2] * lower, b.x, acc[4 * j + 2]);
    acc[4 * j + 3] = __fmaf_rn(s[4 * j + 3] * lower, b.y, acc[4 * j + 3]);
  }
}

__device__ __forceinline__ void store_four_sums(uint32_t to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ float4 load_four_sums(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

/// A warp has read a stage, whose barrier this is.
__device__ __forceinline__ void release(uint32_t empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

/// Scales of a tile's rows of b, of one or two blocks of them: a lane has those of every 32nd block of K, and the next
/// ones are under way.
template <class T>
struct BlockScales {
  static constexpr int kRows = T::kOneScale ? 1 : 2;
  const float* from[kRows];
  float now[kRows], next[kRows];
  int blocks, end;

  __device__ __forceinline__ void begin(const DeviceGemm& g, const Order& o, const TilePlace& at) {
    const uint32_t row = divided(uint32_t(at.q0), o.of_b).x, last = divided(uint32_t(g.n - 1), o.of_b).x;
    const float* const group = g.b_scales + int64_t{at.group} * (last + 1) * g.ldb_scales + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i) from[i] = group + min(row + uint32_t(i), last) * g.ldb_scales;
    blocks = o.blocks, end = 32;
    load(now, 0), load(next, 32);
  }
  __device__ __forceinline__ void load(float (&v)[kRows], int first) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) v[i] = first + int(threadIdx.x) % 32 < blocks ? from[i][first] : 0.0f;
  }
  /// Of block b, which is not in front of the last one that was asked for. All lanes of a warp.
  __device__ __forceinline__ float2 of(int b) {
    if (b >= end) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) now[i] = next[i];
      end += 32;
      load(next, end);
    }
    const float first = __shfl_sync(0xffffffffu, now[0], b % 32);
    return {first, kRows == 1 ? 1.0f : __shfl_sync(0xffffffffu, now[kRows - 1], b % 32)};
  }
};

/// The first descriptors of a warpgroup's rows of a and of a tile's rows of b. Through a shuffle, so that they are
/// kept: the compiler would make them anew for each block.
struct FirstDescriptors {
  uint32_t p, q;
};
template <class T>
__device__ __forceinline__ FirstDescriptors first_descriptors(uint32_t base, int group) {
  return {__shfl_sync(0xffffffffu, first_descriptor(base + uint32_t(group * T::kWaves * 64 * 128)), 0),
          __shfl_sync(0xffffffffu, first_descriptor(base + T::kP * 128), 0)};
}

/// Sums of a tile's blocks of K, of one turn. While a warpgroup scales a block's products it has none for the tensor
/// cores, and the others may be at it, too: so the next stage's barrier is asked before, and its descriptors are one
/// addition.
template <class T>
__device__ __forceinline__ void sum_blocks(Pipeline<T>& pipeline, const Order& o, int group, int turn, int own,
                                           int edge, float (&acc)[T::kWaves][T::kSums]) {
  const FirstDescriptors first = first_descriptors<T>(pipeline.base, group);
  const uint32_t of_four = o.engine ? 12 : 0;  // scales of b lie in fours; bytes
  const uint32_t of_next = o.engine ? 16 : 4;  // bytes to the next row of blocks
  Pipeline<T> at = pipeline;
  int b = T::kTurns == 1 ? 0 : (turn - at.stage % T::kTurns + T::kTurns) % T::kTurns;
  if (T::kTurns > 1) at.advance(b);
  // Of the next stage, worked out while products run.
  uint32_t stage = uint32_t(at.stage * (T::kCodes / 16)), rows_at = at.scales() + 4 * own;
  uint32_t of_b = at.scales() + 4 * T::kP + (4 * b & of_four);
  if (b < o.blocks) barrier_wait(at.full(), at.phase);
#pragma unroll 1
  while (b < o.blocks) {
    const uint32_t p = first.p + stage, q = first.q + stage, empty = at.empty(), rows_here = rows_at;
    float first_b = 1, second_b = 1;
    if constexpr (!T::kRowScales) first_b = load_scale(of_b);
    if constexpr (!T::kRowScales && !T::kOneScale) second_b = load_scale(of_b + of_next);
    b += T::kTurns;
#pragma unroll
    for (int w = 0; w < T::kWaves; ++w) {
      const float upper = load_scale(rows_here + 4 * 64 * w), lower = load_scale(rows_here + 4 * (64 * w + 8));
      float s[T::kSums];
      multiply_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)
        multiply(s, descriptor_at(p, 512 * w + 2 * step), descriptor_at(q, 2 * step), step > 0);
      multiply_commit();
      const bool last = w + 1 == T::kWaves;
      const uint32_t of_b_rows = rows_here - 4 * own + 4 * T::kP;
      if (last) {
        at.template next<T::kTurns>();
        stage = uint32_t(at.stage * (T::kCodes / 16)), rows_at = at.scales() + 4 * own;
        of_b = at.scales() + 4 * T::kP + (4 * b & of_four);
      }
      const float rows[4] = {upper * first_b, lower * first_b, upper * second_b, lower * second_b};
      multiply_wait();
      if constexpr (T::kRowScales) scale_accumulate_rows<T>(s, upper, lower, of_b_rows, acc[w]);
      bool ready = true;
      if (last) {
        release(empty);
        ready = barrier_ready(at.full(), at.phase, b < o.blocks);
      }
      if constexpr (!T::kRowScales) scale_accumulate<T>(s, rows, edge, acc[w]);
      if (!ready) barrier_wait(at.full(), at.phase);
    }
  }
  pipeline.advance(o.blocks);
}

/// Sums of a tile's blocks of K where a lane has registers for two sets of products: those of the next block are under
/// way while one is scaled and added, so that a warpgroup always has some for the tensor cores.
template <class T>
__device__ __forceinline__ void sum_blocks_ahead(Pipeline<T>& pipeline, const Order& o, BlockScales<T>& b_scales,
                                                 int group, int own, int edge, float (&acc)[T::kSums]) {
  const FirstDescriptors first = first_descriptors<T>(pipeline.base, group);
  struct Products {
    float s[T::kSums];
    float rows[4];
    uint32_t empty;
  };
  Pipeline<T> at = pipeline;
  const auto ask = [&](Products& of, int b) {
    barrier_wait(at.full(), at.phase);
    const uint32_t stage = uint32_t(at.stage * (T::kCodes / 16)), p = first.p + stage, q = first.q + stage;
    multiply_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply(of.s, descriptor_at(p, 2 * step), descriptor_at(q, 2 * step), step > 0);
    multiply_commit();
    const uint32_t of_rows = at.scales() + 4 * own;
    const float upper = load_scale(of_rows), lower = load_scale(of_rows + 4 * 8);
    const float2 of_b = b_scales.of(b);
    of.rows[0] = upper * of_b.x, of.rows[1] = lower * of_b.x;
    of.rows[2] = upper * of_b.y, of.rows[3] = lower * of_b.y;
    of.empty = at.empty();
    at.next();
  };
  const auto add = [&](Products& of) {
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) asm volatile("" : "+f"(of.s[i])::"memory");  // not before the products are there
    release(of.empty);
    scale_accumulate<T>(of.s, of.rows, edge, acc);
  };
  Products even, odd;
  ask(even, 0);
  int b = 1;
#pragma unroll 1
  for (; b + 1 < o.blocks; b += 2) {
    ask(odd, b);
    multiply_wait<1>();
    add(even);
    ask(even, b + 1);
    multiply_wait<1>();
    add(odd);
  }
  if (b < o.blocks) {
    ask(odd, b);
    multiply_wait<1>();
    add(even);
    multiply_wait();
    add(odd);
  } else {
    multiply_wait();
    add(even);
  }
  pipeline.advance(o.blocks);
}

/// The sums of both turns, in the first one's lanes.
template <class T>
__device__ __forceinline__ void add_turns(uint32_t parts, int turn, float (&acc)[T::kSums]) {
  constexpr int kTaken = 1, kThere = 2, kBoth = 256;
  const uint32_t own = parts + 16 * (threadIdx.x % 128);
  if (turn > 0) {
    named_barrier(kTaken, kBoth);
#pragma unroll
    for (int i = 0; i < T::kSums; i += 4) store_four_sums(own + 512 * i, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
    named_arrive(kThere, kBoth);
    return;
  }
  named_arrive(kTaken, kBoth);
  named_barrier(kThere, kBoth);
#pragma unroll
  for (int i = 0; i < T::kSums; i += 4) {
    const float4 other = load_four_sums(own + 512 * i);
    acc[i] += other.x, acc[i + 1] += other.y, acc[i + 2] += other.z, acc[i + 3] += other.w;
  }
}

#endif

}  // namespace lowbit::cuda::fp8
