// The input product of whole sequences: ih[rows, 3, padded] from x, on the matrix unit.
//
// A thread block takes 128 rows of W (8 tiles) times 128 rows of x (64 with two planes), 64 columns at a time through
// four stages of shared memory. W lies in the order of the instruction, x in rows of 64 bytes whose 16-byte parts are
// exchanged as wgmma's 64-byte swizzle wants them, which is also an order in which eight rows never meet a bank twice.

#include "kernels/cuda/gemm/primitives/wgmma.cuh"
#include "kernels/cuda/gru/elements.cuh"
#include "kernels/cuda/gru/matrix.cuh"
#include "kernels/cuda/launch.h"

namespace lowbit::cuda::gru {
namespace {

constexpr int kThreads = 256, kTiles = 8, kStages = 4, kStageK = 64;
constexpr int kWeightBytes = kTiles * 2 * kTileBytes, kCodeBytes = 128 * kStageK;
constexpr int kStageBytes = kWeightBytes + kCodeBytes;
constexpr int kBlockRows = 16 * kTiles;
constexpr int kRowBytes = kBlockRows * (8 + 4);  // biases, then shifts
constexpr int kSharedBytes = kStages * kStageBytes + kRowBytes;

template <int L>
constexpr int kRows = 128 / L;

struct Place {
  int tile, row;    // first tile row of W, first row of x
  int tiles, rows;  // in all
};

/// A thread's parts of a stage: where they come from, and where in the stage they go. Found once, so that a stage costs
/// a few instructions.
template <int L>
struct Parts {
  static constexpr int kWeights = kWeightBytes / 16 / kThreads, kCodes = kCodeBytes / 16 / kThreads;
  const uint8_t *weights[kWeights], *codes[kCodes];
  uint32_t codes_to[kCodes];
  int column, stride;
  __device__ __forceinline__ Parts(const Cell& cell, const GruCodes& x, const Place& p)
      : column(16 * (int(threadIdx.x) % 4)), stride(int(x.stride)) {
#pragma unroll
    for (int c = 0; c < kWeights; ++c) {
      const int i = int(threadIdx.x) + c * kThreads;  // 64 parts of 16 bytes: two ksteps of a tile
      const int64_t tile = min(p.tile + i / 64, p.tiles - 1);
      weights[c] = cell.x.tiles + tile * cell.x.ksteps * kTileBytes + i % 64 * 16;
    }
#pragma unroll
    for (int c = 0; c < kCodes; ++c) {
      const int plane_row = int(threadIdx.x) / 4 + c * kThreads / 4, plane = plane_row / kRows<L>;
      const int row = plane_row % kRows<L>;
      codes[c] = x.data + plane * x.plane_bytes + int64_t(min(p.row + row, p.rows - 1)) * x.stride + column;
      codes_to[c] = uint32_t(plane_row * kStageK + ((column / 16) ^ (row >> 1 & 3)) * 16);
    }
  }
  __device__ __forceinline__ void fetch(int stage, uint32_t shared) const {
#pragma unroll
    for (int c = 0; c < kWeights; ++c)
      copy_async_16(shared + 16 * (threadIdx.x + uint32_t(c * kThreads)), weights[c] + stage * 2 * kTileBytes);
    const bool inside = stage * kStageK + column < stride;
    const int from = inside ? stage * kStageK : -column;  // else the row's first, which is not read
#pragma unroll
    for (int c = 0; c < kCodes; ++c)
      copy_async_16_or_zero(shared + kWeightBytes + codes_to[c], codes[c] + from, inside);
  }
};

/// Turns a row's sums into codes.
template <int L, class T>
struct Row {
  T bias;
  int32_t bits;
  Shift32 shift;
  __device__ __forceinline__ Row(int64_t bias_with_offset, int32_t right_shift)
      : bias(T(bias_with_offset)), bits(right_shift), shift(right_shift) {}
  /// `sums`: of plane 0; of the next one `plane_stride` further.
  __device__ __forceinline__ uint32_t code(const int* sums, int plane_stride, int32_t low, int32_t high) const {
    if constexpr (sizeof(T) == 4) {
      const auto v = int32_t(uint32_t(sums[0]) + uint32_t(bias));
      return uint32_t(clamp<int32_t>(shift(v), low, high) - low);
    } else {
      int64_t v = bias + sums[0];
      if constexpr (L == 2) v += int64_t{256} * sums[plane_stride];
      return uint32_t(clamp<int64_t>(rounding_shift(v, bits), low, high) - low);
    }
  }
};

/// Asks for the biases and shifts of the block's rows of W.
__device__ __forceinline__ void fetch_rows(const Cell& cell, const Place& p, uint32_t shared) {
  constexpr int kBiasParts = kBlockRows * 8 / 16, kParts = kBiasParts + kBlockRows * 4 / 16;
  const int i = int(threadIdx.x), shift_part = i - kBiasParts;
  if (i >= kParts) return;
  // Rows behind the last: those of some tile.
  const auto row = [&](int local) { return min(p.tile + local / 16, p.tiles - 1) * 16 + local % 16; };
  copy_async_16(shared + 16 * i, i < kBiasParts ? static_cast<const void*>(cell.x.bias + row(2 * i))
                                                : cell.x.shift + row(4 * shift_part));
}

/// The block's codes from shared memory, [rows of x][rows of W], to ih.
template <int L>
__device__ __forceinline__ void write_out(const Cell& cell, const Call& call, const Place& p, const uint8_t* codes,
                                          int stride) {
  const int parts = kTiles * cell.ih_bytes;  // of 16 bytes
  for (int i = int(threadIdx.x); i < kRows<L> * parts; i += kThreads) {
    const int row = i / parts, part = i % parts;
    if (p.row + row >= p.rows || p.tile + part / cell.ih_bytes >= p.tiles) continue;
    const int64_t to = (int64_t(p.row + row) * cell.ih_stride + p.tile * 16) * cell.ih_bytes + 16 * part;
    *reinterpret_cast<uint4*>(call.ih + to) = *reinterpret_cast<const uint4*>(codes + row * stride + 16 * part);
  }
}

/// The matrix unit of sm_90a reads shared memory by another way than threads and their copies.
__device__ __forceinline__ void copies_visible_to_matrix() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A warp's part of the block: kWarpTiles tiles of 16 rows of W times kWarpColumns of 8 rows of x, per plane.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kWarpTiles = 1;
template <int L>
constexpr int kWarpColumns = kRows<L> / 8;
#else
constexpr int kWarpTiles = 4;
template <int L>
constexpr int kWarpColumns = kRows<L> / 32;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/// Rows of 64 bytes in 64-byte swizzle, groups of eight rows 512 bytes apart.
__device__ __forceinline__ uint64_t codes_descriptor(uint32_t shared) {
  return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(32) << 32 | uint64_t(2) << 62;
}
/// d[64, 128] += a[64, 32] x[128, 32]^T, signed times unsigned; a warp has 16 rows of a.
__device__ __forceinline__ void wgmma_s8_u8(int* d, const uint4& a, uint64_t x) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.u8 {" LOWBIT_R_64 "}, {%64, %65, %66, %67}, %68, 1;"
               : LOWBIT_D_64("+r")
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(x));
}
#endif

/// Adds a stage's products. On sm_90a four warps multiply 64 rows of W from registers with all rows of x from shared
/// memory.
template <int L>
__device__ __forceinline__ void multiply_stage(uint32_t w, int (&acc)[kWarpTiles][L][kWarpColumns<L>][4]) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const uint32_t x = w + kWeightBytes;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const uint4 first = load_shared_16(w + uint32_t(warp * 2 * kTileBytes + lane * 16));
  const uint4 second = load_shared_16(w + uint32_t((warp * 2 + 1) * kTileBytes + lane * 16));
  wgmma_fence();
  wgmma_s8_u8(&acc[0][0][0][0], first, codes_descriptor(x));
  wgmma_s8_u8(&acc[0][0][0][0], second, codes_descriptor(x + 32));
  wgmma_commit();
  wgmma_wait<0>();
#else
  const int wm = warp / 4, wn = warp % 4;
  uint32_t b[L][kWarpColumns<L>][4];
#pragma unroll
  for (int l = 0; l < L; ++l)
#pragma unroll
    for (int j = 0; j < kWarpColumns<L>; ++j) {
      const int row = (wn * kWarpColumns<L> + j) * 8 + lane % 8;
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
        for (int j = 0; j < kWarpColumns<L>; ++j) mma_s8_u8(acc[i][l][j], a, b[l][j][2 * half], b[l][j][2 * half + 1]);
    }
#endif
}

template <int L, class T>
__global__ void __launch_bounds__(kThreads, 2)
    input_product(const __grid_constant__ Cell cell, const __grid_constant__ Call call) {
  extern __shared__ __align__(1024) uint8_t shared[];
  let_successor_start();
  Place p;
  p.tiles = 3 * cell.groups;
  p.rows = int(call.s.steps * call.s.batch);
  const int across = (p.tiles + kTiles - 1) / kTiles;
  p.tile = int(blockIdx.x) % across * kTiles;
  p.row = int(blockIdx.x) / across * kRows<L>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kAcross = kTiles / kWarpTiles, kDown = 8 / kAcross;  // warps
  const int wm = warp / kDown, wn = warp % kDown;
  const uint32_t base = shared_address(shared);
  const int stages = cell.x.ksteps / 2;
  wait_for_predecessor();
  for (int i = int(blockIdx.x * kThreads + threadIdx.x); i < call.flag_count; i += int(gridDim.x * kThreads))
    call.flags[i] = 0;

  const Parts<L> parts(cell, call.s.x, p);
  int acc[kWarpTiles][L][kWarpColumns<L>][4] = {};
  fetch_rows(cell, p, base + kStages * kStageBytes);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) parts.fetch(s, base + s * kStageBytes);
    copies_commit();
  }
  for (int s = 0; s < stages; ++s) {
    copies_wait<kStages - 2>();
    copies_visible_to_matrix();
    __syncthreads();
    if (s + kStages - 1 < stages) parts.fetch(s + kStages - 1, base + (s + kStages - 1) % kStages * kStageBytes);
    copies_commit();
    multiply_stage<L>(base + s % kStages * kStageBytes, acc);
  }
  copies_wait<0>();
  __syncthreads();  // the stages are free
  constexpr int kPlane = kWarpColumns<L> * 4;
  const auto* const biases = reinterpret_cast<const int64_t*>(shared + kStages * kStageBytes);
  const auto* const shifts = reinterpret_cast<const int32_t*>(biases + kBlockRows);
  const int stride = kBlockRows * cell.ih_bytes + 16, low = cell.x.low, high = cell.x.high;
#pragma unroll
  for (int i = 0; i < kWarpTiles; ++i) {
    const int row = (wm * kWarpTiles + i) * 16 + 2 * (lane / 4);
    const Row<L, T> first(biases[row], shifts[row]), second(biases[row + 1], shifts[row + 1]);
#pragma unroll
    for (int j = 0; j < kWarpColumns<L>; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int m = (wn * kWarpColumns<L> + j) * 8 + 2 * (lane % 4) + e;
        const uint32_t one = first.code(&acc[i][0][j][e], kPlane, low, high);
        const uint32_t two = second.code(&acc[i][0][j][e + 2], kPlane, low, high);
        uint8_t* const to = shared + m * stride + row * cell.ih_bytes;
        if (cell.ih_bytes == 1)
          *reinterpret_cast<uint16_t*>(to) = uint16_t(one | two << 8);
        else
          *reinterpret_cast<uint32_t*>(to) = one | two << 16;
      }
  }
  __syncthreads();
  write_out<L>(cell, call, p, shared, stride);
}

template <int L, class T>
cudaError_t launch_one(const Cell& cell, const Call& call, cudaStream_t stream) {
  Device device;
  if (const auto e = current_device(&device); e != cudaSuccess) return e;
  const auto kernel = input_product<L, T>;
  if (const auto e = allow_shared(reinterpret_cast<const void*>(kernel), device); e != cudaSuccess) return e;
  const int64_t across = (3 * cell.groups + kTiles - 1) / kTiles;
  const int64_t down = (call.s.steps * call.s.batch + kRows<L> - 1) / kRows<L>;
  return launch(kernel, dim3(unsigned(across * down)), dim3(kThreads), size_t(kSharedBytes), stream, device.bulk_copies,
                cell, call);
}

}  // namespace

cudaError_t launch_input(const Cell& cell, const Call& call, cudaStream_t stream) {
  if (cell.x.narrow && cell.x.limbs == 1) return launch_one<1, int32_t>(cell, call, stream);
  if (cell.x.limbs == 1) return launch_one<1, int64_t>(cell, call, stream);
  return launch_one<2, int64_t>(cell, call, stream);
}

}  // namespace lowbit::cuda::gru
