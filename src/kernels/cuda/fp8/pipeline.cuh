#pragma once
// The pipeline of stages in shared memory that all tensor-core products of FP8 codes use; one warp fills it. A stage is
// 128 columns of K of kP rows that give wgmma's 64 rows and kQ rows that give its columns, and the scales of these
// columns.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/fp8/gemm_wgmma.h"
#include "kernels/cuda/fp8/wgmma.cuh"

namespace lowbit::cuda::fp8 {

/// Shared memory of a kernel. ScaleRows: rows of a; BScales: scales of b, two of blocks of 128 rows, one of each row or
/// none; in room for BRoom; Bytes: what a thread block may have. Stages come in multiples of Turns.
template <int P, int Q, int ScaleRows, int BScales, int Bytes, int Turns = 1, int BRoom = (BScales + 3) / 4 * 4>
struct RingLayout {
  static constexpr int kP = P, kQ = Q, kScaleRows = ScaleRows, kBScales = BScales;
  static constexpr int kCodes = (kP + kQ) * 128, kScales = 4 * (kScaleRows + BRoom);
  static constexpr int kMostStages = 16;
  static constexpr int kFit = (Bytes - 1024) / (kCodes + kScales + 16),
                       kStages = (kFit < kMostStages ? kFit : kMostStages) / Turns * Turns;
  static constexpr int kScalesAt = kStages * kCodes, kBarriersAt = kScalesAt + kStages * kScales;
  static constexpr int kShared = 1024 + kBarriersAt + 16 * kStages;
  static_assert(kStages > 1 && kCodes % 1024 == 0 && kScales % 16 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Whether a phase is over, which takes a moment to know, so asked ahead of barrier_wait(): the wait then costs
/// nothing. `ask` false: nothing is asked, and the answer is yes.
__device__ __forceinline__ bool barrier_ready(uint32_t barrier, uint32_t parity, bool ask) {
  uint32_t ready;
  asm volatile(
      "{ .reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "setp.eq.u32 q, %3, 0;\n"
      "@p mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\n"
      "selp.u32 %0, 1, 0, q; }"
      : "=r"(ready)
      : "r"(barrier), "r"(parity), "r"(uint32_t(ask))
      : "memory");
  return ready != 0;
}

template <class L>
struct Pipeline {
  uint32_t base;
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ uint32_t p() const { return base + uint32_t(stage * L::kCodes); }
  __device__ __forceinline__ uint32_t q() const { return p() + L::kP * 128; }
  __device__ __forceinline__ uint32_t scales() const { return base + uint32_t(L::kScalesAt + stage * L::kScales); }
  __device__ __forceinline__ uint32_t full() const { return base + uint32_t(L::kBarriersAt + 16 * stage); }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  template <int Stages = 1>
  __device__ __forceinline__ void next() {
    static_assert(Stages <= L::kStages);
    stage += Stages;
    if (stage >= L::kStages) stage -= L::kStages, phase ^= 1;
  }
  __device__ __forceinline__ void advance(int stages) {
    const int to = stage + stages;
    stage = to % L::kStages, phase ^= uint32_t(to / L::kStages) & 1;
  }
  /// By one thread. A stage is full when `arrivals` have come, those of 32 lanes' scales unless the copy engine fetches
  /// them with the codes; empty when `readers` warps have said so.
  __device__ __forceinline__ void init(uint32_t readers, uint32_t arrivals = 1 + 32) const {
    for (Pipeline at{base}; at.phase == 0; at.next()) {
      barrier_init(at.full(), arrivals);
      barrier_init(at.empty(), readers);
    }
    barrier_init_done();
    fence_async();
  }
};

__device__ __forceinline__ void copy_scale(uint32_t to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/// Counts as an arrival when this lane's copies so far are done.
__device__ __forceinline__ void copies_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ float load_scale(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ float2 load_two_scales(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

/// Of a's rows from row0 on those whose scales one copy may fetch: all that are there of a tile of `rows`, or none.
__device__ __forceinline__ int rows_in_bulk(const DeviceGemm& g, int64_t row0, int rows) {
  const int there = int(min(int64_t{rows}, g.m - row0));
  const bool aligned = g.lda_scales % 4 == 0 && reinterpret_cast<uintptr_t>(g.a_scales) % 16 == 0;
  return g.a_scales_by_column && aligned && row0 % 4 == 0 && there % 4 == 0 ? there : 0;
}

/// A lane's share of a tile's scales: those of a's rows from row0 on, and behind them those of a group's b, of its rows
/// from col0 on or of their blocks. Rows that are not there take the last one's: what they scale is never stored.
template <class L>
struct ScaleCopies {
  static constexpr int kEach = (L::kScaleRows + 31) / 32, kEachOfB = L::kBScales > 0 ? (L::kBScales + 31) / 32 : 1;
  const float *a, *b;
  uint32_t from[kEach], from_b[kEachOfB], step;  // elements; gemm_fp8_wgmma() refuses more than 32 bits
  __device__ __forceinline__ ScaleCopies(const DeviceGemm& g, int row0, int col0, int group) {
    const int lane = threadIdx.x % 32;
    const auto row_step = static_cast<uint32_t>(g.a_scales_by_column ? 1 : g.lda_scales);
    a = g.a_scales;
    step = static_cast<uint32_t>(g.a_scales_by_column ? g.lda_scales : 1);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      from[i] = static_cast<uint32_t>(min(int64_t{row0} + lane + 32 * i, g.m - 1)) * row_step;
    // Of 32 bits: a division of 64 takes longer than a stage.
    const uint32_t last = uint32_t(g.n - 1) / uint32_t(g.b_rows), first = uint32_t(col0) / uint32_t(g.b_rows);
    b = g.b_scales + int64_t{group} * (last + 1) * g.ldb_scales;
#pragma unroll
    for (int i = 0; i < kEachOfB; ++i)
      from_b[i] = min(first + uint32_t(lane + 32 * i), last) * static_cast<uint32_t>(g.ldb_scales);
  }
  __device__ __forceinline__ void copy(uint32_t to, int block) const {
    copy_a(to, block);
    copy_b(to, block);
  }
  __device__ __forceinline__ void copy_a(uint32_t to, int block) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (L::kScaleRows % 32 == 0 || lane + 32 * i < L::kScaleRows)
        copy_scale(to + 4 * (lane + 32 * i), a + (from[i] + uint32_t(block) * step));
  }
  __device__ __forceinline__ void copy_b(uint32_t to, int block) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEachOfB; ++i)
      if (L::kBScales % 32 == 0 || lane + 32 * i < L::kBScales)
        copy_scale(to + 4 * (L::kScaleRows + lane + 32 * i), b + (from_b[i] + uint32_t(block)));
  }
};

// ---- Results

template <bool F16>
__device__ __forceinline__ uint32_t two_halves(float low, float high) {
  uint32_t w;
  if constexpr (F16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
  return w;
}
__device__ __forceinline__ uint32_t two_halves(Fp8Element e, float low, float high) {
  return e == Fp8Element::kF16 ? two_halves<true>(low, high) : two_halves<false>(low, high);
}
/// Rows of c end with `end`.
__device__ __forceinline__ void store_one(const DeviceGemm& g, int64_t end, int64_t i, int64_t j, float v) {
  if (i >= end || j >= g.n) return;
  const int64_t at = i * g.ldc + j;
  if (g.element == Fp8Element::kF32)
    static_cast<float*>(g.c)[at] = v;
  else
    static_cast<uint16_t*>(g.c)[at] = static_cast<uint16_t>(two_halves(g.element, v, v));
}

#endif

}  // namespace lowbit::cuda::fp8
