#pragma once
// Many rows of f16 or bf16: an RMS norm, then E4M3 codes, by thread blocks that stay, one on a multiprocessor.
//
// Shapes:   rows come to slots of shared memory in turn: a thread fetches them, some warps add up the squares of a row
//           each, and teams of warps make the codes, Count blocks of 128 columns a warp: always the same columns, whose
//           weights it keeps in registers.
// Memory:   the copy engine brings a row at once. As few rows are asked for at a time as keep memory busy: they all come
//           at about the same time, and until then there is nothing to compute.
// Limits:   memory; at a launch's end one row's sums and codes.

#include "kernels/cuda/fp8/normed_codes.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/team_barrier.cuh"

namespace lowbit::cuda::fp8 {

/// How the warps of a thread block are used whose codes are made Count blocks a warp, measured: a warp of fewer blocks
/// needs fewer registers, and rows of fewer blocks need more sums.
template <int Count>
struct RingWarps {
  static constexpr int kCodes = Count == 8 ? 10 : 16, kSums = Count == 8 ? 5 : 3, kAll = kCodes + kSums + 1;
};
constexpr int kMostSlots = 32;

/// How a thread block is divided. A slot always has the same team and the same warp for its sums: else one that is late
/// would take a barrier's phase before the last for the next.
struct NormedRing {
  int blocks = 0;            // of 128 columns, a warp; 0: rows do not fit
  int warps = 0, teams = 0;  // of a team; teams
  int slots = 0;             // rows in shared memory, a multiple of `teams` and of the warps for sums
  int asked = 0;             // rows that are on their way at a time, at most
};

/// Bytes in front of the slots: barriers, and 1 / rms of the slots' rows.
constexpr int kRingRows = (3 * 8 + 4) * kMostSlots;
static_assert(kRingRows % 128 == 0);
inline int64_t normed_ring_bytes(int64_t columns, int64_t slots) {
  return kRingRows + 2 * slots * padded_norm_columns(static_cast<int>(columns));
}

#if LOWBIT_SM90

/// A thread block's shared memory.
struct RingMemory {
  uint32_t full, summed, empty;  // barriers of the first slot; those of the next are 8 bytes on
  float* factors;                // 1 / rms
  uint16_t* rows;
  int room;  // of a row, in elements
  __device__ __forceinline__ RingMemory(uint8_t* bytes, int columns)
      : full(shared_address(bytes)),
        summed(full + 8 * kMostSlots),
        empty(summed + 8 * kMostSlots),
        factors(reinterpret_cast<float*>(bytes + 3 * 8 * kMostSlots)),
        rows(reinterpret_cast<uint16_t*>(bytes + kRingRows)),
        room(padded_norm_columns(columns)) {}
};

struct RingSlot {
  int at;
  uint32_t phase = 0;
  __device__ __forceinline__ void next(int step, int slots) {
    if ((at += step) >= slots) at -= slots, phase ^= 1;
  }
};

/// 1 / rms of a row in shared memory with zeros behind it, by a warp.
template <Fp8Element E>
__device__ __forceinline__ float row_inverse_rms(const uint16_t* row, int columns, float eps) {
  constexpr int kAhead = kNormRound / kNormSums;
  const uint16_t* at = row + threadIdx.x % 32 * 4;
  NormSums sums;
  uint2 v[kAhead];
  const auto load = [&](int i) { v[i] = *reinterpret_cast<const uint2*>(at + i * kNormSums); };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i);
#pragma unroll 1
  for (int left = columns - kNormRound; left > 0; left -= kNormRound) {
    at += kNormRound;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      sums.add(four_halves<E>(v[i]));
      load(i);
    }
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) sums.add(four_halves<E>(v[i]));
  return sums.inverse_rms(columns, eps);
}

/// By one thread.
__device__ __forceinline__ void fetch_rows(const Fp8Quant& q, const RingMemory& in, const NormedRing& ring) {
  const auto bytes = 2 * static_cast<uint32_t>(q.columns);
  RingSlot to{0}, first_asked{0};
  int asked = 0;
  for (int64_t row = blockIdx.x; row < q.rows; row += gridDim.x, to.next(1, ring.slots)) {
    if (asked++ >= ring.asked) {
      barrier_wait(in.full + 8 * first_asked.at, first_asked.phase);
      first_asked.next(1, ring.slots);
    }
    barrier_wait(in.empty + 8 * to.at, to.phase ^ 1);  // of a slot's first row: over
    barrier_expect(in.full + 8 * to.at, bytes);
    copy_bulk(shared_address(in.rows + to.at * in.room), static_cast<const uint16_t*>(q.x) + row * q.ldx, bytes,
              in.full + 8 * to.at);
  }
}

/// Every `step`-th row from row `first` of the thread block's on.
template <Fp8Element E>
__device__ __forceinline__ void sum_rows(const Fp8Quant& q, const RingMemory& in, const NormedRing& ring, int first,
                                         int step) {
  RingSlot slot{first};
  for (int64_t row = blockIdx.x + int64_t{gridDim.x} * first; row < q.rows;
       row += int64_t{gridDim.x} * step, slot.next(step, ring.slots)) {
    barrier_wait(in.full + 8 * slot.at, slot.phase);
    const float by = row_inverse_rms<E>(in.rows + slot.at * in.room, static_cast<int>(q.columns), q.norm_eps);
    if (threadIdx.x % 32 != 0) continue;
    in.factors[slot.at] = by;
    barrier_arrive(in.summed + 8 * slot.at);
    barrier_arrive(in.empty + 8 * slot.at);
  }
}

/// Warp `warp` of team `team`. kAll: the teams have as many blocks as a row.
template <Fp8Element E, int Count, bool kAll>
__device__ __forceinline__ void code_rows(const Fp8Quant& q, const RingMemory& in, const NormedRing& ring, int team,
                                          int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = static_cast<int>(q.columns);
  const int first = warp * Count * kFp8Block + 4 * lane;
  const auto there = [&](int i) { return kAll || first + i * kFp8Block < columns; };
  float4 weights[Count] = {};
#pragma unroll
  for (int i = 0; i < Count; ++i)
    if (there(i)) weights[i] = *reinterpret_cast<const float4*>(q.norm_weight + first + i * kFp8Block);
  const int64_t apart = int64_t{gridDim.x} * ring.teams;
  int64_t row = blockIdx.x + int64_t{gridDim.x} * team;
  NormedPlace to = normed_place<kFp8Block>(q, row, first);
  for (RingSlot slot{team}; row < q.rows; row += apart, slot.next(ring.teams, ring.slots)) {
    const uint16_t* const from = in.rows + slot.at * in.room + first;
    uint2 x[Count];
    barrier_wait(in.full + 8 * slot.at, slot.phase);
#pragma unroll
    for (int i = 0; i < Count; ++i)
      x[i] = there(i) ? *reinterpret_cast<const uint2*>(from + i * kFp8Block) : uint2{0, 0};
    barrier_wait(in.summed + 8 * slot.at, slot.phase);
    const float by = in.factors[slot.at];
    __syncwarp();
    if (lane == 0) barrier_arrive(in.empty + 8 * slot.at);
    code_blocks<E, Count, kFp8Block, kAll>(
        to, q.power_of_two, by, first, columns, false, [&](int i, int) { return x[i]; },
        [&](int i, int) { return weights[i]; }, [](int, int) {});
    to.codes += apart * q.ldcodes;
    to.scales += apart * (q.scales_by_column ? 1 : q.ldscales);
    if (lane == 0 && row == q.rows - 1)
      for (int i = 0; i < Count && there(i); ++i) clear_padding(q, q.rows, row, first / kFp8Block + i);
  }
}

#endif

template <Fp8Element E, int Count, bool kAll>
__global__ void __launch_bounds__(32 * RingWarps<Count>::kAll, 1)
    quantize_normed_ring(const __grid_constant__ Fp8Quant q, const __grid_constant__ NormedRing ring) {
#if LOWBIT_SM90
  LOWBIT_DYNAMIC_SHARED(bytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, code_warps = ring.warps * ring.teams;
  const int columns = static_cast<int>(q.columns), threads = 32 * (code_warps + RingWarps<Count>::kSums + 1);
  const RingMemory in(bytes, columns);
  if (thread == 0) {
    for (int i = 0; i < ring.slots; ++i) {
      barrier_init(in.full + 8 * i, 1);
      barrier_init(in.summed + 8 * i, 1);
      barrier_init(in.empty + 8 * i, static_cast<uint32_t>(ring.warps) + 1);
    }
    barriers_visible_to_copies();
  }
  for (int slot = 0; slot < ring.slots; ++slot)
    for (int i = columns + thread; i < in.room; i += threads) in.rows[slot * in.room + i] = 0;
  __syncthreads();
  let_successor_start();
  for (int i = 32 * thread; i < columns; i += 32 * threads) prefetch_to_l2(q.norm_weight + i);  // new ones are seen
  wait_for_predecessor();
  if (warp < code_warps)
    code_rows<E, Count, kAll>(q, in, ring, warp / ring.warps, warp % ring.warps);
  else if (warp < code_warps + RingWarps<Count>::kSums)
    sum_rows<E>(q, in, ring, warp - code_warps, RingWarps<Count>::kSums);
  else if (thread % 32 == 0)
    fetch_rows(q, in, ring);
#endif
}

}  // namespace lowbit::cuda::fp8
