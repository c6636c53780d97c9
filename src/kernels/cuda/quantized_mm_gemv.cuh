#pragma once
// quantized_mm<BITS> for one token, aligned rows of weights and one scale for each, compute capability 9: weights
// come to shared memory by the copy engine, and a thread block has twice as many rows for each x that it cuts as
// quantized_mm_decode.cuh.
//
// Shapes:   a thread block makes 32 outputs. A line is 128 bytes of a weight row; a warp has every 16th line of all 32
//           rows. It splits its own columns of x into parts and goes through its boxes, 16 rows of a line, on its own;
//           there is one barrier, at the end.
// Memory:   boxes come by a tensor map with 128-byte swizzle, two or four of a warp at a time. Lane t has pieces 2 t
//           and 2 t + 1 of a line, 16 bytes each, so that neighbouring rows meet different banks.
// Error:    as quantized_mm_decode.cuh: sums of 64 bytes are added by ordinary additions.
// Limits:   reading the weights.

#include <cuda.h>

#include "kernels/cuda/quantized_mm_decode.cuh"

namespace lowbit::cuda {

inline constexpr int kLineWarps = 16, kLineRows = 32, kLineBytes = 128;
inline constexpr int kBoxBytes = 16 * kLineBytes;
/// Boxes of a warp that have room at a time. Measured, 4096 x 4096, launches that overlap and alone: four 7.43 and 9.20
/// us, two 7.85 and 7.87.
inline constexpr int kSlotsAlone = 2, kSlotsOverlapping = 4;
template <int kSlots>
inline constexpr int kLineBarriersAt = kLineWarps* kSlots* kBoxBytes;
template <int kSlots>
inline constexpr int kLinePartsAt = kLineBarriersAt<kSlots> + kLineWarps* kSlots * 8;

/// Bytes of a warp's parts of x, one after the other: columns of the mma meet alternating halves of the banks.
template <int BITS>
constexpr LOWBIT_HD int line_part_bytes(int warp_lines) {
  return warp_lines * 8 * (16 / BITS) * 16 + 64;
}

#if LOWBIT_SM90
/// 16 rows of 128 bytes to shared memory, zeros outside.
__device__ __forceinline__ void load_box(const CUtensorMap& weights, int byte, int row, uint32_t to, uint32_t barrier) {
  barrier_expect(barrier, kBoxBytes);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&weights), "r"(byte), "r"(row), "r"(barrier)
      : "memory");
}
#endif

/// A warp's columns of x as parts: [part][line of the warp][piece of a lane][quad][lane t][pair of columns].
template <int BITS>
__device__ __forceinline__ void stage_lines(const QuantizedConfig& p, const void* input, int warp, int lines,
                                            int part_bytes, uint8_t* parts) {
  constexpr int kQuads = 16 / BITS;
  const bool aligned = fours_aligned(p, input);
  const auto* const x = static_cast<const uint8_t*>(input);
  for (int place = static_cast<int>(threadIdx.x & 31); place < lines * 8 * kQuads; place += 32) {
    const int t = place & 3, quad = place / 4 % kQuads, piece = place / (4 * kQuads) & 1, i = place / (8 * kQuads);
    const int64_t sixteen = static_cast<int64_t>(warp + i * kLineWarps) * 8 + 2 * t + piece;
    const int64_t k = column_of_quad<BITS>(sixteen * (128 / BITS), quad);
    float low[4], high[4];
    load_four(x, p.input_element, k, p.k, aligned, low);
    load_four(x, p.input_element, k + kPairApart<BITS>, p.k, aligned, high);
    uint4 quads[kParts];
    split_pairs<BITS>(low, high, quads);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      *reinterpret_cast<uint4*>(parts + part * part_bytes + place * 16) = quads[part];
  }
}

template <int BITS, int kSlots>
__global__ void __launch_bounds__(32 * kLineWarps, 2)
    quantized_mm_gemv(const __grid_constant__ CUtensorMap weights, const void* input, void* output,
                      const __grid_constant__ QuantizedConfig p, int warp_lines) {
#if LOWBIT_SM90
  extern __shared__ __align__(1024) uint8_t line_smem[];
  uint8_t* const smem = line_smem;
  constexpr int kPieceBytes = 16 / BITS * 64;  // of parts
  let_successor_start();
  const int64_t n0 = static_cast<int64_t>(blockIdx.x) * kLineRows;
  if (n0 >= p.n) {  // blocks beyond the last row keep launches spread evenly, if they stay for a while
    wait_for_predecessor();
    return;
  }
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int warp =
      __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);  // the compiler knows that it is uniform
  const int row_lines = static_cast<int>(((p.k * BITS + 7) / 8 + kLineBytes - 1) / kLineBytes);
  const int lines = max(0, (row_lines - warp + kLineWarps - 1) / kLineWarps), boxes = 2 * lines;
  const uint32_t stages = shared_address(smem) + warp * kSlots * kBoxBytes;
  const uint32_t barriers = shared_address(smem) + kLineBarriersAt<kSlots> + warp * kSlots * 8;
  const auto load = [&](int box) {
    load_box(weights, (warp + box / 2 * kLineWarps) * kLineBytes, static_cast<int>(n0) + 16 * (box & 1),
             stages + box % kSlots * kBoxBytes, barriers + box % kSlots * 8);
  };
  if (elected()) {
    for (int slot = 0; slot < kSlots; ++slot) barrier_init(barriers + 8 * slot, 1);
    barriers_visible_to_copies();
    for (int box = 0; box < min(boxes, kSlots); ++box) load(box);
  }
  __syncwarp();
  const int part_bytes = line_part_bytes<BITS>(warp_lines);
  uint8_t* const parts = smem + kLinePartsAt<kSlots> + warp * kParts * part_bytes;
  const uint8_t* const column = parts + min(g, kParts - 1) * part_bytes + t * 16;
  const uint8_t* const mine = smem + warp * kSlots * kBoxBytes + g * kLineBytes;
  float sums[2][4] = {};
  wait_for_predecessor();
  stage_lines<BITS>(p, input, warp, lines, part_bytes, parts);
  __syncwarp();
  for (int i = 0; i < lines; ++i) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const int box = 2 * i + tile, slot = box % kSlots;
      barrier_wait(barriers + 8 * slot, box / kSlots & 1);
#pragma unroll
      for (int piece = 0; piece < 2; ++piece) {
        const uint8_t* const from = mine + slot * kBoxBytes + (((2 * t + piece) ^ g) << 4);
        const uint4 low = *reinterpret_cast<const uint4*>(from),
                    high = *reinterpret_cast<const uint4*>(from + 8 * kLineBytes);
        add_chunk<BITS>(low, high, column + (2 * i + piece) * kPieceBytes, 1.0f, 1.0f, sums[tile]);
      }
      __syncwarp();
      if (box + kSlots < boxes && elected()) load(box + kSlots);
    }
  }
  __syncwarp();
  // Sums of the parts, [row][part], where the parts of x were.
  float* const own = reinterpret_cast<float*>(parts);
  if (t < 2) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (2 * t + (i & 1) < kParts) own[(16 * tile + g + (i < 2 ? 0 : 8)) * kParts + 2 * t + (i & 1)] = sums[tile][i];
    }
  }
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) / kLineWarps, of_warp = static_cast<int>(threadIdx.x) % kLineWarps;
  const float* const from =
      reinterpret_cast<const float*>(smem + kLinePartsAt<kSlots> + of_warp * kParts * part_bytes) + r * kParts;
  float y = __fadd_rn(__fadd_rn(from[2], from[1]), from[0]);  // the small ones first
#pragma unroll
  for (int d = kLineWarps / 2; d > 0; d /= 2) y = __fadd_rn(y, __shfl_xor_sync(0xffffffffu, y, d));
  if (of_warp == 0 && n0 + r < p.n) finish_output(p, output, 0, n0 + r, y);
#endif
}

}  // namespace lowbit::cuda
