#pragma once
// Rows of f16 or bf16 that begin at multiples of 16 bytes: an RMS norm, then E4M3 codes in blocks of 128 columns.
//
// Shapes:   a team of one or four warps has a row, and thread blocks of some teams stay; where rows are few, a thread
//           block of four warps adds up the squares of a row and makes codes of a part of it. Many rows on compute
//           capability 9.0: quantize_normed_pipeline.cuh.
// Memory:   a lane copies its columns to shared memory, and makes codes of no others. Columns that have become codes
//           leave their place to the next row's.
// Limits:   memory where rows are many, and instructions: 59 of a warp for 128 columns; else the chain read x - sum of
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
        [&](int, int column) { return *reinterpret_cast<const uint2*>(own + column); },
        [&](int, int column) { return *reinterpret_cast<const float4*>(weights + column); },
        [&](int base, int more) { copy_to_shared_8(own + base + more, x + base + more); });
  }
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
      [&](int, int column) {
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
