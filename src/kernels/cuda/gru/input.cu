// The input product of whole sequences: ih[rows, 3, padded] from x, on the matrix unit.
//
// A thread block takes 128 rows of W (8 tiles) times 128 rows of x (64 with two planes), 64 columns at a time through four
// stages of shared memory. W lies in the order of the instruction, x in rows whose 16-byte parts are exchanged so that eight
// rows never meet a bank twice.

#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/launch.h"

namespace lowbit::cuda::gru {
namespace {

constexpr int kThreads = 256, kTiles = 8, kStages = 4, kStageK = 64;
constexpr int kWeightBytes = kTiles * 2 * kTileBytes, kCodeBytes = 128 * kStageK;
constexpr int kStageBytes = kWeightBytes + kCodeBytes;

template <int L>
constexpr int kRows = 128 / L;

struct Place {
  int tile, row;    // first tile row of W, first row of x
  int tiles, rows;  // in all
};

template <int L>
__device__ __forceinline__ void fetch(const Cell& cell, const GruCodes& x, const Place& p, int stage, uint32_t shared) {
  const int steps = cell.x.ksteps;
#pragma unroll
  for (int i = threadIdx.x; i < kWeightBytes / 16; i += kThreads) {
    const int tile = min(p.tile + i / 64, p.tiles - 1);  // 64 parts of 16 bytes: two ksteps of a tile
    copy_async_16(shared + 16 * i, cell.x.tiles + (int64_t(tile) * steps + 2 * stage) * kTileBytes + i % 64 * 16);
  }
#pragma unroll
  for (int i = threadIdx.x; i < kCodeBytes / 16; i += kThreads) {
    const int part = i % 4, plane_row = i / 4, plane = plane_row / kRows<L>, row = plane_row % kRows<L>;
    const int column = stage * kStageK + 16 * part;
    const bool inside = column < x.stride && plane < cell.x.limbs;
    const uint8_t* from = x.data + int64_t(min(p.row + row, p.rows - 1)) * x.stride;
    if (inside) from += plane * x.plane_bytes + column;
    copy_async_16_or_zero(shared + kWeightBytes + plane_row * kStageK + ((part ^ (row >> 1 & 3)) * 16), from, inside);
  }
}

template <int L, class T>
__device__ __forceinline__ uint32_t finish(const Cell& cell, const int* sums, int plane_stride, int row) {
  if constexpr (sizeof(T) == 4) {
    const auto v = int32_t(uint32_t(sums[0]) + uint32_t(cell.x.bias[row]));
    return uint32_t(clamp<int32_t>(Shift32(cell.x.shift[row])(v), cell.x.low, cell.x.high) - cell.x.low);
  } else {
    int64_t v = cell.x.bias[row] + sums[0];
    if constexpr (L == 2) v += int64_t{256} * sums[plane_stride];
    return uint32_t(clamp<int64_t>(rounding_shift(v, cell.x.shift[row]), cell.x.low, cell.x.high) - cell.x.low);
  }
}

template <int L, class T>
__global__ void __launch_bounds__(kThreads, 2)
    input_product(const __grid_constant__ Cell cell, const __grid_constant__ Call call) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kWarpTiles = 4, kWarpColumns = kRows<L> / 32;  // tiles of 16 rows of W, of 8 rows of x
  let_successor_start();
  Place p;
  p.tiles = 3 * cell.groups;
  p.rows = int(call.s.steps * call.s.batch);
  const int across = (p.tiles + kTiles - 1) / kTiles;
  p.tile = int(blockIdx.x) % across * kTiles;
  p.row = int(blockIdx.x) / across * kRows<L>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4, wn = warp % 4;
  const uint32_t base = shared_address(shared);
  const int stages = cell.x.ksteps / 2;
  wait_for_predecessor();
  for (int i = threadIdx.x; blockIdx.x == 0 && i < call.flag_count; i += kThreads) call.flags[i] = 0;

  int acc[kWarpTiles][L][kWarpColumns][4] = {};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) fetch<L>(cell, call.s.x, p, s, base + s * kStageBytes);
    copies_commit();
  }
  for (int s = 0; s < stages; ++s) {
    copies_wait<kStages - 2>();
    __syncthreads();
    if (s + kStages - 1 < stages)
      fetch<L>(cell, call.s.x, p, s + kStages - 1, base + (s + kStages - 1) % kStages * kStageBytes);
    copies_commit();
    const uint32_t w = base + s % kStages * kStageBytes, x = w + kWeightBytes;
    uint32_t b[L][kWarpColumns][4];
#pragma unroll
    for (int l = 0; l < L; ++l)
#pragma unroll
      for (int j = 0; j < kWarpColumns; ++j) {
        const int row = (wn * kWarpColumns + j) * 8 + lane % 8;
        load_blocks(b[l][j], x + (l * kRows<L> + row) * kStageK + ((lane / 8) ^ (row >> 1 & 3)) * 16);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
        const uint4 a = load_shared_16(w + ((wm * kWarpTiles + i) * 2 + half) * kTileBytes + lane * 16);
#pragma unroll
        for (int l = 0; l < L; ++l)
#pragma unroll
          for (int j = 0; j < kWarpColumns; ++j) mma_s8_u8(acc[i][l][j], a, b[l][j][2 * half], b[l][j][2 * half + 1]);
      }
  }
  constexpr int kPlane = kWarpColumns * 4;
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    const int tile = p.tile + wm * kWarpTiles + i, row = tile * 16 + 2 * (lane / 4);
    if (tile >= p.tiles) continue;
#pragma unroll
    for (int j = 0; j < kWarpColumns; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = p.row + (wn * kWarpColumns + j) * 8 + 2 * (lane % 4) + e;
        if (m >= p.rows) continue;
        const uint32_t first = finish<L, T>(cell, &acc[i][0][j][e], kPlane, row);
        const uint32_t second = finish<L, T>(cell, &acc[i][0][j][e + 2], kPlane, row + 1);
        const int64_t to = int64_t(m) * cell.ih_stride + row;
        if (cell.ih_bytes == 1)
          *reinterpret_cast<uint16_t*>(call.ih + to) = uint16_t(first | second << 8);
        else
          *reinterpret_cast<uint32_t*>(call.ih + 2 * to) = first | second << 16;
      }
  }
}

template <int L, class T>
cudaError_t launch_one(const Cell& cell, const Call& call, cudaStream_t stream) {
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  const auto kernel = input_product<L, T>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const int64_t across = (3 * cell.groups + kTiles - 1) / kTiles;
  const int64_t down = (call.s.steps * call.s.batch + kRows<L> - 1) / kRows<L>;
  return launch(kernel, dim3(unsigned(across * down)), dim3(kThreads), size_t(kStages) * kStageBytes, stream,
                device.bulk_copies, cell, call);
}

}  // namespace

cudaError_t launch_input(const Cell& cell, const Call& call, cudaStream_t stream) {
  if (cell.x.narrow && cell.x.limbs == 1) return launch_one<1, int32_t>(cell, call, stream);
  if (cell.x.limbs == 1) return launch_one<1, int64_t>(cell, call, stream);
  return launch_one<2, int64_t>(cell, call, stream);
}

}  // namespace lowbit::cuda::gru
