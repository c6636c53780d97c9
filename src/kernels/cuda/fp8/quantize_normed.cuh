#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: an RMS norm, then E4M3 codes in blocks of 128 columns.
//
// Shapes:   a team of one or four warps has a row, and thread blocks of some teams stay; where rows are few, a thread
//           block of four warps adds up the squares of a row and makes codes of a part of it.
// Memory:   a lane copies its columns to shared memory, and makes codes of no others. Columns that have become codes
//           leave their place to the next row's.
// Limits:   memory where rows are many, and instructions: 66 of a warp for 128 columns; else the chain read x - sum of
//           squares - codes.

#include <cstring>

#include "kernels/cuda/fp8/normed_codes.cuh"
#include "kernels/cuda/team_barrier.cuh"

namespace lowbit::cuda::fp8 {

constexpr int kMostNormedWarps = 16;  // of a thread block

/// Bytes of shared memory: parts of sums, the norm's weights, and a row for each team, as it is.
template <int kTeam>
int64_t normed_bytes(int64_t columns, int64_t teams) {
  return kMostNormedWarps * 16 + (4 + 2 * teams) * padded_columns<kTeam>(columns);
}
/// Where a thread block has a part of a row.
inline int64_t normed_part_bytes(int64_t columns) { return 16 + 2 * padded_columns<4>(columns); }

__device__ __forceinline__ void copy_to_shared_8(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  std::memcpy(to, from, 8);
#endif
}

template <Fp8Element E, int kTeam>
__global__ void __launch_bounds__(32 * kMostNormedWarps, 2)
    quantize_normed_rows(const __grid_constant__ Fp8Quant q, int teams) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  constexpr int kStep = kTeam * kNormSums, kThreadsOf = kTeam * 32;
  const int columns = static_cast<int>(q.columns), room = padded_columns<kTeam>(columns);
  const int team = static_cast<int>(threadIdx.x) / kThreadsOf, thread = static_cast<int>(threadIdx.x) % kThreadsOf;
  const int first = thread / 32 * kNormSums + thread % 32 * 4;  // column of the lane
  auto* const quarters = reinterpret_cast<float*>(bytes) + 4 * team;
  auto* const weights = reinterpret_cast<float*>(bytes) + 4 * kMostNormedWarps;
  auto* const own = reinterpret_cast<uint16_t*>(weights + room) + team * room;
  const int64_t rows_apart = int64_t{gridDim.x} * teams;
  int64_t row = blockIdx.x + int64_t{gridDim.x} * team;
  const auto* x = static_cast<const uint16_t*>(q.x) + row * q.ldx;
  let_successor_start();
  wait_for_predecessor();
  for (int column = first; row < q.rows && column < columns; column += kStep)
    copy_to_shared_8(own + column, x + column);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns; i += 4 * kThreadsOf * teams)
    copy_to_shared_16(weights + i, q.norm_weight + i);
  for (int i = columns + 4 * thread; i < room; i += 4 * kThreadsOf) {
    *reinterpret_cast<uint2*>(own + i) = uint2{0, 0};
    *reinterpret_cast<float4*>(weights + i) = float4{0, 0, 0, 0};
  }
  wait_for_all_copies();
  __syncthreads();
  for (; row < q.rows; row += rows_apart) {
    wait_for_all_copies();
    const auto meet = [&] { team_barrier(1 + team, kThreadsOf); };
    if (kTeam > 1) meet();
    const float by = team_inverse_rms<E, kTeam>(own, columns, q.norm_eps, thread, quarters, meet);
    x += rows_apart * q.ldx;
    code_columns<E, kNormedBlocks, kStep>(
        q, row, normed_place<kStep>(q, row, first), by, first, columns, row + rows_apart < q.rows,
        [&](int column) { return *reinterpret_cast<const uint2*>(own + column); },
        [&](int, int column) { return *reinterpret_cast<const float4*>(weights + column); },
        [&](int base, int more) { copy_to_shared_8(own + base + more, x + base + more); });
  }
}

/// Thread blocks that stay, one on a multiprocessor, of `teams` of kTeam warps: each has room for `depth` rows, which
/// the copy engine fetches while the one in front becomes codes.
struct NormedPipeline {
  int teams = 0, depth = 0;
};
constexpr int kMostNormedSlots = 64;
template <int kTeam>
inline constexpr int kMostNormedTeams = kTeam == 4 ? 7 : 24 / kTeam;
/// Bytes of shared memory: barriers of slots, parts of sums, the norm's weights, rows.
template <int kTeam>
int64_t normed_pipeline_bytes(int64_t columns, int64_t slots) {
  return 8 * kMostNormedSlots + 16 * kMostNormedTeams<kTeam> + (4 + 2 * slots) * padded_columns<kTeam>(columns);
}

template <Fp8Element E, int kTeam>
__global__ void __launch_bounds__(32 * kTeam * kMostNormedTeams<kTeam>, 1)
    quantize_normed_pipeline(const __grid_constant__ Fp8Quant q, const __grid_constant__ NormedPipeline pipeline) {
#if LOWBIT_SM90
  LOWBIT_DYNAMIC_SHARED(bytes);
  constexpr int kStep = kTeam * kNormSums, kThreadsOf = 32 * kTeam;
  const int columns = static_cast<int>(q.columns), room = padded_columns<kTeam>(columns);
  const int team = static_cast<int>(threadIdx.x) / kThreadsOf, thread = static_cast<int>(threadIdx.x) % kThreadsOf;
  const int first = thread / 32 * kNormSums + thread % 32 * 4;                        // column of the lane
  const uint32_t full = shared_address(bytes) + 8 * uint32_t(team * pipeline.depth);  // barriers of the team's rows
  auto* const quarters = reinterpret_cast<float*>(bytes + 8 * kMostNormedSlots) + 4 * team;
  auto* const weights = reinterpret_cast<float*>(bytes + 8 * kMostNormedSlots + 16 * kMostNormedTeams<kTeam>);
  auto* const rows = reinterpret_cast<uint16_t*>(weights + room) + team * pipeline.depth * room;
  const int64_t rows_apart = int64_t{gridDim.x} * pipeline.teams;
  int64_t row = blockIdx.x + int64_t{gridDim.x} * team;
  const auto fetch = [&](int slot, int64_t from) {
    barrier_expect(full + 8 * slot, 2 * columns);
    copy_bulk(shared_address(rows + slot * room), static_cast<const uint16_t*>(q.x) + from * q.ldx, 2 * columns,
              full + 8 * slot);
  };
  if (thread == 0) {
    for (int i = 0; i < pipeline.depth; ++i) barrier_init(full + 8 * i, 1);
    barriers_visible_to_copies();
  }
  let_successor_start();
  wait_for_predecessor();
  if (thread == 0)
    for (int i = 0; i < pipeline.depth && row + i * rows_apart < q.rows; ++i) fetch(i, row + i * rows_apart);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns; i += 4 * kThreadsOf * pipeline.teams)
    copy_to_shared_16(weights + i, q.norm_weight + i);
  for (int i = columns + 4 * thread; i < room; i += 4 * kThreadsOf) {
    for (int slot = 0; slot < pipeline.depth; ++slot) *reinterpret_cast<uint2*>(rows + slot * room + i) = uint2{0, 0};
    *reinterpret_cast<float4*>(weights + i) = float4{0, 0, 0, 0};
  }
  wait_for_all_copies();
  __syncthreads();
  NormedPlace to = normed_place<kStep>(q, row, first);
  int slot = 0;
  uint32_t phase = 0;
  for (; row < q.rows; row += rows_apart) {
    const auto* const own = rows + slot * room;
    const auto meet = [&] {
      if (kTeam == 1)
        __syncwarp();
      else
        team_barrier(1 + team, kThreadsOf);
    };
    barrier_wait(full + 8 * slot, phase);
    const float by = team_inverse_rms<E, kTeam>(own, columns, q.norm_eps, thread, quarters, meet);
    code_columns<E, kNormedBlocks, kStep>(
        q, row, to, by, first, columns, false,
        [&](int column) { return *reinterpret_cast<const uint2*>(own + column); },
        [&](int, int column) { return *reinterpret_cast<const float4*>(weights + column); }, [](int, int) {});
    meet();
    if (const int64_t next = row + pipeline.depth * rows_apart; thread == 0 && next < q.rows) fetch(slot, next);
    to.codes += rows_apart * q.ldcodes;
    to.scales += rows_apart * (q.scales_by_column ? 1 : q.ldscales);
    if (++slot == pipeline.depth) slot = 0, phase ^= 1;
  }
#endif
}

/// Thread block (row, part): codes of the `part` columns from blockIdx.y * part on, a multiple of 512. Its weights come
/// a round ahead, the first ones beside the row.
template <Fp8Element E, int Count>
__global__ void __launch_bounds__(128, 8) quantize_normed_part(const __grid_constant__ Fp8Quant q, int part) {
  LOWBIT_DYNAMIC_SHARED(bytes);
  constexpr int kStep = 4 * kNormSums;
  const int columns = static_cast<int>(q.columns), thread = static_cast<int>(threadIdx.x);
  auto* const quarters = reinterpret_cast<float*>(bytes);
  auto* const own = reinterpret_cast<uint16_t*>(quarters + 4);
  const int64_t row = blockIdx.x;
  const auto* const x = static_cast<const uint16_t*>(q.x) + row * q.ldx;
  const int begin = static_cast<int>(blockIdx.y) * part, end = min(begin + part, columns);
  const int first = begin + thread / 32 * kNormSums + thread % 32 * 4;
  let_successor_start();
  wait_for_predecessor();
  for (int i = 8 * thread; i < columns; i += 8 * 128) copy_to_shared_16(own + i, x + i);
  float4 ahead[Count] = {};
#pragma unroll
  for (int i = 0; i < Count; ++i)
    if (first + i * kStep < end) ahead[i] = *reinterpret_cast<const float4*>(q.norm_weight + first + i * kStep);
  for (int i = columns + 8 * thread; i < padded_columns<4>(columns); i += 8 * 128)
    *reinterpret_cast<uint4*>(own + i) = uint4{0, 0, 0, 0};
  wait_for_all_copies();
  __syncthreads();
  const float by = team_inverse_rms<E, 4>(own, columns, q.norm_eps, thread, quarters, [] { __syncthreads(); });
  code_columns<E, Count, kStep>(
      q, row, normed_place<kStep>(q, row, first), by, first, end, false,
      [&](int column) {
        return column < end ? *reinterpret_cast<const uint2*>(own + column) : uint2{0, 0};
      },
      [&](int i, int column) {
        const float4 weight = ahead[i];
        if (const int next = column + Count * kStep; next < end)
          ahead[i] = *reinterpret_cast<const float4*>(q.norm_weight + next);
        return weight;
      },
      [](int, int) {});
}

}  // namespace lowbit::cuda::fp8
