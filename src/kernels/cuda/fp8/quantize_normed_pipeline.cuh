#pragma once
// Many rows of f16 or bf16: an RMS norm, then E4M3 codes, by thread blocks that stay, one on a multiprocessor.
//
// Shapes:   rows come to stages of shared memory in turn: a thread fetches them, some warps add up the squares of a row
//           each, and teams of warps make the codes, Count blocks of 128 columns a warp: always the same columns, whose
//           weights it keeps in registers.
// Memory:   the copy engine brings a row at once. As few rows are asked for at a time as keep memory busy: they all
//           come at about the same time, and until then there is nothing to compute.
// Limits:   memory; at a launch's end one row's sums and codes.

#include "kernels/cuda/fp8/normed_codes.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/team_barrier.cuh"

namespace lowbit::cuda::fp8 {

/// Of a thread block whose warps make codes of Count blocks: the more blocks the more registers, and narrow rows need
/// more sums. Measured.
template <int Count>
struct PipelineWarps {
  static constexpr int kCodes = Count == 8 ? 10 : 16, kSums = Count == 8 ? 5 : 3, kAll = kCodes + kSums + 1;
};
constexpr int kMostStages = 32;

/// How a thread block is divided. A stage always has the same team and the same warp for its sums: else one that is
/// late would take a barrier's phase before the last for the next.
struct NormedPipeline {
  int blocks = 0;            // of 128 columns, a warp; 0: rows do not fit
  int warps = 0, teams = 0;  // of a team; teams
  int stages = 0;            // rows in shared memory, a multiple of `teams` and of the warps for sums
  int asked = 0;             // rows that are on their way at a time, at most
};

/// Bytes in front of the stages: barriers, and 1 / rms of the stages' rows.
constexpr int kStageRows = (3 * 8 + 4) * kMostStages;
static_assert(kStageRows % 128 == 0);
inline int64_t normed_pipeline_bytes(int64_t columns, int64_t stages) {
  return kStageRows + 2 * stages * padded_norm_columns(static_cast<int>(columns));
}

#if LOWBIT_SM90

/// A thread block's shared memory.
struct StageMemory {
  uint32_t full, summed, empty;  // barriers of the first stage; those of the next are 8 bytes on
  float* factors;                // 1 / rms
  uint16_t* rows;
  int room;  // of a row, in elements
  __device__ __forceinline__ StageMemory(uint8_t* bytes, int columns)
      : full(shared_address(bytes)),
        summed(full + 8 * kMostStages),
        empty(summed + 8 * kMostStages),
        factors(reinterpret_cast<float*>(bytes + 3 * 8 * kMostStages)),
        rows(reinterpret_cast<uint16_t*>(bytes + kStageRows)),
        room(padded_norm_columns(columns)) {}
};

struct StageAt {
  int at;
  uint32_t phase = 0;
  __device__ __forceinline__ void next(int step, int stages) {
    if ((at += step) >= stages) at -= stages, phase ^= 1;
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
__device__ __forceinline__ void fetch_rows(const Fp8Quant& q, const StageMemory& in, const NormedPipeline& pipeline) {
  const auto bytes = 2 * static_cast<uint32_t>(q.columns);
  StageAt to{0}, first_asked{0};
  int asked = 0;
  for (int64_t row = blockIdx.x; row < q.rows; row += gridDim.x, to.next(1, pipeline.stages)) {
    if (asked++ >= pipeline.asked) {
      barrier_wait(in.full + 8 * first_asked.at, first_asked.phase);
      first_asked.next(1, pipeline.stages);
    }
    barrier_wait(in.empty + 8 * to.at, to.phase ^ 1);  // of a stage's first row: over
    barrier_expect(in.full + 8 * to.at, bytes);
    copy_bulk(shared_address(in.rows + to.at * in.room), static_cast<const uint16_t*>(q.x) + row * q.ldx, bytes,
              in.full + 8 * to.at);
  }
}

/// Every `step`-th row from row `first` of the thread block's on.
template <Fp8Element E>
__device__ __forceinline__ void sum_rows(const Fp8Quant& q, const StageMemory& in, const NormedPipeline& pipeline,
                                         int first, int step) {
  StageAt stage{first};
  for (int64_t row = blockIdx.x + int64_t{gridDim.x} * first; row < q.rows;
       row += int64_t{gridDim.x} * step, stage.next(step, pipeline.stages)) {
    barrier_wait(in.full + 8 * stage.at, stage.phase);
    const float by = row_inverse_rms<E>(in.rows + stage.at * in.room, static_cast<int>(q.columns), q.norm_eps);
    if (threadIdx.x % 32 != 0) continue;
    in.factors[stage.at] = by;
    barrier_arrive(in.summed + 8 * stage.at);
    barrier_arrive(in.empty + 8 * stage.at);
  }
}

/// Warp `warp` of team `team`. kAll: the teams have as many blocks as a row.
template <Fp8Element E, int Count, bool kAll>
__device__ __forceinline__ void code_rows(const Fp8Quant& q, const StageMemory& in, const NormedPipeline& pipeline,
                                          int team, int warp) {
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = static_cast<int>(q.columns);
  const int first = warp * Count * kFp8Block + 4 * lane;
  const auto there = [&](int i) { return kAll || first + i * kFp8Block < columns; };
  float4 weights[Count] = {};
#pragma unroll
  for (int i = 0; i < Count; ++i)
    if (there(i)) weights[i] = *reinterpret_cast<const float4*>(q.norm_weight + first + i * kFp8Block);
  const int64_t apart = int64_t{gridDim.x} * pipeline.teams;
  int64_t row = blockIdx.x + int64_t{gridDim.x} * team;
  NormedPlace to = normed_place<kFp8Block>(q, row, first);
  for (StageAt stage{team}; row < q.rows; row += apart, stage.next(pipeline.teams, pipeline.stages)) {
    const uint16_t* const from = in.rows + stage.at * in.room + first;
    uint2 x[Count];
    barrier_wait(in.full + 8 * stage.at, stage.phase);
#pragma unroll
    for (int i = 0; i < Count; ++i)
      x[i] = there(i) ? *reinterpret_cast<const uint2*>(from + i * kFp8Block) : uint2{0, 0};
    barrier_wait(in.summed + 8 * stage.at, stage.phase);
    const float by = in.factors[stage.at];
    __syncwarp();
    if (lane == 0) barrier_arrive(in.empty + 8 * stage.at);
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
__global__ void __launch_bounds__(32 * PipelineWarps<Count>::kAll, 1)
    quantize_normed_pipeline(const __grid_constant__ Fp8Quant q, const __grid_constant__ NormedPipeline pipeline) {
#if LOWBIT_SM90
  LOWBIT_DYNAMIC_SHARED(bytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, code_warps = pipeline.warps * pipeline.teams;
  const int columns = static_cast<int>(q.columns), threads = 32 * (code_warps + PipelineWarps<Count>::kSums + 1);
  const StageMemory in(bytes, columns);
  if (thread == 0) {
    for (int i = 0; i < pipeline.stages; ++i) {
      barrier_init(in.full + 8 * i, 1);
      barrier_init(in.summed + 8 * i, 1);
      barrier_init(in.empty + 8 * i, static_cast<uint32_t>(pipeline.warps) + 1);
    }
    barriers_visible_to_copies();
  }
  for (int stage = 0; stage < pipeline.stages; ++stage)
    for (int i = columns + thread; i < in.room; i += threads) in.rows[stage * in.room + i] = 0;
  __syncthreads();
  let_successor_start();
  wait_for_predecessor();
  if (warp < code_warps)
    code_rows<E, Count, kAll>(q, in, pipeline, warp / pipeline.warps, warp % pipeline.warps);
  else if (warp < code_warps + PipelineWarps<Count>::kSums)
    sum_rows<E>(q, in, pipeline, warp - code_warps, PipelineWarps<Count>::kSums);
  else if (thread % 32 == 0)
    fetch_rows(q, in, pipeline);
#endif
}

}  // namespace lowbit::cuda::fp8
