#pragma once
// The pipeline for one row of x, on every architecture from sm_80 on. A block is 16 rows of weights, its warps share K. A warp
// works alone until its sums are done: it copies its own weights, scales and columns of x.
//
// Shapes:   any n, k and alignment of x; groups of 64 columns (f16, bf16: 32) or multiples.
// Memory:   weights of kOneRowRing blocks of K are on their way per warp, asked for before the previous kernel has ended.
// x:        in shared memory as lanes want it: [block of K][lane t][word], so that 32 bytes are all that a lane needs of a block.
// Numerics: as gemm_few.cuh.
// Limits:   instructions: all that does not depend on the block of K is worked out once, and nothing is divided.

#include "kernels/cuda/gemm/gemm_few.cuh"

namespace lowbit::cuda {

/// Shared memory: sums [slots][16 rows] behind the scales [groups][16 rows].
struct OneRowLane {
  int lane, warp, t, row;  // row: the first of this lane's two
  int first, pairs;        // blocks of K: of this warp, and how many (0 or less: none)
  __device__ explicit OneRowLane(const GemmArgs& p)
      : lane(threadIdx.x & 31),
        warp(__shfl_sync(0xffffffffu, int(threadIdx.x) >> 5, 0)),  // the compiler sees that it is one for all lanes
        t(threadIdx.x & 3),
        row((threadIdx.x >> 2 & 7) * 2),
        first(warp * p.warp_blocks),
        pairs(min(p.warp_blocks, p.unit_blocks - first)) {}
};

/// Columns of x of this warp's blocks: word w of 16 bytes j of a block is word 8 w + j here. Zeros behind the row's end.
__device__ __forceinline__ void one_row_stage_x(const GemmArgs& p, const OneRowLane& at, uint32_t* to, int row_bytes) {
  const auto* const x = static_cast<const uint8_t*>(p.x);
  for (int c = at.lane; c < 8 * at.pairs; c += 32) {
    const int byte = (8 * at.first + c) * 16;
    uint4 v;
    if (p.x_aligned && byte + 16 <= row_bytes)
      v = *reinterpret_cast<const uint4*>(x + byte);
    else
      v = {x_word(x, byte, row_bytes), x_word(x, byte + 4, row_bytes), x_word(x, byte + 8, row_bytes),
           x_word(x, byte + 12, row_bytes)};
    uint32_t* const place = to + (at.first + (c >> 3)) * 32 + (c & 7);
    place[0] = v.x, place[8] = v.y, place[16] = v.z, place[24] = v.w;
  }
  __syncwarp();
}

/// What a thread that finishes a row needs, asked for long before.
template <GemmActivation X>
struct OneRowEnd {
  bool mine;
  int n, terms = 0;
  float bias = 0.0f, scale = 1.0f, xs = 1.0f;
  __device__ OneRowEnd(const GemmArgs& p, int n0)
      : mine(threadIdx.x < 16 && n0 + int(threadIdx.x) < p.n), n(n0 + threadIdx.x) {
    if (!mine) return;
    if (p.bias != nullptr) bias = __ldg(p.bias + n);
    if (kIntegers<X> && p.groups == 1) scale = __ldg(p.scales + n);
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
__device__ __forceinline__ void one_row_words(const uint8_t* from, uint32_t* w) {
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

/// The fold over groups, or the sum over warps, and the output.
template <GemmActivation X, int Bits>
__device__ __forceinline__ void one_row_finish(const GemmArgs& p, const uint8_t* shared, const OneRowEnd<X>& end) {
  const int r = threadIdx.x;
  const auto* const sums = reinterpret_cast<const float*>(shared + p.sums_at) + r;
  const auto* const scales = reinterpret_cast<const float*>(shared) + r;
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
  }
  few_store(p, end.n, finished<X>(acc, end.xs, end.bias));
}

template <class T>
__global__ void __maxnreg__(48) gemm_one_row(const __grid_constant__ GemmArgs p) {
  using Order = typename T::Order;
  using Sum = typename T::Sum;
  constexpr bool kInts = kIntegers<T::X>;
  constexpr int kWords = Order::kLaneWords, kLoad = kWords < 4 ? 4 * kWords : 16, kLoads = kWords < 4 ? 1 : kWords / 4;
  constexpr int kBatchBytes = 128 * kWords, kNextBlock = kPanelUnits * Order::kUnitBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  few_let_next_kernel_start();
  const OneRowLane at(p);
  const int tile = blockIdx.x, n0 = 16 * tile;
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  // Weights: a lane's own, to where it reads them.
  const uint8_t* from = p.tiles + unit_index(tile >> 2, at.first, p.unit_blocks) * Order::kUnitBytes +
                        ((tile & 3) * 32 + at.lane) * kLoad;
  const int ring_at = p.weights_at + at.warp * (p.ring * 2 * kBatchBytes) + at.lane * kLoad;
  auto ask = [&](int slot) {
    const uint32_t to = base + ring_at + slot * (2 * kBatchBytes);
#pragma unroll
    for (int i = 0; i < 2 * kLoads; ++i) {
      const uint8_t* const source = from + i * (kUnitLanes * kLoad);
      if constexpr (kLoad == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 512), "l"(source) : "memory");
      else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to + i * kBatchBytes), "l"(source), "n"(kLoad)
                     : "memory");
    }
    from += kNextBlock;
  };
  // Scales of this warp's groups: 16 rows are 64 aligned bytes, and rows behind the last one have scales too.
  const int g0 = at.warp * p.warp_groups;
  int warp_groups = min(p.warp_groups, p.groups - g0);
  if (p.groups > 1)
    for (int i = at.lane; i < 4 * warp_groups; i += 32)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + (4 * g0 + i) * 16),
                   "l"(p.scales + int64_t(g0 + (i >> 2)) * p.n_padded + n0 + 4 * (i & 3))
                   : "memory");
#pragma unroll
  for (int i = 0; i < kOneRowRing; ++i) {
    if (i < at.pairs) ask(i);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  OneRowEnd<T::X> end(p, n0);
  float2 s = {1.0f, 1.0f};
  if (!kInts && p.groups == 1) s = __ldg(reinterpret_cast<const float2*>(p.scales + n0 + at.row));

  few_wait_for_previous_kernel();
  end.ask_for_x(p);
  auto* const x = reinterpret_cast<uint32_t*>(shared + p.x_at);
  one_row_stage_x(p, at, x, p.k * kXBytes<T::X>);

  Sum d[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};  // of the even and the odd batches
  float acc[2] = {0.0f, 0.0f};
  const bool odd = p.groups > 1 && p.slot_batches % 2 != 0;  // groups may end between the two batches of a block
  int left = p.slot_batches, slot = kInts && p.groups > 1 ? g0 : at.warp;
  const auto* scales = reinterpret_cast<const float2*>(shared + (g0 * 16 + at.row) * 4);
  auto clear = [](Sum(&v)[4]) { v[0] = v[1] = v[2] = v[3] = 0; };
  auto put = [&](auto first, auto second) {
    struct alignas(8) Pair {
      decltype(first) a, b;
    };
    if (at.t == 0) *reinterpret_cast<Pair*>(shared + p.sums_at + (slot * 16 + at.row) * 4) = {first, second};
  };
  auto put_group = [&] {  // integers: the exact sums of a group
    if (slot < p.groups) put(any_sum<T::X, T::kBits>(d[0] + e[0]), any_sum<T::X, T::kBits>(d[2] + e[2]));
    ++slot;
    left = p.slot_batches;
    clear(d), clear(e);
  };
  auto next_group = [&] {  // halves
    left = p.slot_batches;
    if (--warp_groups > 0) scales += 8;
  };
  auto scaled = [&](Sum first, Sum second) {  // halves
    acc[0] = __fmaf_rn(first, s.x, acc[0]), acc[1] = __fmaf_rn(second, s.y, acc[1]);
  };
  const uint8_t* const ring = shared + ring_at;
  const uint32_t* own_x = x + at.first * 32 + 8 * at.t;
  int i = 0;
  if constexpr (!kInts) {
    // Groups of 128 columns or multiples, or one: two blocks of K are folded at once, and nothing is decided in between.
    static_assert(kOneRowRing % 2 == 0);
    const int twos = p.groups == 1 || p.slot_batches % 4 == 0 ? at.pairs & ~1 : 0;
#pragma unroll 1
    for (; i < twos; i += 2, own_x += 64) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kOneRowRing - 2) : "memory");
      if (p.groups > 1) {
        __syncwarp();  // scales come by other lanes
        s = *scales;
      }
      const int slot0 = i % kOneRowRing;
      const uint8_t* const here = ring + slot0 * (2 * kBatchBytes);
      uint32_t w[4][kWords];
#pragma unroll
      for (int b = 0; b < 4; ++b) one_row_words<kWords>(here + b * kBatchBytes, w[b]);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        uint32_t a[8];
        const uint4 of_x = *reinterpret_cast<const uint4*>(own_x + b / 2 * 32 + b % 2 * 4);
        decode<T::X, T::kBits>(w[b], p.half_zero, a);
        mma<T::X>(b % 2 == 0 ? d : e, a, of_x.x, of_x.y);
        mma<T::X>(b % 2 == 0 ? d : e, a + 4, of_x.z, of_x.w);
      }
      if (i + kOneRowRing < at.pairs) ask(slot0);
      asm volatile("cp.async.commit_group;" ::: "memory");
      if (i + 1 + kOneRowRing < at.pairs) ask(slot0 + 1);
      asm volatile("cp.async.commit_group;" ::: "memory");
      scaled(d[0] + e[0], d[2] + e[2]);
      clear(d), clear(e);
      if ((left -= 4) == 0) next_group();
    }
  }
#pragma unroll 1
  for (; i < at.pairs; ++i, own_x += 32) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kOneRowRing - 1) : "memory");
    if (!kInts && p.groups > 1) {
      __syncwarp();  // scales come by other lanes
      s = *scales;
    }
    const uint8_t* const here = ring + i % kOneRowRing * (2 * kBatchBytes);
    uint32_t w[2][kWords], a[8];
#pragma unroll
    for (int b = 0; b < 2; ++b) one_row_words<kWords>(here + b * kBatchBytes, w[b]);
    const uint4 x0 = reinterpret_cast<const uint4*>(own_x)[0], x1 = reinterpret_cast<const uint4*>(own_x)[1];
    decode<T::X, T::kBits>(w[0], p.half_zero, a);
    mma<T::X>(d, a, x0.x, x0.y);
    mma<T::X>(d, a + 4, x0.z, x0.w);
    if (kInts && odd && --left == 0) put_group();
    decode<T::X, T::kBits>(w[1], p.half_zero, a);
    mma<T::X>(e, a, x1.x, x1.y);
    mma<T::X>(e, a + 4, x1.z, x1.w);
    if (i + kOneRowRing < at.pairs) ask(i % kOneRowRing);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if constexpr (kInts) {
      left -= odd ? 1 : 2;
      if (p.groups > 1 && (left == 0 || i + 1 == at.pairs)) put_group();
    } else if (!odd) {
      scaled(d[0] + e[0], d[2] + e[2]);
      clear(d), clear(e);
      if ((left -= 2) == 0) next_group();
    } else {
      scaled(d[0], d[2]);
      if (--left == 0) next_group(), s = *scales;
      scaled(e[0], e[2]);
      if (--left == 0) next_group();
      clear(d), clear(e);
    }
  }
  if constexpr (!kInts)
    put(acc[0], acc[1]);
  else if (p.groups == 1)
    put(d[0] + e[0], d[2] + e[2]);
  asm volatile("cp.async.wait_all;" ::: "memory");  // scales
  __syncthreads();
  if (end.mine) one_row_finish<T::X, T::kBits>(p, shared, end);
}

template <GemmActivation X, int Bits, int ColumnTiles>
constexpr FewKernel few_kernel() {
  using T = FewTile<X, Bits, ColumnTiles>;
  if constexpr (ColumnTiles == 0)
    return {X, Bits, T::kRows, reinterpret_cast<const void*>(&gemm_one_row<T>)};
  else
    return {X, Bits, T::kRows, reinterpret_cast<const void*>(&gemm_few<T>)};
}

}  // namespace lowbit::cuda
